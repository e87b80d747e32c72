"""Every recipe for real, on a CPU: one epoch, a handful of images in the official format, the engine's own loop.

Later cases read the runs of earlier ones, so the file runs in one process (`--dist loadfile`).
"""

import shutil
import time

import pytest

from maxsep.lab import grid, recipes
from maxsep.lab.report import write_report


@pytest.fixture(scope="module")
def data(tmp_path_factory, tiny_cifar):
    return tiny_cifar(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module", autouse=True)
def started():
    return time.monotonic()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smoke") / "runs"
    yield folder
    shutil.rmtree(folder)  # a gigabyte of weights that nobody will read


TAIL = "dataset=cifar10,imbalance=0.1"


@pytest.mark.parametrize(
    ("name", "only", "new"),
    [
        ("table1", TAIL, 4),
        ("errorbars", TAIL, 0),
        ("frequency", TAIL, 0),
        ("fisher", TAIL, 0),
        ("fixed", TAIL, 3),
        ("prototypes", TAIL, 2),
        ("demo", None, 15),
    ],
)
def test_recipe(data, runs, name, only, new):
    limits = {"seeds": 1, "epochs": 1, "max_train": 12, "max_test": 10}
    if name == "demo":
        limits = {"seeds": 1, "epochs": 1}
    summary = grid.reproduce(recipes.get(name), only=only, runs=runs, data_root=data, **limits)
    assert summary.failed == []
    assert len(summary.finished) >= new if name == "demo" else len(summary.finished) == new
    assert summary.status == 0


def test_and_its_report(runs, tmp_path):
    text = write_report(runs, tmp_path).read_text()
    for section in ("table1", "other"):
        assert f'<section id="{section}">' in text, section
    assert "not the same experiment" in text


def test_all_of_it_takes_less_than_three_minutes(started):
    assert time.monotonic() - started < 180
