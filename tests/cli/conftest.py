"""The command line as a user meets it, called in this process: starting the program takes seconds."""

import json

import pytest
from typer.testing import CliRunner

from maxsep.cli import main
from maxsep.cli.app import app


@pytest.fixture(scope="session")
def invoke():
    """Call the program and return the result."""
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="session")
def call(invoke):
    """Call the program, which must succeed, and return what it printed."""

    def ask(*arguments):
        result = invoke(*arguments)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    return ask


@pytest.fixture
def refuse(monkeypatch, capsys):
    """Enter the program as its script does; it must end with exit code 2 and one line on the error stream."""

    def ask(*arguments):
        monkeypatch.setattr("sys.argv", ["maxsep", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        assert (stop.value.code, printed.out) == (2, "")
        assert printed.err.startswith("maxsep: ")
        assert printed.err.count("\n") == 1
        return printed.err

    return ask


@pytest.fixture(scope="session")
def run(call, tmp_path_factory):
    """What `maxsep train --json` prints about a short run on digits."""
    runs = tmp_path_factory.mktemp("runs")
    return json.loads(call("train", "--epochs", 2, "--batch-size", 128, "--runs", runs, "--json"))


@pytest.fixture(scope="session")
def calibrated(call, tmp_path_factory):
    """Likewise for a run that held out images for its thresholds."""
    runs = tmp_path_factory.mktemp("calibrated")
    options = ["--epochs", 10, "--batch-size", 64, "--set", "calibration=0.2", "--device", "cpu"]
    return json.loads(call("train", *options, "--runs", runs, "--json"))
