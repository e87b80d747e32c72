import math
import subprocess
import sys
import time

import pytest

from maxsep.cli.demo import SEARCH, TEST, Tally, measured_angle
from maxsep.lab.grid import Event
from maxsep.lab.spec import RunSpec


class Bar:
    """Remembers what a progress display would show."""

    def __init__(self):
        self.shown = {}

    def add_task(self, name, total):
        self.shown[name] = [0, total]
        return name

    def update(self, task, description, completed, total):
        self.shown[task] = [completed, total]


def test_each_run_counts_once_over_both_phases():
    search = [RunSpec(validation=0.25, radius=radius) for radius in (0.1, 1.0)]
    test = [RunSpec(head="plain"), RunSpec(radius=0.1)]
    follow = [test[0], RunSpec(radius=1.0)]
    bar = Bar()
    tally = Tally(bar, [*search, *test])
    assert bar.shown == {SEARCH: [0, 2], TEST: [0, 2]}
    for kind, spec in (*(("start", s) for s in search), *(("finished", s) for s in [*search, *test])):
        tally(Event(kind, spec, 1, 4, 0.0))
    assert bar.shown == {SEARCH: [2, 2], TEST: [2, 2]}
    tally(Event("skipped", follow[0], 1, 2, 0.0))
    tally(Event("start", follow[1], 2, 2, 0.0))
    assert bar.shown[TEST] == [2, 3]
    tally(Event("finished", follow[1], 2, 2, 0.0))
    assert bar.shown == {SEARCH: [2, 2], TEST: [3, 3]}, "five runs, five counts"


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_the_angle_is_that_of_the_matrix(classes):
    assert float(measured_angle(classes)) == pytest.approx(math.degrees(math.acos(-1 / (classes - 1))), abs=1e-4)


def test_a_matrix_that_is_no_simplex_would_show(monkeypatch):
    import torch

    monkeypatch.setattr("maxsep.simplex", lambda classes, dtype: torch.eye(2, 3, dtype=dtype))
    assert measured_angle(3).strip() == "90.0000", "the zero column is orthogonal to all: no formula was asked"


def test_demo_ends_with_the_path_of_a_report(call, tmp_path):
    told = call("demo", "--out", tmp_path, "--seeds", 1, "--epochs", 1)
    assert "10 classes: any two class vectors  96.3794 degrees apart" in told
    assert (tmp_path / "report.html").is_file()
    assert {"plane.svg", "space.svg"} <= {path.name for path in (tmp_path / "figures").iterdir()}
    assert str(tmp_path / "report.html") in told.replace("\n", "")


def test_the_whole_demo_takes_less_than_two_minutes(tmp_path):
    start = time.monotonic()
    command = [sys.executable, "-m", "maxsep", "demo", "--out", tmp_path]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert " trained" in told
    assert time.monotonic() - start < 120
