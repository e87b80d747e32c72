import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_reproduce_plans_runs_and_goes_on(call, tmp_path):
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


def test_downloads_are_asked_for(call, run, asked, tmp_path, monkeypatch):
    checked = []
    monkeypatch.setattr("maxsep.lab.grid.check_data", lambda specs, **settings: checked.append(settings["download"]))
    only = ["--only", "validation=0,head=plain", "--seeds", 1]
    call("reproduce", "demo", "--runs", Path(run["run"]).parent, "--out", tmp_path, "--download", "--json", *only)
    assert (checked, [settings.get("download") for _, settings in asked]) == ([True], [True])


def test_a_budget_starts_no_run_that_does_not_fit(call, tmp_path):
    arguments = ["reproduce", "demo", "--seeds", 1, "--epochs", 1, "--runs", tmp_path, "--only", "validation=0,seed=0"]
    told = json.loads(call(*arguments, "--budget", "0.001s", "--json"))
    assert told["finished"] == []
    assert told["failed"] == []
    assert not list(tmp_path.glob("digits-*/result.json"))
    assert json.loads(call(*arguments, "--budget", "5m", "--json"))["finished"]


def test_other_libraries_keep_quiet(tmp_path):
    arguments = ["reproduce", "demo", "--seeds", "1", "--epochs", "1", "--precision", "bf16-mixed", "--device", "cpu"]
    command = [sys.executable, "-m", "maxsep", *arguments, "--only", "validation=0,head=plain", "--runs", tmp_path]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "1 trained" in found.stdout
    assert "Automatic Mixed Precision" not in found.stdout + found.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nope"], "unknown recipe 'nope'. Known recipes: table1"),
        (["table1", "--budget", "soon"], "soon"),
        (["table1", "--only", "imbalance=0.5", "--dry-run"], "no run matches"),
        (["table1", "--data", "nowhere", "--runs", "nothing"], "is not in nowhere"),
    ],
)
def test_bad_input_is_one_clear_line(refuse_in_one_line, arguments, told):
    assert told in refuse_in_one_line("reproduce", *arguments)
