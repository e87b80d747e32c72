"""`maxsep compare`: from one command to a verdict, on real digits and on folders of pictures."""

import json

import pytest
from PIL import Image

from maxsep.cli import compare as module
from maxsep.lab import engine

SHORT = ["--epochs", 2, "--device", "cpu", "--learning-rate", 0.01]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def first(call, place):
    """A comparison on digits, trained once; what it printed."""
    return call("compare", *SHORT, "--runs", place / "runs", "--out", place / "out")


def again(call, place, *more):
    return call("compare", *SHORT, "--runs", place / "runs", "--out", place / "out", *more)


def test_trains_every_method_once_and_writes_the_report(call, first, place):
    results = sorted((place / "runs").glob("*/result.json"))
    assert len(results) == 15
    assert first.endswith(f"report: {place / 'out' / 'report.html'}\n")
    assert (place / "out" / "report.html").is_file()
    before = [path.stat().st_mtime_ns for path in results]
    assert first.rstrip().endswith(again(call, place).strip()), "nothing but the lines of training is missing"
    assert [path.stat().st_mtime_ns for path in results] == before
    # other runs in the folder play no part
    call("train", "--epochs", 1, "--head", "plain", "--seed", 7, "--runs", place / "runs", "--json")
    assert first.rstrip().endswith(again(call, place).strip())


def test_the_same_as_json(call, first, place):
    answer = json.loads(again(call, place, "--json"))
    assert (answer["data"], answer["num_train"], answer["num_test"]) == ("digits", 1198, 599)
    assert (answer["seeds"], answer["missing"], answer["failed"]) == ([0, 1, 2], [], [])
    assert answer["setting"]["network"] == "mlp"
    assert answer["report"] == str(place / "out" / "report.html")


def test_another_seed_trains_only_what_is_new(call, first, place):
    rows = json.loads(again(call, place, "--seeds", 4, "--dry-run", "--json"))
    assert [row["state"] for row in rows] == ["finished"] * 15 + ["new"] * 5


def test_a_dry_run_trains_nothing(call, tmp_path):
    printed = call("compare", *SHORT, "--dry-run", "--runs", tmp_path / "runs", "--out", tmp_path / "out")
    assert len(printed.splitlines()) == 17
    assert not list(tmp_path.iterdir())


def test_the_same_command_continues_after_a_budget(call, tmp_path):
    arguments = ["compare", *SHORT, "--seeds", 1, "--radius", 1, "--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    assert len(json.loads(call(*arguments, "--budget", "0.001s", "--json"))["missing"]) == 3
    assert not (tmp_path / "out").exists()
    call(*arguments, "--budget", "0.001s")
    assert json.loads(call(*arguments, "--budget", "5m", "--json"))["missing"] == []


def test_reading_the_data_counts_as_time(call, tmp_path, monkeypatch):
    clock = iter([0.0, 3600.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock, 3600.0))
    arguments = ["--radius", 1, "--seeds", 1, "--runs", tmp_path / "runs", "--budget", "59m", "--json"]
    assert len(json.loads(call("compare", *SHORT, *arguments))["missing"]) == 3


def test_losses_radii_and_a_long_tail(call, tmp_path):
    options = ["--loss", "cross_entropy,logit_adjusted", "--radius", 1, "--radius", "0.5,1", "--imbalance", 0.1]
    options += ["--seeds", 1, "--runs", tmp_path / "runs", "--dry-run", "--json"]
    names = [row["name"] for row in json.loads(call("compare", *SHORT, *options))]
    assert [name.removeprefix("digits-lt0.1-mlp-").rpartition("-s0-")[0] for name in names] == 2 * [
        "plain", "control", "maxsep", "control-r0.5", "maxsep-r0.5",
    ]  # fmt: skip


def test_ldam_is_compared_by_its_own_heads(call, tmp_path):
    options = ["--loss", "cross_entropy,ldam", "--radius", 1, "--set", "loss.reweight_from=1", "--imbalance", 0.1]
    arguments = ["compare", *SHORT, "--seeds", 2, *options, "--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    call(*arguments)
    specs = [json.loads(path.read_text())["spec"] for path in (tmp_path / "runs").glob("*/result.json")]
    ldam = [spec for spec in specs if spec["loss"] == "ldam"]
    assert {spec["head"] for spec in ldam} == {"cosine", "cosine_maxsep", "centred_cosine", "maxsep_cosine"}
    assert all(spec["loss_options"] == [["reweight_from", 1]] for spec in ldam)
    assert (len(specs), len(ldam)) == (14, 8)


def test_ldam_alone_has_its_own_scale(call, tmp_path):
    rows = json.loads(
        call("compare", *SHORT, "--loss", "ldam", "--seeds", 1, "--runs", tmp_path, "--dry-run", "--json")
    )
    assert len(rows) == 4


def test_two_processes_share_the_runs(call, tmp_path):
    arguments = ["compare", *SHORT, "--seeds", 2, "--runs", tmp_path / "runs", "--out", tmp_path / "out", "--jobs", 2]
    assert json.loads(call(*arguments, "--json"))["missing"] == []
    assert len(list((tmp_path / "runs").glob("*/result.json"))) == 10


def test_a_run_that_fails_is_named_and_the_others_are_compared(invoke, tmp_path, monkeypatch):
    def train(spec, **settings):
        if spec.head == "maxsep":
            raise ArithmeticError("the loss is not finite")
        return real(spec, **settings)

    real = engine.train
    monkeypatch.setattr("maxsep.lab.engine.train", train)
    arguments = ["--seeds", 1, "--radius", 1, "--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    result = invoke("compare", *SHORT, *arguments)
    assert result.exit_code == 1
    assert "not finite" in result.stderr
    assert (tmp_path / "out" / "report.html").is_file()


def write_pictures(folder, sizes=(12, 12)):
    for label, count in enumerate(sizes):
        (folder / f"class{label}").mkdir(parents=True, exist_ok=True)
        for i in range(count):
            image = Image.effect_noise((12, 12), 20 + 3 * i).convert("RGB")
            image.paste((200 * label, 9 * i, 80), (0, 0, 6, 6))
            image.save(folder / f"class{label}" / f"{i:02d}.png")


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "pictures")
    return ["compare", "pictures?size=12", "--network", "mlp", "--seeds", 1, "--radius", 1, *SHORT]


def test_a_folder_of_pictures(call, pictures, tmp_path):
    call(*pictures)
    answer = json.loads(call(*pictures, "--json"))
    assert (answer["data"], answer["class_counts"], answer["num_test"]) == ("folder:pictures?size=12", [10, 10], 4)
    assert (tmp_path / "comparison" / "report.html").is_file()


@pytest.mark.parametrize("seeds", [1, 2])
def test_pictures_that_changed_since_are_refused_before_training(call, refuse, pictures, tmp_path, seeds):
    call(*pictures)
    write_pictures(tmp_path / "pictures", (12, 14))
    arguments = [*pictures, "--seeds", seeds]
    assert "pictures" in refuse(*arguments)
    assert len(list(tmp_path.glob("runs/*/result.json"))) == 3
    call(*arguments, "--runs", "others")


def test_train_gives_the_runs_of_compare_their_names(call, pictures, tmp_path):
    names = {row["name"] for row in json.loads(call(*pictures, "--dry-run", "--json"))}
    options = ["--dataset", "pictures?size=12", "--network", "mlp", *SHORT, "--json"]
    trained = {json.loads(call("train", "--head", head, *options))["run"] for head in ("plain", "control", "maxsep")}
    assert trained == {f"runs/{name}" for name in names}
