"""The command line as a user meets it: what it prints, what it writes, and how it refuses."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from maxsep.cli.app import app

VERBS = ["demo", "train", "reproduce", "evaluate", "predict", "export", "report", "matrix", "bench"]
runner = CliRunner()


def call(*arguments):
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def refuse(folder, *arguments):
    """Run the real program in an empty folder; bad input must be one line on stderr, exit code 2, and no file."""
    command = [sys.executable, "-m", "maxsep", *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert found.returncode == 2, found
    assert "Traceback" not in found.stderr
    return found.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    return json.loads(call("train", "--epochs", 2, "--batch-size", 128, "--runs", runs, "--json"))


def options(verb):
    text = re.sub(r"\x1b\[[0-9;]*m", "", call(verb, "--help"))
    return set(re.findall(r"(--[a-z][a-z-]*)", text)) - {"--help"}


def test_every_verb_has_help_with_an_example():
    for verb in VERBS:
        assert f"maxsep {verb}" in " ".join(call(verb, "--help").split())


def test_options_are_frozen():
    """A new option is a promise: add it here when it is meant."""
    shared = {"--data", "--download", "--no-download", "--runs", "--device", "--fast", "--no-fast", "--json"}
    assert options("matrix") == {"--draw", "--json"}
    shown = {"--classes", "--batch", "--features", "--threads", "--quick", "--out"}
    assert options("bench") == shown | {"--device", "--json"}
    assert options("report") == {"--out", "--title"}
    assert options("evaluate") == {"--data", "--ood", "--out", "--device", "--json"}
    assert options("predict") == {"--score", "--threshold", "--top", "--device", "--json"}
    assert options("export") == {"--out", "--format"}
    assert options("demo") == {"--out", "--seeds", "--epochs"}
    assert options("reproduce") >= shared | {"--only", "--seeds", "--epochs", "--budget", "--dry-run", "--precision"}
    assert options("train") >= shared | {"--dataset", "--imbalance", "--network", "--head", "--radius", "--seed"}
    assert options("train") >= {"--validation", "--calibration"}


def test_version():
    assert re.fullmatch(r"maxsep \d+\.\d+\.\d+\n", call("--version"))


def test_matrix_small_and_large(tmp_path):
    assert "109.4712 degrees" in call("matrix", 4)
    assert "0.94281" in call("matrix", 4)
    assert "381,469" in call("matrix", 1_000_000) or "MiB" in call("matrix", 1_000_000)
    told = json.loads(call("matrix", 1000, "--json"))
    assert told["angle"] == pytest.approx(90.0574, abs=1e-4)
    assert told["norm_error"] < 1e-14
    call("matrix", 3, "--draw", tmp_path / "plane.svg")
    assert (tmp_path / "plane.svg").read_text().startswith("<svg")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of black and white pictures, which are no digits."""
    folder = tmp_path_factory.mktemp("my pictures")
    for number in range(6):
        Image.new("RGB", (20, 16), (255 * (number % 2),) * 3).save(folder / f"{number}.png")
    return folder


def test_evaluate_tells_outliers_in_a_table_and_a_histogram(run, pictures, tmp_path):
    told = call("evaluate", run["run"], "--ood", pictures, "--out", tmp_path / "new", "--device", "cpu")
    assert f"outliers: {pictures}" in told
    assert re.search(r"energy, centred +\d+\.\d\d% +\d+\.\d\d% +\d+\.\d\d%", told)
    assert "mean gap of the negative energy" in told
    (svg,) = (tmp_path / "new").iterdir()
    assert str(svg) in told
    assert "mean gap" in svg.read_text()


def test_outliers_as_json(run, pictures):
    told = json.loads(call("evaluate", run["run"], "--ood", pictures, "--ood", f"folder:{pictures}", "--json"))
    (found,) = told["detection"]["sets"].values()
    assert found["count"] == 6
    assert 0 <= found["scores"]["energy"]["full"]["auroc"] <= 1
    assert [Path(path).is_file() for path in told["histograms"]] == [True]
    assert 0 <= told["top1"] <= 1
    assert not (Path(run["run"]) / "detection.json").exists(), "a question is not part of the record"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ood", "nowhere"], "nowhere is not a folder"),
        (["--ood", "unknown"], "'digits' is no split such as osr_cifar10_0"),
        (["--ood", "svhn"], "svhn needs a data folder"),
        (["--device", "tpu"], "unknown device 'tpu'. Known: auto, cpu, cuda"),
    ],
)
def test_outliers_that_are_not_there(run, tmp_path, arguments, message):
    assert message in refuse(tmp_path, "evaluate", run["run"], *arguments)


def test_train_writes_a_run_and_evaluate_reads_it(run):
    assert 0.5 < run["metrics"]["top1"] <= 1
    told = call("evaluate", run["run"])
    assert "top-1" in told
    assert "calibration error" in told
    again = json.loads(call("evaluate", run["run"], "--json"))
    assert again["top1"] == pytest.approx(run["metrics"]["top1"], abs=1e-9)


def test_a_record_without_weights_tells_its_stored_numbers(run, tmp_path):
    for name in ("spec.json", "metrics.jsonl", "result.json"):
        shutil.copy(Path(run["run"]) / name, tmp_path)
    found = runner.invoke(app, ["evaluate", str(tmp_path)])
    assert found.exit_code == 0
    assert f"{tmp_path} was kept without its weights" in found.stderr
    assert f"top-1 {run['metrics']['top1']:.2%}" in found.stdout
    found = runner.invoke(app, ["evaluate", str(tmp_path), "--json"])
    assert json.loads(found.stdout)["top1"] == run["metrics"]["top1"]


def test_a_run_that_diverges_leaves_its_reason(tmp_path):
    found = runner.invoke(app, ["train", "--learning-rate", "1e30", "--runs", str(tmp_path / "runs"), "--json"])
    assert isinstance(found.exception, ArithmeticError)
    call("report", tmp_path / "runs", "--out", tmp_path)
    (problem,) = json.loads((tmp_path / "report.json").read_text())["problems"]
    assert problem["kind"] == "failed"
    assert problem["reason"].startswith("NonFiniteError: ")


def test_downloads_are_asked_for(run, tmp_path, monkeypatch):
    asked = []

    def train(spec, **settings):
        asked.append(settings.get("download"))
        return run["run"]

    monkeypatch.setattr("maxsep.lab.engine.train", train)
    call("train", "--runs", tmp_path)
    call("train", "--runs", tmp_path, "--download")
    assert asked == [None, True]
    monkeypatch.setattr("maxsep.lab.grid.check_data", lambda specs, **settings: asked.append(settings["download"]))
    only = ["--only", "validation=0,head=plain", "--seeds", 1]
    call("reproduce", "demo", "--runs", Path(run["run"]).parent, "--out", tmp_path, "--download", "--json", *only)
    assert asked[2:] == [True, True], "the check and the run"


def test_other_libraries_keep_quiet(tmp_path):
    arguments = ["reproduce", "demo", "--seeds", "1", "--epochs", "1", "--precision", "bf16-mixed", "--device", "cpu"]
    command = [sys.executable, "-m", "maxsep", *arguments, "--only", "validation=0,head=plain", "--runs", tmp_path]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "1 trained" in found.stdout
    assert "Automatic Mixed Precision" not in found.stdout + found.stderr


def test_report_of_a_run(run, tmp_path):
    page = call("report", run["run"], "--out", tmp_path, "--title", "Mine").strip()
    assert "Mine" in (tmp_path / "report.html").read_text()
    assert page.endswith("report.html")


def test_reproduce_plans_runs_and_goes_on(tmp_path):
    arguments = ["reproduce", "demo", "--seeds", 1, "--epochs", 1, "--runs", tmp_path, "--only", "validation=0,seed=0"]
    planned = json.loads(call(*arguments, "--dry-run", "--json"))
    assert {row["state"] for row in planned} == {"new"}
    assert not list(tmp_path.iterdir())
    assert "runs to train, about" in call(*arguments, "--dry-run")
    told = json.loads(call("reproduce", "demo", "--seeds", 1, "--epochs", 1, "--runs", tmp_path, "--json"))
    assert told["failed"] == []
    assert len(told["finished"]) >= len(planned)
    assert (tmp_path / "report" / "report.html").is_file()
    again = call("reproduce", "demo", "--seeds", 1, "--epochs", 1, "--runs", tmp_path)
    assert again.startswith("0 trained")


def test_demo_ends_with_the_path_of_a_report(tmp_path):
    told = call("demo", "--out", tmp_path, "--seeds", 1, "--epochs", 1)
    assert "10 classes: any two class vectors  96.3794 degrees apart" in told
    assert (tmp_path / "report.html").is_file()
    assert {"plane.svg", "space.svg"} <= {path.name for path in (tmp_path / "figures").iterdir()}
    assert str(tmp_path / "report.html") in told.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["matrix", 1], "num_classes must be at least 2, got 1"),
        (["matrix", 10**12], "1,000,000,000,000 classes need about 74,505.8 GiB of memory"),
        (["matrix", 7, "--draw", "x.svg"], "only 3 classes (a plane) and 4 classes (space) can be drawn, got 7"),
        (["train", "--head", "nope"], "unknown head 'nope'. Known: "),
        (["train", "--dataset", "nope"], "nope"),
        (["train", "--imbalance", 2], "imbalance must be a number in (0, 1]"),
        (["train", "--radius", 0], "radius must be a positive finite number, got 0.0"),
        (["reproduce", "nope"], "unknown recipe 'nope'. Known recipes: table1"),
        (["reproduce", "table1", "--budget", "soon"], "cannot read 'soon' as a time budget"),
        (["reproduce", "table1", "--only", "imbalance=0.5", "--dry-run"], "no run matches"),
        (["reproduce", "table1", "--data", "nowhere", "--runs", "nothing"], "cifar100 is not in nowhere"),
        (["evaluate", "nowhere"], "nowhere"),
        (["train", "--calibration", 1], "calibration must be a fraction in [0, 1), got 1.0"),
        (["predict", "nowhere", "a.png"], "nowhere is neither a finished run"),
        (["export", "nowhere", "--out", "model"], "nowhere holds no finished run"),
        (["report", "nowhere"], "nowhere is not a folder"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_input_is_one_clear_line(arguments, told, tmp_path):
    message = refuse(tmp_path, *arguments)
    assert told in message
    assert message.startswith("maxsep: ")
    assert message.count("\n") == 1
    assert not list(tmp_path.iterdir()), "a refused command leaves nothing behind"
