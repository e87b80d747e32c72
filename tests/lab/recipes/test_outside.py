"""Detection, open sets and features in the plane for real, on a CPU: one epoch, a handful of made-up images."""

import dataclasses
import json
import pickle

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from maxsep.lab import grid, recipes
from maxsep.lab.engine.optim import learning_rate
from maxsep.lab.estimate import num_train
from maxsep.lab.recipes.after import Detect
from maxsep.lab.report import write_report

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
        protocol = dataclasses.replace(recipe.after.protocol, magnitudes=(0.0, 0.001))
        recipe = dataclasses.replace(recipe, after=Detect(protocol))
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
    assert record["sets"]["svhn"]["origin"] == "SVHN test"
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


def test_the_report_has_all_three(runs, tmp_path):
    text = write_report(runs, tmp_path).read_text()
    for section in ("ood", "open-set", "features"):
        assert f'<section id="{section}">' in text, section
    for part in ("MiniPlaces validation", "SVHN test", "paper 85.42", "paper 98.33"):
        assert part in text, part
    assert "not the same experiment" in text


def test_the_protocol_of_ood():
    specs = recipes.get("ood").specs()
    assert {spec.seed for spec in specs} == {1, 2, 3}
    arms = {("plain", 1.0), ("maxsep", 1.0), ("scaled", 0.1), ("maxsep", 0.1)}
    for optimiser in ("sgd", "adamw"):
        assert {(s.head, s.radius) for s in specs if s.optimiser == optimiser} == arms
    for spec in (s for s in specs if s.optimiser == "sgd"):
        told = (spec.dataset, spec.network, spec.epochs, spec.batch_size, spec.augmentation, spec.normalisation)
        assert told == ("cifar100", "wrn40_2", 100, 128, "crop_flip", "cifar10_255")
        told = (spec.learning_rate, spec.momentum, spec.nesterov, spec.weight_decay, spec.precision)
        assert told == (0.1, 0.9, True, 5e-4, "32-true")
        assert learning_rate(spec, 99, 390, 391) == pytest.approx(1e-6)
    protocol = recipes.get("ood").after.protocol
    assert (protocol.outliers, protocol.draw, protocol.repeats) == (("svhn", "places", "cifar10"), 2000, 10)
    assert protocol.magnitudes == (0, 0.01, 0.005, 0.002, 0.0014, 0.001, 0.0005)


def test_the_protocol_of_openset():
    specs = recipes.get("openset").specs()
    assert len(specs) == 15 * 4, "CIFAR+10 and CIFAR+50 share their models"
    first = [f"osr_{name}_0" for name in ("cifar10", "cifar+", "svhn")]
    assert [s.dataset for s in specs[:12]] == [name for name in first for _ in range(4)], "the first split comes first"
    for spec in specs:
        told = (spec.network, spec.epochs, spec.batch_size, spec.learning_rate, spec.momentum, spec.weight_decay)
        assert told == ("vgg32", 600, 128, 0.1, 0.9, 1e-4)
        digits = "_digits_m18" if "svhn" in spec.dataset else "_m6"
        assert (spec.augmentation, spec.normalisation) == (f"rand_augment{digits}", "cifar10")
        rates = [learning_rate(spec, epoch) for epoch in (0, 10, 201, 401, 599)]
        assert rates == pytest.approx([1e-4, 0.099385, 0.1, 0.1, 0.000125], abs=1e-6)
    assert {num_train(s) for s in specs if "svhn" in s.dataset} == {42331, 47203, 41684, 47106}
    assert {num_train(s) for s in specs if "+" in s.dataset} == {20000}


def test_the_protocol_of_features2d():
    specs = recipes.get("features2d").specs()
    assert [(s.head, s.radius) for s in specs] == [("plain", 1.0), ("maxsep", 1.0)]
    for spec in specs:
        assert (spec.dataset, spec.epochs, spec.features_at) == ("osr_cifar10_0", 200, (15, 200))
        assert dict(spec.network_options) == {"feature_size": 2}
        assert learning_rate(spec, 100) == pytest.approx(0.05, abs=1e-3), "one cosine, no restarts"
    assert {s.features_at for s in recipes.get("features2d").specs(epochs=40)} == {(3, 40)}
    assert {s.features_at for s in recipes.get("features2d").specs(epochs=1)} == {(1,)}
