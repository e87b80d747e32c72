"""Every recipe for real, on a CPU: one epoch on a handful of random images in the official formats."""

import dataclasses
import json

import numpy as np
import pytest
from class_folders import write_classes
from scipy.io import savemat

from maxsep.lab import grid, recipes
from maxsep.lab.ood import OODProtocol
from maxsep.lab.recipes.ood import Detect
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec


@pytest.fixture(scope="module")
def data(tmp_path_factory, tiny_cifar, tiny_imagenet):
    root = tiny_cifar(tmp_path_factory.mktemp("data"), images=400)
    tiny_cifar(root, "cifar100", images=1000)
    tiny_imagenet(root)
    rng = np.random.default_rng(1)
    (root / "svhn").mkdir()
    for part in ("train", "test"):
        images = rng.integers(0, 256, (32, 32, 3, 40), dtype=np.uint8)
        savemat(root / "svhn" / f"{part}_32x32.mat", {"X": images, "y": np.arange(40)[:, None] % 10 + 1})
    write_classes(root, (40, 48), places365=12)
    (root / "places365" / "ORIGIN.txt").write_text("MiniPlaces validation\n")
    return root


TAIL = "dataset=cifar10,imbalance=0.1"
SMALL = "dataset=cifar10,network=resnet32,augmentation=crop_flip_auto_cutout"


@pytest.mark.parametrize(
    ("name", "only", "count"),
    [
        ("table1", TAIL, 4),
        ("fixed", f"{TAIL},head=learnable_matrix|extra_layer|etf", 3),
        ("prototypes", f"{TAIL},head=hpn", 2),
        ("longtail", "imbalance=0.1,head=maxsep_cosine|maxsep", 4 + 2),
        ("beyond_search", SMALL, 3),
        ("beyond", f"{SMALL},loss=logit_adjusted", 7),
        ("imagenet", "network=resnet50,dataset=imagenet_lt", 2),
        ("features2d", None, 2),
        ("demo", None, 5),
    ],
)
def test_recipe(data, tmp_path, name, only, count):
    limits = {"seeds": 1, "epochs": 1} | (
        {} if name == "demo" else {"max_train": 12 if only and TAIL in only else 100, "max_test": 10}
    )
    summary = grid.reproduce(recipes.get(name), only=only, runs=tmp_path, data_root=data, **limits)
    assert summary.failed == []
    assert len(summary.finished) == count


@pytest.mark.parametrize(
    ("name", "only", "sets"),
    [
        ("ood", "head=maxsep", ["svhn", "places", "cifar10"]),
        ("openset", "dataset=osr_cifar+_0,head=plain", ["cifar+10", "cifar+50"]),
        ("openset", "dataset=osr_svhn_2,head=maxsep", ["unknown"]),
    ],
)
def test_recipe_with_detection(data, tmp_path, name, only, sets):
    recipe, limits = recipes.get(name), {"seeds": 1, "epochs": 1, "max_train": 102, "max_test": 10}
    if name == "ood":  # two of the seven steps: the others cost as much and say nothing new
        protocol = dataclasses.replace(recipe.after.protocol, magnitudes=(0.0, 0.001))
        recipe = dataclasses.replace(recipe, after=Detect(protocol))
    grid.check_data(recipe.specs(1, only=only), after=recipe.after, runs=tmp_path, data_root=data)
    summary = grid.reproduce(recipe, only=only, runs=tmp_path, data_root=data, **limits)
    assert (summary.failed, summary.notes, len(summary.finished)) == ([], [], 1)
    record = Run(tmp_path / summary.finished[0].name).detection
    assert list(record["sets"]) == sets
    if name == "ood":
        assert record["sets"]["places"]["origin"] == "MiniPlaces validation"


STEP = Detect(OODProtocol(outliers=("places",)))


def finish(runs, spec, **record):
    run = Run(runs / spec.name)
    run.begin(spec)
    scores = {name: {"full": {"auroc": 0.5}, "draws": {"repeats": 10}} for name in STEP.protocol.scores}
    base = {"schema": 1, "in_distribution": {"dataset": "digits"}, "sets": {"places": {"scores": scores}}}
    base["mahalanobis"] = {"magnitudes": list(STEP.protocol.magnitudes)}
    (run.folder / "detection.json").write_text(json.dumps(base | record))
    (run.folder / "result.json").write_text(json.dumps({"spec": spec.to_dict(), "metrics": {}}))
    return run


@pytest.mark.parametrize(
    ("spec", "record", "is_done"),
    [
        (RunSpec(), {}, True),
        (RunSpec(), {"sets": {}}, False),
        (RunSpec(loss="ldam", head="cosine"), {}, False),  # scored with the probabilities of another scale
        (RunSpec(loss="ldam", head="cosine"), {"softmax_scale": 30.0}, True),
    ],
)
def test_detection_is_measured_once(tmp_path, spec, record, is_done):
    assert STEP.is_done(finish(tmp_path, spec, **record)) == is_done
    if is_done:
        STEP.check([spec], tmp_path, tmp_path, download=False)  # nothing is needed, so nothing is missing


def test_missing_weights_are_noted_and_missing_outliers_are_an_error_before_training(tmp_path):
    assert "weights" in STEP(finish(tmp_path, RunSpec()), data_root=None, device="cpu")
    with pytest.raises(FileNotFoundError, match="places"):
        STEP.check([RunSpec(seed=1)], tmp_path, tmp_path, download=False)
