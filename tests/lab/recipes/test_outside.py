"""Detection, open sets and features in the plane for real, on a CPU: one epoch, a handful of made-up images."""

import dataclasses
import json
import pickle

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from maxsep.lab import grid, recipes
from maxsep.lab.engine.schedules import learning_rate
from maxsep.lab.recipes import paper
from maxsep.lab.recipes.after import Detect
from maxsep.lab.report import render

LIMITS = {"seeds": 1, "epochs": 1, "max_train": 102, "max_test": 10}


def write_cifar(root, folder, parts, key, classes, meta):
    rng = np.random.default_rng(0)
    (root / folder).mkdir()
    for part in parts:
        images = rng.integers(0, 256, (2 * classes, 3072), dtype=np.uint8)
        batch = {"data": images, key: [i % classes for i in range(2 * classes)]}
        (root / folder / part).write_bytes(pickle.dumps(batch, protocol=2))
    (root / folder / meta[0]).write_bytes(pickle.dumps({meta[1]: [f"class {i}" for i in range(classes)]}, protocol=2))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    ten = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
    write_cifar(root, "cifar-10-batches-py", ten, "labels", 10, ("batches.meta", "label_names"))
    write_cifar(root, "cifar-100-python", ("train", "test"), "fine_labels", 100, ("meta", "fine_label_names"))
    rng = np.random.default_rng(1)
    (root / "svhn").mkdir()
    for part in ("train", "test"):
        images = rng.integers(0, 256, (32, 32, 3, 40), dtype=np.uint8)
        savemat(root / "svhn" / f"{part}_32x32.mat", {"X": images, "y": np.arange(40)[:, None] % 10 + 1})
    (root / "places365").mkdir()
    (root / "places365" / "ORIGIN.txt").write_text("MiniPlaces validation\n")
    for number in range(12):
        pixels = rng.integers(0, 256, (48, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "places365" / f"val_{number}.png")
    return root


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("outside") / "runs"


def reproduce(name, only, data, runs):
    recipe = recipes.get(name)
    if name == "ood":  # two of the seven steps: the others cost as much and say nothing new
        wish = dataclasses.replace(recipe.after.wish, magnitudes=(0.0, 0.001))
        recipe = dataclasses.replace(recipe, after=Detect(wish))
    grid.check_data(recipe.specs(1, only=only), after=recipe.after, runs=runs, data_root=data)
    return grid.reproduce(recipe, only=only, runs=runs, data_root=data, **LIMITS)


@pytest.mark.parametrize(
    ("name", "only", "new"),
    [
        ("ood", "head=maxsep,optimiser=sgd,radius=1", 1),
        ("openset", "dataset=osr_cifar+_0|osr_svhn_2,head=plain|maxsep,radius=1", 4),
        ("features2d", None, 2),
    ],
)
def test_recipe(data, runs, name, only, new):
    summary = reproduce(name, only, data, runs)
    assert summary.failed == []
    assert len(summary.finished) == new
    assert (summary.status, summary.notes) == (0, [])


def test_what_the_runs_leave_behind(runs):
    (ood,) = runs.glob("cifar100-wrn40_2-maxsep-*/detection.json")
    record = json.loads(ood.read_text())
    assert list(record["sets"]) == ["svhn", "places", "cifar10"]
    assert record["sets"]["places"]["origin"] == "MiniPlaces validation"
    assert record["sets"]["svhn"]["origin"] == "SVHN test, not the official file"
    (cifar,) = runs.glob("osr_cifar+_0-vgg32-plain-*/detection.json")
    assert list(json.loads(cifar.read_text())["sets"]) == ["cifar+10", "cifar+50"]
    for folder in runs.glob("osr_cifar10_0-*"):
        assert list(json.loads((folder / "features.json").read_text())["epochs"]) == ["1"]
        assert json.loads((folder / "metrics.jsonl").read_text())["norm_unknown"] > 0


def test_nothing_is_done_twice(data, runs):
    before = {path: path.stat().st_mtime_ns for path in runs.glob("*/detection.json")}
    summary = reproduce("openset", "dataset=osr_svhn_2,head=plain,radius=1", data, runs)
    assert (len(summary.finished), len(summary.skipped)) == (0, 1)
    assert {path: path.stat().st_mtime_ns for path in runs.glob("*/detection.json")} == before
