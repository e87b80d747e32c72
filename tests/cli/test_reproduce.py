"""`maxsep reproduce` and `maxsep demo`."""

import json
import re
import subprocess
import sys
import time

import pytest

from maxsep.cli import reproduce as module
from maxsep.lab.grid import format_seconds

SHORT = ["--seeds", 1, "--epochs", 1, "--device", "cpu"]


def test_plans_trains_and_resumes(call, refuse, tmp_path, monkeypatch):
    arguments = ["reproduce", "demo", *SHORT, "--runs", tmp_path, "--only", "head=plain"]
    planned = json.loads(call(*arguments, "--dry-run", "--json"))
    assert {row["state"] for row in planned} == {"new"}
    assert len(call(*arguments, "--dry-run").splitlines()) == len(planned) + 2
    assert not list(tmp_path.iterdir())
    answer = json.loads(call(*arguments, "--budget", "0.001s", "--json"))
    assert (answer["finished"], len(answer["postponed"])) == ([], len(planned))
    answer = json.loads(call(*arguments, "--budget", "5m", "--json"))
    assert (answer["failed"], len(answer["finished"])) == ([], len(planned))
    assert answer["report"] == str(tmp_path / "report" / "report.html")
    again = json.loads(call(*arguments, "--json"))
    assert (again["finished"], len(again["skipped"])) == ([], len(planned))
    weights = next(tmp_path.glob("*/weights.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert str(weights) in refuse(*arguments)
    weights.unlink()
    monkeypatch.setattr(module, "default_precision", lambda device, on_gpu: "bf16-mixed")
    with pytest.warns(UserWarning, match="finished in 32-true"):
        assert {row["state"] for row in json.loads(call(*arguments, "--dry-run", "--json"))} == {"new"}


@pytest.mark.parametrize("verb", ["reproduce", "compare"])
def test_a_budget_that_is_too_short_is_announced_before_training(invoke, tmp_path, verb):
    dataset = ["demo", "--only", "head=plain"] if verb == "reproduce" else ["digits", "--learning-rate", 0.1]
    arguments = [verb, *dataset, "--seeds", 2, "--epochs", 1, "--device", "cpu", "--runs", tmp_path]
    planned = json.loads(invoke(*arguments, "--dry-run", "--json").stdout)
    total = sum(row["seconds"] for row in planned)
    for share, needed in ((2, None), (0.75, total), (0.25, total / 2)):  # what all runs need, or those of one seed
        warned = invoke(*arguments, "--dry-run", "--budget", f"{share * total}s").stderr
        assert warned.count("\n") == (needed is not None)
        assert needed is None or format_seconds(needed) in warned
    assert format_seconds(total / 2) in invoke(*arguments, "--budget", "0.001s").stderr
    assert not list(tmp_path.glob("*/result.json"))


def test_data_are_checked_before_training_and_options_reach_the_grid(call, tmp_path, monkeypatch):
    checked, settings = [], []
    reproduce = module.grid.reproduce
    monkeypatch.setattr(module.grid, "check_data", lambda specs, **more: checked.append(more["download"]))
    noted = lambda recipe, **more: settings.append(more) or reproduce(recipe, **more)  # noqa: E731
    monkeypatch.setattr(module.grid, "reproduce", noted)
    options = ["--only", "head=plain", "--runs", tmp_path, "--download", "--precision", "64-true", "--jobs", 2]
    printed = call("reproduce", "demo", "--seeds", 2, *SHORT[2:], *options)
    names = [path.parent.name for path in tmp_path.glob("*/result.json")]
    assert [printed.count(name) for name in names] == [1, 1]
    assert checked == [settings[0]["download"]] == [True]
    assert (settings[0]["precision"], settings[0]["jobs"]) == ("64-true", 2)


def test_demo_writes_a_report_and_ends_with_its_table(call, tmp_path):
    report, _, table = call("demo", "--out", tmp_path, "--seeds", 1, "--epochs", 1).partition("report.html\n")
    assert report.endswith(f"{tmp_path}/")
    assert all(re.search(rf"^ *{name}.* \d+\.\d\d", table, re.M) for name in ("linear", "maxsep", "control"))
    assert (tmp_path / "report.html").is_file()


def test_the_whole_demo_takes_less_than_two_minutes(tmp_path):
    start = time.monotonic()
    command = [sys.executable, "-m", "maxsep", "demo", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Mixed Precision" not in done.stdout + done.stderr
    assert time.monotonic() - start < 120
