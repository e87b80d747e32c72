"""The command line as a user meets it, called in this process: starting the program takes seconds."""

import json

import pytest
from typer.testing import CliRunner

from maxsep.cli.app import app
from maxsep.cli.main import main


@pytest.fixture(scope="session")
def invoke():
    """Call the program and give what came of it."""
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="session")
def call(invoke):
    """Call the program, which must succeed, and give what it printed."""

    def ask(*arguments):
        result = invoke(*arguments)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    return ask


@pytest.fixture
def refuse(tmp_path, monkeypatch, capsys):
    """Enter the program in an empty folder as its start script does; bad input must end it with exit code 2."""
    monkeypatch.chdir(tmp_path)

    def ask(*arguments):
        monkeypatch.setattr("sys.argv", ["maxsep", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        told = capsys.readouterr()
        assert (stop.value.code, told.out) == (2, "")
        return told.err

    return ask


@pytest.fixture
def refuse_in_one_line(refuse, tmp_path):
    """As `refuse`; the message is one line, and no file is left behind."""

    def ask(*arguments):
        message = refuse(*arguments)
        assert message.startswith("maxsep: ")
        assert message.count("\n") == 1
        assert not list(tmp_path.iterdir()), "a refused command leaves nothing behind"
        return message

    return ask


@pytest.fixture
def asked(run, monkeypatch):
    """Specs and settings of the runs that were asked for, of which none is trained."""
    found = []
    monkeypatch.setattr("maxsep.lab.engine.train", lambda spec, **more: found.append((spec, more)) or run["run"])
    return found


@pytest.fixture(scope="session")
def run(call, tmp_path_factory):
    """What `maxsep train --json` says about a short run on digits."""
    runs = tmp_path_factory.mktemp("runs")
    return json.loads(call("train", "--epochs", 2, "--batch-size", 128, "--runs", runs, "--json"))


@pytest.fixture(scope="session")
def calibrated(call, tmp_path_factory):
    """Likewise for a run that held out images for its thresholds."""
    runs = tmp_path_factory.mktemp("calibrated")
    options = ["--epochs", 10, "--batch-size", 64, "--calibration", 0.2, "--device", "cpu"]
    return json.loads(call("train", *options, "--runs", runs, "--json"))
