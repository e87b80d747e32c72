"""`maxsep evaluate`: a run's numbers again, and outliers."""

import json
import shutil
from pathlib import Path

import pytest
from class_folders import write_classes
from PIL import Image


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of pictures of one colour, which are no digits."""
    return write_classes(tmp_path_factory.mktemp("outliers"), (20, 16), **{"my pictures": 6}) / "my pictures"


def bare_copy(run, folder, **changes):
    """Copy a run without its weights, some metrics changed."""
    for name in ("spec.json", "metrics.jsonl", "result.json"):
        shutil.copy(Path(run["run"]) / name, folder)
    result = json.loads((folder / "result.json").read_text())
    result["metrics"] |= changes
    (folder / "result.json").write_text(json.dumps(result))
    return result


def test_numbers_are_those_of_the_training(call, run):
    metrics = json.loads(call("evaluate", run["run"], "--json"))
    assert metrics["top1"] == pytest.approx(run["metrics"]["top1"], abs=1e-9)
    assert metrics["unknown"] is None
    shown = call("evaluate", run["run"])
    assert f"top-1 {metrics['top1']:.2%}" in shown
    assert len(shown.splitlines()) == 4 + 10


def test_a_run_without_weights_shows_its_stored_numbers(invoke, run, tmp_path):
    bare_copy(run, tmp_path)
    result = invoke("evaluate", tmp_path, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["top1"] == run["metrics"]["top1"]
    assert str(tmp_path) in result.stderr


def test_the_share_of_test_images_that_a_threshold_rejects(call, calibrated):
    unknown = json.loads(call("evaluate", calibrated["run"], "--json"))["unknown"]
    assert {name: unknown[name] for name in calibrated["unknown"]} == calibrated["unknown"]
    assert 0 < unknown["rejected"]["max_logit"] < 0.2


@pytest.mark.parametrize(("counts", "line"), [([150, 50, 6] + [2] * 7, True), ([120] * 10, False)])
def test_unequal_classes_have_accuracies_by_group(invoke, run, tmp_path, counts, line):
    bare_copy(run, tmp_path, class_counts=counts, per_class=[0.75, 0.5, 0.25, None, *[0.125] * 6])
    shown = invoke("evaluate", tmp_path).stdout
    assert [share in shown.splitlines()[2] for share in ("75.00%", "50.00%", "14.29%")] == [line] * 3


@pytest.mark.parametrize("scale", [{}, {"softmax_scale": 30.0}])
def test_a_record_of_bare_cosines_has_no_calibration_error(invoke, run, tmp_path, scale):
    result = bare_copy(run, tmp_path, ece=0.12)
    result["spec"] |= {"loss": "ldam", "head": "cosine"}
    del result["metrics"]["softmax_scale"], result["name"]
    result["metrics"] |= scale
    for name, content in (("result.json", result), ("spec.json", result["spec"])):
        (tmp_path / name).write_text(json.dumps(content))
    assert json.loads(invoke("evaluate", tmp_path, "--json").stdout)["ece"] == (0.12 if scale else None)
    assert invoke("evaluate", tmp_path).exit_code == 0


def test_outliers_have_a_table_each(call, run, pictures, tmp_path):
    other = shutil.copytree(pictures, tmp_path / "other" / pictures.name)
    arguments = ["evaluate", run["run"], "--ood", pictures, "--ood", other]
    answer = json.loads(call(*arguments, "--json"))
    assert not (Path(run["run"]) / "detection.json").exists(), "a question is not part of the record"
    assert len(answer["detection"]["sets"]) == 2
    shown = call(*arguments)
    for measured in answer["detection"]["sets"].values():
        assert measured["count"] == 6
        assert f"{measured['scores']['mahalanobis']['full']['auroc']:.2%}" in shown
    without = json.loads(call(*arguments, "--no-mahalanobis", "--json"))
    assert all("mahalanobis" not in measured["scores"] for measured in without["detection"]["sets"].values())


def test_unreadable_outliers_are_left_out_and_named(invoke, run, pictures, tmp_path):
    folder = shutil.copytree(pictures, tmp_path / "damaged")
    (folder / "00.bmp").write_bytes(b"no image")
    (folder / "empty.jpg").touch()
    (folder / "clip.mp4").write_bytes(b"moving")
    result = invoke("evaluate", run["run"], "--ood", folder, "--json")
    assert result.exit_code == 0, result.exception
    (measured,) = json.loads(result.stdout)["detection"]["sets"].values()
    names = ["00.bmp", "clip.mp4", "empty.jpg"]
    assert measured["count"] == 5
    assert sorted(Path(item["path"]).name for item in measured["unreadable"]) == names
    assert all(name in result.stderr for name in names)


def test_outliers_are_checked_before_anything_is_computed(invoke, run, tmp_path, monkeypatch):
    monkeypatch.setattr("maxsep.cli.evaluate.evaluate", lambda *_, **__: pytest.fail("computed before checking"))
    (tmp_path / "empty").mkdir()
    for name in (tmp_path / "empty", "nowhere", "svhn", "unknown", "folder:nowhere"):
        assert isinstance(invoke("evaluate", run["run"], "--ood", name).exception, ValueError | OSError)


def change(folder):
    """Remove most of one class and add a picture to the other."""
    for path in sorted((folder / "dark").iterdir())[4:]:
        path.unlink()
    Image.new("RGB", (9, 9), (255, 255, 255)).save(folder / "light" / "new.png")


@pytest.fixture
def of_folder(call, tmp_path, monkeypatch):
    """Trains on the folder `pictures` with a loss that depends on the class counts; returns the run."""
    monkeypatch.chdir(tmp_path)

    def train():
        options = ["--loss", "logit_adjusted", "--epochs", 1, "--network", "mlp", "--device", "cpu", "--json"]
        return Path(json.loads(call("train", "--dataset", "folder:pictures?size=8", *options))["run"])

    return train


def test_changed_training_images_do_not_change_the_numbers(invoke, of_folder):
    write_classes(Path("pictures/train"), dark=30, light=12)
    write_classes(Path("pictures/test"), dark=5, light=5)
    run = of_folder()
    before = invoke("evaluate", run)
    change(Path("pictures/train"))
    after = invoke("evaluate", run)
    assert (after.exit_code, after.stdout, after.stderr) == (0, before.stdout, "")


def test_a_new_split_of_changed_images_is_warned_of(invoke, of_folder):
    write_classes(Path("pictures"), dark=30, light=12)
    run = of_folder()
    assert invoke("evaluate", run).stderr == ""
    change(Path("pictures"))
    assert "have changed" in invoke("evaluate", run).stderr


def test_data_that_moved_are_named_by_an_option(invoke, call, of_folder):
    write_classes(Path("pictures"), dark=30, light=12)
    run = of_folder()
    before = call("evaluate", run, "--json")
    Path("pictures").rename("moved")
    assert isinstance(invoke("evaluate", run).exception, FileNotFoundError)
    assert call("evaluate", run, "--dataset", "moved", "--json") == before
    options = ["--dataset", "moved", "--ood", "moved/dark", "--no-mahalanobis", "--json"]
    record = json.loads(call("evaluate", run, *options))["detection"]["in_distribution"]
    assert (Path(record["dataset"]).name, record["count"]) == ("moved?size=8", 8)
    write_classes(Path("cats"), dark=3, light=3)
    Path("cats/dark").rename("cats/tabby")
    assert isinstance(invoke("evaluate", run, "--dataset", "cats").exception, ValueError)
