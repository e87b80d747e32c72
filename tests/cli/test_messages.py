"""What a user is told where something was forgotten, mistyped or done before."""

import json

import pytest
from typer.testing import CliRunner

from maxsep.cli.app import app
from maxsep.lab.engine import load_model

runner = CliRunner()


def call(*arguments):
    return runner.invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    arguments = ["train", "--epochs", 1, "--runs", runs, "--device", "cpu"]
    return arguments, call(*arguments).output


def test_train_names_the_data_and_says_when_there_was_nothing_to_do(trained):
    arguments, first = trained
    assert "1,198 training and 599 test images of 8 x 8" in first
    assert "finished before" not in first
    assert "this run was finished before; nothing was trained" in call(*arguments).output


def test_the_small_network_gets_one_thread(trained):
    arguments, _ = trained
    (record,) = arguments[4].glob("*/result.json")
    assert json.loads(record.read_text())["hardware"]["threads"] == 1


def test_a_damaged_run_and_one_without_weights_are_named(trained, tmp_path):
    import shutil

    (folder,) = trained[0][4].glob("[!.]*/")
    copy = shutil.copytree(folder, tmp_path / "copy")
    weights = copy / "weights.safetensors"
    weights.write_bytes(weights.read_bytes() + b"x")
    result = call("evaluate", copy)
    assert isinstance(result.exception, ValueError)
    assert "weights.safetensors is damaged" in str(result.exception)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="was kept without its weights"):
        load_model(copy)
    assert "there is no folder" in str(call("evaluate", tmp_path / "nowhere").exception)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precision", "fp8"], "unknown precision 'fp8'. Known: 16-mixed, 32-true"),
        (["--budget", "5x"], "cannot read '5x' as a time budget"),
    ],
)
def test_reproduce_checks_its_options_before_it_plans(options, message, tmp_path):
    result = call("reproduce", "demo", "--dry-run", "--runs", tmp_path, *options)
    assert message in str(result.exception)


def test_a_loss_with_margins_wants_cosines(tmp_path):
    result = call("train", "--loss", "ldam", "--runs", tmp_path)
    assert isinstance(result.exception, ValueError)
    assert all(name in str(result.exception) for name in ("'maxsep'", "cosine", "maxsep_cosine"))
    assert list(tmp_path.iterdir()) == []


def test_processes_that_share_the_work_share_the_cores(monkeypatch):
    from maxsep.cli import jobs

    seen = []

    class Process:
        def __init__(self, line, stdout, env):
            seen.append(env["OMP_NUM_THREADS"])

        def wait(self):
            return 0

    monkeypatch.setattr(jobs.subprocess, "Popen", Process)
    monkeypatch.setattr(jobs.os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert jobs.side_by_side(3, ["reproduce", "demo"]) == 0
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    jobs.side_by_side(1, ["reproduce", "demo"])
    assert seen == ["2", "2", "2", "5"]
