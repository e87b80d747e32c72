"""Verbs that are ended at random moments go on to the same bits; and what a machine can refuse. See `kills.py`."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from maxsep.lab.run import find_runs

TRAIN = ("train", "--epochs", 4, "--batch-size", 64, "--device", "cpu", "--set", "max_train=300", "--json")


def check(count, seed):
    command = [sys.executable, Path(__file__).with_name("kills.py"), "--count", str(count), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("{"), done.stderr
    found = json.loads(done.stdout)
    assert found["failures"] == []
    assert found["kills"] == count
    assert found["completed"] >= count // 4


@pytest.mark.slow
def test_fifteen_kills():
    check(15, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 21))
def test_three_hundred_kills(seed):
    check(15, seed)


def maxsep(*arguments, prefix=()):
    command = [*prefix, sys.executable, "-m", "maxsep", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def check_refused(done, *words):
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("maxsep: ")]
    assert any(word in lines[-1].lower() for word in words), done.stderr
    assert "Traceback" not in done.stderr


def weights(runs):
    (run,) = find_runs(runs)
    return load_file(run.folder / "weights.safetensors"), run.metrics["top1"]


def same(ours, theirs):
    return ours[1] == theirs[1] and all((ours[0][key] == theirs[0][key]).all() for key in theirs[0])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    assert maxsep(*TRAIN, "--runs", folder).returncode == 0
    return weights(folder)


@pytest.fixture
def mount(tmp_path):
    """A small file system of its own, and a function that mounts it with other options."""
    disk = tmp_path / "disk"
    disk.mkdir()
    run = lambda *words: subprocess.run(words, check=True, capture_output=True)  # noqa: E731
    try:
        run("mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", disk)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a file system can be mounted by root only")
    yield disk, lambda options: run("mount", "-o", f"remount,{options}", disk)
    run("umount", "--lazy", disk)


@pytest.mark.nightly
def test_a_full_and_a_read_only_disk_are_one_line_and_the_run_goes_on(undisturbed, mount):
    disk, remount = mount
    check_refused(maxsep(*TRAIN, "--runs", disk / "runs"), "no space")
    assert not list(disk.rglob("weights.safetensors"))
    remount("size=50m,ro")
    check_refused(maxsep(*TRAIN, "--runs", disk / "runs"), "read-only")
    remount("size=50m,rw")
    done = maxsep(*TRAIN, "--runs", disk / "runs")
    assert done.returncode == 0, done.stderr
    assert same(weights(disk / "runs"), undisturbed)
    remount("ro")
    (run,) = find_runs(disk / "runs")
    check_refused(maxsep("export", run.folder, "--out", disk / "model"), "read-only")
    check_refused(maxsep("report", disk / "runs", "--out", disk / "page"), "read-only")


LIMITED = """
import resource, sys
from maxsep.cli import app, main, train
import lightning_fabric, rich.progress, sklearn.datasets, torch._dynamo
held = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize"))) << 10
resource.setrlimit(resource.RLIMIT_AS, (held + (int(sys.argv.pop(1)) << 20),) * 2)
main()
"""


@pytest.mark.nightly
def test_too_little_memory_is_one_line_and_the_run_goes_on(undisturbed, tmp_path):
    large = [*TRAIN, "--network", "resnet152", "--batch-size", 300]
    command = [sys.executable, "-c", LIMITED, "300", *large, "--runs", tmp_path]
    check_refused(subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False), "memory")
    assert not list(tmp_path.rglob("weights.safetensors"))
    assert maxsep(*TRAIN, "--runs", tmp_path / "small").returncode == 0
    assert same(weights(tmp_path / "small"), undisturbed)


@pytest.mark.nightly
def test_a_clock_that_is_set_back_changes_nothing(undisturbed, tmp_path):
    """The run is stopped; then all that it left comes from the future, the newest file being the oldest."""
    first = subprocess.Popen(
        [sys.executable, "-m", "maxsep", *map(str, TRAIN), "--runs", tmp_path], stderr=subprocess.PIPE, text=True
    )
    while not list(tmp_path.glob("*/spec.json")):
        assert first.poll() is None
        time.sleep(0.01)
    first.terminate()
    first.communicate()
    for age, path in enumerate(sorted(tmp_path.rglob("*"))):
        os.utime(path, (4e9 - age, 4e9 - age))
    assert maxsep(*TRAIN, "--runs", tmp_path).returncode == 0
    assert same(weights(tmp_path), undisturbed)
