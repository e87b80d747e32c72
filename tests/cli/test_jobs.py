"""Several processes that share the runs of one command."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from maxsep.cli import jobs
from maxsep.cli.app import app
from maxsep.lab.recipes import get


def test_two_processes_share_the_runs_and_one_report_comes_of_it(tmp_path):
    arguments = ["reproduce", "demo", "--seeds", "1", "--epochs", "1", "--device", "cpu", "--runs", str(tmp_path)]
    result = CliRunner().invoke(app, [*arguments, "--only", "radius=1", "--jobs", "2", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert len(told["finished"]) == len(get("demo").specs(1, 1, "radius=1")) > 1
    assert told["left"] == []
    assert (tmp_path / "report" / "report.html").is_file() == (told["report"] is not None) is True
    for name in told["finished"]:
        assert json.loads((tmp_path / name / "result.json").read_text())["resumed"] == 0


def test_every_run_is_told_once_by_the_process_that_trains_it(tmp_path):
    arguments = ["reproduce", "demo", "--seeds", "4", "--epochs", "1", "--device", "cpu", "--runs", str(tmp_path)]
    line = [sys.executable, "-m", "maxsep", *arguments, "--only", "radius=1,validation=0", "--jobs", "3", "--no-report"]
    found = subprocess.run(line, capture_output=True, text=True, check=True)
    specs = get("demo").specs(4, 1, "radius=1,validation=0")
    assert len(specs) == 4
    for index, spec in enumerate(specs, 1):
        assert found.stdout.count(f"[{index}/{len(specs)}] {spec.name}  (about ") == 1
        assert found.stdout.count(f"[{index}/{len(specs)}] done in ") == 1


def test_a_process_that_shares_the_work_leaves_summing_up_to_the_first(tmp_path, monkeypatch):
    arguments = ["reproduce", "demo", "--seeds", "1", "--epochs", "1", "--device", "cpu", "--runs", str(tmp_path)]
    arguments += ["--only", "head=plain,validation=0", "--no-report"]
    assert "1 trained, 0 already there" in CliRunner().invoke(app, arguments).output
    monkeypatch.setenv(jobs.SHARED, "1")
    assert CliRunner().invoke(app, arguments).output == ""


def test_every_process_gets_the_command_as_it_was_given(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("maxsep.cli.reproduce.side_by_side", lambda *given, **how: seen.append((given, how)) or 3)
    given = ["reproduce", "demo", "--only", "seed=0", "--epochs", "2", "--runs", str(tmp_path), "--budget", "5m"]
    result = CliRunner().invoke(app, [*given, "--jobs", "4", "--no-download"])
    assert result.exit_code == 3
    ((count, command),), how = [pair[0] for pair in seen], seen[0][1]
    assert (count, how) == (4, {"quiet": False})
    assert command[:2] == ["reproduce", "demo"]
    assert {"--only", "seed=0", "--epochs", "2", "--budget", "5m", "--no-report"} <= set(command)
    assert not {"--jobs", "--json", "--dry-run", "--report"} & set(command)
    assert "0 of" in result.output


def test_an_option_that_was_repeated_is_repeated(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("maxsep.cli.compare.side_by_side", lambda count, line, **how: seen.append(line) or 0)
    monkeypatch.chdir(tmp_path)
    given = ["compare", "digits", "--radius", "0.5", "--radius", "2", "--device", "cpu"]
    result = CliRunner().invoke(app, [*given, "--jobs", "2"])
    assert result.exit_code == 0, result.output
    (line,) = (" ".join(line) for line in seen)
    assert line.startswith("compare digits ")
    assert "--radius 0.5 --radius 2 " in line
    assert "--epochs 30 " in line, "defaults too: one process must not have others"
    assert not any(option in line for option in ("--jobs", "--json", "--out"))


@pytest.mark.parametrize(("codes", "status"), [((0, 0), 0), ((0, 2), 2), ((1, 0), 1)])
def test_the_first_failure_is_the_status_of_all(monkeypatch, codes, status):
    left = iter(codes)

    class Process:
        def __init__(self, *_, **__):
            self.code = next(left)
            self.interrupted = True

        def wait(self):
            if self.interrupted:  # Ctrl-C reaches the children too: wait until they have saved their runs
                self.interrupted = False
                raise KeyboardInterrupt
            return self.code

    monkeypatch.setattr(jobs.subprocess, "Popen", Process)
    assert jobs.side_by_side(2, ["reproduce", "demo"]) == status
