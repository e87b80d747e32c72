"""`maxsep reproduce` and `maxsep demo`."""

import json
import subprocess
import sys
import time

import pytest

from maxsep.cli import reproduce as module
from maxsep.cli.reproduce import show_event
from maxsep.lab.grid import Event
from maxsep.lab.spec import RunSpec, options

SHORT = ["--seeds", 1, "--epochs", 1, "--device", "cpu"]


def test_plans_trains_and_resumes(call, tmp_path):
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


def test_two_processes_share_the_runs(call, tmp_path):
    arguments = ["reproduce", "demo", "--seeds", 2, "--epochs", 1, "--device", "cpu", "--runs", tmp_path]
    arguments += ["--only", "head=plain", "--jobs", 2, "--out", tmp_path / "page"]
    printed = call(*arguments)
    names = [path.parent.name for path in tmp_path.glob("*/result.json")]
    assert len(names) > 1
    for name in names:
        assert printed.count(name) == 1
    assert (tmp_path / "page" / "report.html").is_file()


def test_data_are_checked_before_training_and_options_reach_the_grid(call, tmp_path, monkeypatch):
    checked, settings = [], []
    reproduce = module.grid.reproduce
    monkeypatch.setattr(module.grid, "check_data", lambda specs, **more: checked.append(more["download"]))
    monkeypatch.setattr(
        module.grid, "reproduce", lambda recipe, **more: settings.append(more) or reproduce(recipe, **more)
    )
    call(
        "reproduce", "demo", *SHORT, "--only", "head=plain", "--runs", tmp_path, "--download", "--precision", "64-true"
    )
    assert checked == [settings[0]["download"]] == [True]
    assert settings[0]["precision"] == "64-true"


@pytest.mark.parametrize("kind", ["start", "finished", "failed", "postponed", "elsewhere", "skipped"])
def test_every_event_but_a_skipped_run_is_a_line(capsys, kind):
    spec = RunSpec(loss="logit_adjusted", loss_options=options(tau=2.0))
    show_event(Event(kind, spec, 2, 4, 3.6, "no memory"))
    printed = capsys.readouterr().out
    assert printed.startswith("[2/4] ") == (kind != "skipped")
    assert (spec.title in printed) == (kind in ("start", "postponed", "elsewhere"))


def test_demo_ends_with_the_path_of_its_report(call, tmp_path):
    printed = call("demo", "--out", tmp_path, "--seeds", 1, "--epochs", 1)
    assert printed.rstrip().endswith(str(tmp_path / "report.html"))
    assert (tmp_path / "report.html").is_file()


def test_the_whole_demo_takes_less_than_two_minutes(tmp_path):
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "maxsep", "demo", "--out", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Mixed Precision" not in done.stdout + done.stderr
    assert time.monotonic() - start < 120
