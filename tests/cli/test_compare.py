"""`maxsep compare`: from one command to a verdict, on real digits and on folders of pictures."""

import json
from pathlib import Path

import pytest
from class_folders import write_classes
from PIL import Image

from maxsep.cli import compare as module
from maxsep.lab.data import ImageSet

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


def test_a_dry_run_lists_the_search_unless_its_budget_has_no_room(call, tmp_path):
    options = ["--seeds", 1, "--radius", 1, "--runs", tmp_path, "--dry-run", "--json", "--budget"]
    short, long = (json.loads(call("compare", "--device", "cpu", *options, budget)) for budget in ("1s", "9h"))
    assert len(short) == 3 < len(long)


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


def test_losses_radii_and_a_long_tail_in_a_dry_run(call, tmp_path):
    options = ["--loss", "cross_entropy,logit_adjusted", "--radius", 1, "--radius", "0.5,1", "--imbalance", 0.1]
    options += ["--seeds", 1, "--runs", tmp_path / "runs", "--dry-run", "--json"]
    names = [row["name"] for row in json.loads(call("compare", *SHORT, *options))]
    assert [name.removeprefix("digits-lt0.1-mlp-").rpartition("-s0-")[0] for name in names] == 2 * [
        "plain", "control", "maxsep", "control-r0.5", "maxsep-r0.5",
    ]  # fmt: skip
    assert not list(tmp_path.iterdir()), "nothing is trained"


def test_the_radius_is_chosen_on_held_out_images(call, tmp_path):
    options = ["--radius", "auto", "--seeds", 1, "--runs", tmp_path / "runs", "--out", tmp_path / "out", "--json"]
    answer = json.loads(call("compare", *SHORT, *options))
    radii = {entry["radius"] for entry in answer["search"]}
    assert radii == {1.0, 0.3, 0.1}
    chosen = {method["radius"] for method in answer["methods"] if method["head"] == "maxsep"}
    assert len(chosen) == 1
    assert chosen < radii
    trained = json.loads(call("train", *SHORT, *options[:2], "--runs", tmp_path / "train", "--json"))
    assert Path(trained["run"]).parent == tmp_path / "train"
    assert trained["search"]["radius"] in radii


def test_a_run_that_fails_is_named_and_the_others_are_compared(invoke, tmp_path, diverge):
    diverge(lambda spec: spec.head == "maxsep")
    arguments = ["--seeds", 1, "--radius", 1, "--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    result = invoke("compare", *SHORT, *arguments)
    assert result.exit_code == 1
    assert "not finite" in result.stderr
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path / "pictures", (12, 12), dark=12, light=12)
    return ["compare", "pictures?size=12", "--network", "mlp", "--seeds", 1, "--radius", 1, *SHORT]


def test_the_test_images_are_seen_once_the_search_is_over(call, tmp_path, monkeypatch):
    """By the networks and by the reference. They alone are white."""
    monkeypatch.setattr("maxsep.lab.search.NUM_RATES", 3)
    for part, shades in (("train", (0, 160)), ("test", (255, 255))):
        for name, shade in zip(("dark", "light"), shades, strict=True):
            (tmp_path / "own" / part / name).mkdir(parents=True)
            for i in range(10 if part == "train" else 3):
                image = Image.new("L", (8, 8), min(shade + i, 255))
                image.save(tmp_path / "own" / part / name / f"{i}.png")
    batches, trials_before = ImageSet.batches, []

    def watched(self, size):
        for images in batches(self, size):
            if bool((images == 255).all()):
                trials_before.append(len(list((tmp_path / "runs" / "search").glob("*/result.json"))))
            yield images

    monkeypatch.setattr(ImageSet, "batches", watched)
    options = ["--network", "mlp", "--seeds", 1, "--radius", 1, "--epochs", 2, "--device", "cpu", "--json"]
    places = ["--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    answer = json.loads(call("compare", f"{tmp_path / 'own'}?size=8", *options, *places))
    assert [len(method["trials"]) for method in answer["search"]] == [6, 6, 6]
    assert set(trials_before) == {len(list((tmp_path / "runs" / "search").glob("*/result.json")))}


@pytest.mark.parametrize("seeds", [1, 2])
def test_pictures_that_changed_since_are_refused_before_training(call, refuse, pictures, tmp_path, seeds):
    answer = json.loads(call(*pictures, "--json"))
    assert answer["data"] == f"folder:{tmp_path / 'pictures'}?size=12"
    assert (answer["class_counts"], answer["num_test"]) == ([10, 10], 4)
    assert (tmp_path / "comparison" / "report.html").is_file()
    write_classes(tmp_path / "pictures", (12, 12), dark=12, light=14)
    arguments = [*pictures, "--seeds", seeds]
    assert "pictures" in refuse(*arguments)
    assert len(list(tmp_path.glob("runs/*/result.json"))) == 3
    call(*arguments, "--runs", "others")


def test_train_gives_the_runs_of_compare_their_names(call, pictures, tmp_path):
    names = {row["name"] for row in json.loads(call(*pictures, "--dry-run", "--json"))}
    options = ["--dataset", "pictures?size=12", "--network", "mlp", *SHORT, "--json"]
    trained = {json.loads(call("train", "--head", head, *options))["run"] for head in ("plain", "control", "maxsep")}
    assert trained == {f"runs/{name}" for name in names}
