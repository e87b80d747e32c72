"""A run's numbers again, and what it makes of outliers."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from maxsep.lab.serving import open_classifier


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of black and white pictures, which are no digits."""
    folder = tmp_path_factory.mktemp("my pictures")
    for number in range(6):
        Image.new("RGB", (20, 16), (255 * (number % 2),) * 3).save(folder / f"{number}.png")
    return folder


def test_train_writes_a_run_and_evaluate_reads_it(call, run):
    assert 0.5 < run["metrics"]["top1"] <= 1
    told = call("evaluate", run["run"])
    assert "top-1" in told
    assert "calibration error" in told
    again = json.loads(call("evaluate", run["run"], "--json"))
    assert again["top1"] == pytest.approx(run["metrics"]["top1"], abs=1e-9)


def test_a_record_without_weights_tells_its_stored_numbers(invoke, run, tmp_path):
    for name in ("spec.json", "metrics.jsonl", "result.json"):
        shutil.copy(Path(run["run"]) / name, tmp_path)
    found = invoke("evaluate", tmp_path)
    assert found.exit_code == 0
    assert f"{tmp_path} was kept without its weights" in found.stderr
    assert f"top-1 {run['metrics']['top1']:.2%}" in found.stdout
    found = invoke("evaluate", tmp_path, "--json")
    assert json.loads(found.stdout)["top1"] == run["metrics"]["top1"]


def test_the_share_of_known_images_that_a_threshold_rejects(call, invoke, tmp_path):
    told = json.loads(
        call("train", "--epochs", 2, "--batch-size", 128, "--calibration", 0.2, "--runs", tmp_path, "--json")
    )
    found = json.loads(call("evaluate", told["run"], "--json"))["unknown"]
    share = found.pop("rejected")
    assert found == told["unknown"]
    line = (
        f"  unknown: max_logit below {found['thresholds']['max_logit']:.4f}, which 95% of {found['images']} held-out "
        "images reach; of the test images, which are known, "
    )
    assert f"{line}it rejects {share['max_logit']:.2%}\n" in call("evaluate", told["run"])
    call("export", told["run"], "--out", tmp_path / "model")
    assert json.loads(call("evaluate", tmp_path / "model", "--json"))["unknown"] == found | {"rejected": share}
    assert f"{line}it rejects {share['max_logit']:.2%}\n" in call("evaluate", tmp_path / "model")
    (Path(told["run"]) / "weights.safetensors").unlink()
    assert f"{line}what it rejects is not stored\n" in invoke("evaluate", told["run"]).stdout
    assert json.loads(invoke("evaluate", told["run"], "--json").stdout)["unknown"] == found | {"rejected": None}


def test_a_run_without_a_threshold_tells_none(call, run):
    assert "unknown" not in call("evaluate", run["run"])
    assert json.loads(call("evaluate", run["run"], "--json"))["unknown"] is None


@pytest.mark.parametrize(("counts", "line"), [([150, 50, 6] + [2] * 7, True), ([120] * 10, False)])
def test_frequent_and_rare_classes_have_a_line_where_classes_are_unequal(invoke, run, tmp_path, counts, line):
    shutil.copy(Path(run["run"]) / "metrics.jsonl", tmp_path)
    told = json.loads((Path(run["run"]) / "result.json").read_text())
    told["metrics"] |= {"class_counts": counts, "per_class": [0.75, 0.5, 0.25, None, *[0.125] * 6]}
    (tmp_path / "result.json").write_text(json.dumps(told))
    lines = invoke("evaluate", tmp_path).stdout.splitlines()
    start = "  many 75.00%   medium 50.00%   few 14.29%   (many: 1 class with more than 100 training images; medium: 1"
    assert any(told.startswith(start) for told in lines) == line
    assert any(text.startswith("  many") for text in lines) == line


@pytest.mark.parametrize(("scale", "shown"), [({}, "unknown: this record has"), ({"softmax_scale": 30.0}, "12.00%")])
def test_a_record_of_bare_cosines_has_no_calibration_error(invoke, run, tmp_path, scale, shown):
    shutil.copy(Path(run["run"]) / "metrics.jsonl", tmp_path)
    told = json.loads((Path(run["run"]) / "result.json").read_text())
    told["spec"] |= {"loss": "ldam", "head": "cosine"}
    del told["metrics"]["softmax_scale"]
    told["metrics"] |= {"ece": 0.12, **scale}
    (tmp_path / "result.json").write_text(json.dumps(told))
    assert f"calibration error {shown}" in invoke("evaluate", tmp_path).stdout
    assert json.loads(invoke("evaluate", tmp_path, "--json").stdout)["ece"] == (0.12 if scale else None)


def test_evaluate_tells_outliers_in_a_table_and_a_histogram(call, run, pictures, tmp_path):
    told = call("evaluate", run["run"], "--ood", pictures, "--out", tmp_path / "new", "--device", "cpu")
    assert f"outliers: {pictures}" in told
    assert re.search(r"energy, centred +\d+\.\d\d% +\d+\.\d\d% +\d+\.\d\d%", told)
    assert "mean gap of the negative energy" in told
    (svg,) = (tmp_path / "new").iterdir()
    assert str(svg) in told
    assert "mean gap" in svg.read_text()


@pytest.fixture(scope="module", params=["safetensors", "onnx"])
def exported(request, call, run, tmp_path_factory):
    """The run as a folder to give away."""
    folder = tmp_path_factory.mktemp("exported") / request.param
    call("export", run["run"], "--out", folder, "--format", request.param)
    return folder


def test_an_export_tells_what_its_run_tells(invoke, call, run, exported, pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(exported.iterdir())
    theirs = invoke("evaluate", exported, "--ood", pictures)
    assert theirs.exit_code == 0, theirs.exception
    ours = call("evaluate", run["run"], "--ood", pictures, "--no-mahalanobis", "--out", tmp_path / "run")
    ours = [line for line in ours.splitlines() if not line.startswith("maxsep: ")]
    told = theirs.stdout.splitlines()
    assert len(told) == len(ours)
    for one, other in zip(told, ours, strict=True):
        assert one.split("histogram:")[0] == other.split("histogram:")[0]
    assert "maxsep: Mahalanobis is left out: it needs features, and an export gives logits" in theirs.stderr
    (svg,) = tmp_path.glob("*.svg")
    assert f"histogram: {svg.name}" in theirs.stdout
    assert sorted(exported.iterdir()) == before, "nothing is added to what is given away"
    call("predict", exported, pictures)


def test_an_export_as_json(call, run, exported, pictures, tmp_path):
    told = json.loads(call("evaluate", exported, "--ood", pictures, "--out", tmp_path, "--json"))
    assert told["top1"] == pytest.approx(run["metrics"]["top1"], abs=1e-9)
    (found,) = told["detection"]["sets"].values()
    assert found["count"] == 6
    assert "mahalanobis" not in found["scores"]
    assert json.loads(call("evaluate", exported, "--dataset", "digits", "--json"))["ece"] == told["ece"]


def test_the_data_of_an_export_are_asked_for(run, exported, refuse):
    told = refuse("evaluate", exported, "--dataset", "nowhere")
    assert "'nowhere' is neither a known dataset" in told
    assert "--dataset is for exports, got 'digits'" in refuse("evaluate", run["run"], "--dataset", "digits")
    assert "unknown device 'tpu'" in refuse("evaluate", exported, "--device", "tpu")
    assert "neither a folder nor a known set of outliers" in refuse("evaluate", exported, "--ood", "nowhere")


def test_what_takes_long_is_told_and_may_be_left_out(invoke, run, pictures, tmp_path):
    found = invoke("evaluate", run["run"], "--ood", pictures, "--out", tmp_path)
    assert re.search(r"maxsep: fitting Mahalanobis on [\d,]+ training images", found.stderr)
    assert "maxsep: scoring 6 outliers" in found.stderr
    assert re.search(r"Mahalanobis +\d+\.\d\d%", found.stdout)
    assert "AUPR falls as there are more of them" in found.stdout
    found = invoke("evaluate", run["run"], "--ood", pictures, "--out", tmp_path, "--no-mahalanobis")
    assert "Mahalanobis" not in found.stderr + found.stdout


def test_nothing_is_computed_for_a_folder_without_images(invoke, run, tmp_path, monkeypatch):
    monkeypatch.setattr("maxsep.lab.engine.evaluate", lambda *given, **options: pytest.fail("computed before checking"))
    (tmp_path / "empty").mkdir()
    found = invoke("evaluate", run["run"], "--ood", tmp_path / "empty")
    assert "no image" in str(found.exception) + found.output


def test_outliers_as_json(call, run, pictures):
    told = json.loads(call("evaluate", run["run"], "--ood", pictures, "--ood", f"folder:{pictures}", "--json"))
    (found,) = told["detection"]["sets"].values()
    assert found["count"] == 6
    assert 0 <= found["scores"]["energy"]["full"]["auroc"] <= 1
    assert [Path(path).is_file() for path in told["histograms"]] == [True]
    assert 0 <= told["top1"] <= 1
    assert not (Path(run["run"]) / "detection.json").exists(), "a question is not part of the record"


def test_folders_of_one_name_have_a_histogram_each(call, run, pictures, tmp_path):
    other = tmp_path / "other" / Path(pictures).name
    shutil.copytree(pictures, other)
    told = call("evaluate", run["run"], "--ood", pictures, "--ood", other, "--out", tmp_path / "new")
    files = sorted(path.name for path in (tmp_path / "new").iterdir())
    label = other.name.replace(" ", "-")
    assert files == [f"energy-{label}-2.svg", f"energy-{label}.svg"]
    assert all(name in told for name in files)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--ood", "nowhere"],
            "'nowhere' is neither a folder nor a known set of outliers. Known: svhn, places, cifar10",
        ),
        (["--ood", "shvn"], "Did you mean svhn?"),
        (["--ood", "folder:nowhere"], "nowhere is not a folder"),
        (["--ood", "unknown"], "'digits' is no split such as osr_cifar10_0"),
        (["--ood", "svhn"], "svhn needs a data folder"),
        (["--device", "tpu"], "unknown device 'tpu'. Known: auto, cpu, cuda"),
    ],
)
def test_outliers_that_are_not_there(run, refuse, arguments, message):
    assert message in refuse("evaluate", run["run"], *arguments)


@pytest.fixture
def with_damage(pictures, tmp_path):
    """The pictures, and files among them that cannot be read."""
    folder = tmp_path / "damaged"
    shutil.copytree(pictures, folder)
    (folder / "0.png").write_bytes(b"no image")
    (folder / "empty.jpg").touch()
    (folder / "clip.mp4").write_bytes(b"moving")
    (folder / "sub").mkdir()
    (folder / "sub" / "cut.png").write_bytes((pictures / "1.png").read_bytes()[:40])
    return folder


def test_images_that_cannot_be_read_are_left_out_counted_and_named(invoke, run, with_damage, tmp_path):
    found = invoke("evaluate", run["run"], "--ood", with_damage, "--out", tmp_path / "new")
    assert found.exit_code == 0, found.exception
    assert f"(folder:{with_damage}, 5 images)" in found.stdout
    first, *named = [line for line in found.stderr.splitlines() if "scoring" not in line and "fitting" not in line]
    assert first == f"maxsep: left out of folder:{with_damage}: 4 that cannot be read; the first 3 are named:"
    assert [line.split()[1] for line in named] == [str(with_damage / n) for n in ("clip.mp4", "0.png", "empty.jpg")]
    assert all("neither an image" in line or "cannot be read as an image" in line for line in named)


def test_json_names_every_image_that_cannot_be_read_and_why(invoke, run, with_damage, tmp_path):
    found = invoke("evaluate", run["run"], "--ood", with_damage, "--out", tmp_path / "new", "--json")
    (told,) = json.loads(found.stdout)["detection"]["sets"].values()
    assert told["count"] == 5
    left_out = {item["path"]: item["reason"] for item in told["unreadable"]}
    assert sorted(left_out) == [str(with_damage / n) for n in ("0.png", "clip.mp4", "empty.jpg", "sub/cut.png")]
    assert all(path in reason for path, reason in left_out.items())


def test_a_folder_without_a_readable_image_is_an_error(run, refuse, tmp_path):
    (tmp_path / "bad").mkdir()
    assert "bad holds no image that can be read.\n" in refuse("evaluate", run["run"], "--ood", "bad")
    (tmp_path / "bad" / "a.png").write_bytes(b"no image")
    told = refuse("evaluate", run["run"], "--ood", "bad")
    assert "bad holds no image that can be read. The first of 1: bad/a.png cannot be read as an image" in told


def test_missing_outliers_are_downloaded_if_asked(run, refuse, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        "maxsep.lab.data.datasets.ensure", lambda name, root, fetch, progress: asked.append((name, root, fetch))
    )
    told = refuse("evaluate", run["run"], "--ood", "svhn", "--data", tmp_path, "--download")
    assert asked == [("svhn", tmp_path, True)]
    assert "svhn" in told  # nothing was really fetched


def test_bad_input_is_one_clear_line(refuse_in_one_line):
    assert "nowhere" in refuse_in_one_line("evaluate", "nowhere")


def fill(folder, dark, light):
    """Pictures of two classes that differ from one to the next."""
    for name, count, base in (("dark", dark, 0), ("light", light, 150)):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (8, 8), (base + i, base + 3 * i, 90)).save(folder / name / f"{i:02d}.png")


def of_folder(call, tmp_path, monkeypatch):
    """A run on the folder `pictures`, whose loss goes by the training images of every class; and its export."""
    monkeypatch.chdir(tmp_path)
    options = ["--loss", "logit_adjusted", "--epochs", 1, "--network", "mlp", "--device", "cpu", "--json"]
    run = json.loads(call("train", "--dataset", "folder:pictures?size=8", *options))["run"]
    call("export", run, "--out", "model")
    return Path(run), Path("model")


def change(folder):
    """Take most of one class away, and change how bright the pictures are."""
    for path in sorted((folder / "dark").iterdir())[4:]:
        path.unlink()
    Image.new("RGB", (9, 9), (255, 255, 255)).save(folder / "light" / "new.png")


@pytest.mark.parametrize("which", [0, 1], ids=["run", "export"])
def test_training_images_that_changed_do_not_change_the_numbers(call, invoke, tmp_path, monkeypatch, which):
    fill(tmp_path / "pictures" / "train", 30, 12)
    fill(tmp_path / "pictures" / "test", 5, 5)
    source = of_folder(call, tmp_path, monkeypatch)[which]
    before = [invoke("evaluate", source, *more) for more in ([], ["--json"])]
    assert "medium: 1 class with 20 to 100 training images; few: 1 with fewer than 20" in before[0].stdout
    change(tmp_path / "pictures" / "train")
    for more, told in zip(([], ["--json"]), before, strict=True):
        found = invoke("evaluate", source, *more)
        assert (found.exit_code, found.stdout, found.stderr) == (0, told.stdout, "")


@pytest.mark.parametrize("which", [0, 1], ids=["run", "export"])
def test_test_images_that_are_set_aside_anew_are_warned_of(call, invoke, tmp_path, monkeypatch, which):
    fill(tmp_path / "pictures", 30, 12)
    source = of_folder(call, tmp_path, monkeypatch)[which]
    assert invoke("evaluate", source).stderr == ""
    change(tmp_path / "pictures")
    found = invoke("evaluate", source)
    assert "medium: 1 class with 20 to 100 training images; few: 1 with fewer than 20" in found.stdout, "as it was"
    assert found.stderr == (
        f"maxsep: the images of folder:pictures?size=8 have changed since {source} was trained, and with them the test "
        "images, which are set aside anew: some may be among those it was trained on, and flatter every number.\n"
    )


def test_mahalanobis_on_training_images_that_changed_is_warned_of(call, invoke, pictures, tmp_path, monkeypatch):
    fill(tmp_path / "pictures" / "train", 12, 12)
    fill(tmp_path / "pictures" / "test", 5, 5)
    run, _ = of_folder(call, tmp_path, monkeypatch)
    told = f"maxsep: the images of folder:pictures?size=8 have changed since {run} was trained: Mahalanobis is fitted"
    assert told not in invoke("evaluate", run, "--ood", pictures).stderr
    change(tmp_path / "pictures" / "train")
    assert f"{told} on the training images as they are now.\n" in invoke("evaluate", run, "--ood", pictures).stderr
    assert told not in invoke("evaluate", run, "--ood", pictures, "--no-mahalanobis").stderr


def test_an_export_that_does_not_tell_its_training_images_says_so(call, invoke, exported, tmp_path, monkeypatch):
    fill(tmp_path / "pictures" / "train", 30, 12)
    fill(tmp_path / "pictures" / "test", 5, 5)
    _, model = of_folder(call, tmp_path, monkeypatch)

    def untold(folder, device):
        return replace(open_classifier(folder, device), class_counts=(), files=None)

    monkeypatch.setattr("maxsep.lab.serving.open_classifier", untold)
    change(tmp_path / "pictures" / "train")
    found = invoke("evaluate", model)
    assert "(few: 2 classes with fewer than 20 training images)" in found.stdout, "those of now"
    assert found.stderr == (
        "maxsep: model does not say how many training images every class had: the loss, if it goes by them, and the "
        "groups of classes take those of folder:pictures?size=8 as it is now. Export anew.\n"
    )
    assert invoke("evaluate", exported).stderr == "", "a known dataset does not change"


@pytest.mark.parametrize("which", [0, 1], ids=["run", "export"])
def test_other_classes_are_refused(call, refuse, tmp_path, monkeypatch, which):
    fill(tmp_path / "pictures", 6, 6)
    source = of_folder(call, tmp_path, monkeypatch)[which]
    (tmp_path / "pictures" / "light").rename(tmp_path / "pictures" / "bright")
    told = refuse("evaluate", source)
    assert f"folder:pictures?size=8 has other classes than {source}: bright, dark, not dark, light. " in told
