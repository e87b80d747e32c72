"""Datasets of a handful of random images in the official formats, and made-up run folders as the engine writes them."""

import json
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from maxsep.lab.spec import RunSpec

_FORMS = {
    "cifar10": (
        "cifar-10-batches-py",
        (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
        ("labels", "batches.meta", "label_names", 10),
    ),
    "cifar100": ("cifar-100-python", ("train", "test"), ("fine_labels", "meta", "fine_label_names", 100)),
}


def write_cifar(root, name="cifar10", images=40):
    """Write a CIFAR of random images, so many in each of its files, the classes taking turns."""
    folder, parts, (labels, meta, names, classes) = _FORMS[name]
    (root / folder).mkdir()
    rng = np.random.default_rng(0)
    for part in parts:
        pixels = rng.integers(0, 256, (images, 3072), dtype=np.uint8)
        batch = {"data": pixels, labels: [i % classes for i in range(images)]}
        (root / folder / part).write_bytes(pickle.dumps(batch, protocol=2))
    (root / folder / meta).write_bytes(pickle.dumps({names: [f"class {i}" for i in range(classes)]}, protocol=2))
    return root


def write_imagenet(root, counts=(5, 3, 2), test=2):
    """Write an ImageNet of plain pictures of odd sizes: red is the class, green the number of the picture.

    The lists of ImageNet-LT name one picture less of the first class, and all that are tested.
    """
    lists = {"train": [], "test": []}
    for label, count in enumerate(counts):
        for split, part, pictures in (("train", "train", count), ("val", "test", test)):
            for number in range(pictures):
                path = f"{split}/n{label:08d}/{split}_{number}.JPEG"
                (root / "imagenet" / path).parent.mkdir(parents=True, exist_ok=True)
                size = (40 + 3 * number, 48)
                Image.new("RGB", size, (80 * label, 40 * number, 90)).save(root / "imagenet" / path, quality=95)
                if (part, label, number) != ("train", 0, 4):
                    lists[part].append(f"{path} {label}")
    (root / "imagenet-lt").mkdir(parents=True)
    for part, lines in lists.items():
        # the published lists are in no order of classes
        (root / "imagenet-lt" / f"ImageNet_LT_{part}.txt").write_text("\n".join(lines[::-1]) + "\n")
    return root


@pytest.fixture(scope="session")
def tiny_imagenet():
    """The function that writes one."""
    return write_imagenet


@pytest.fixture(scope="session")
def tiny_cifar():
    """The function that writes one."""
    return write_cifar


def write_run(runs: Path, spec: RunSpec, /, top1: float | None = None, metrics: dict | None = None, **changes) -> Path:
    rng = random.Random(spec.name)
    top1 = 0.7 + 0.03 * (spec.head != "plain") + rng.gauss(0, 0.004) if top1 is None else top1
    classes = 100 if spec.dataset == "cifar100" else 10
    counts = [max(2, int(500 * spec.imbalance ** (i / (classes - 1)))) for i in range(classes)]
    folder = runs / spec.name
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(spec.to_dict()))
    log = [{"epoch": e, "train_loss": 2 * 0.8**e, **({"top1": top1 * e / 20} if e % 4 == 3 else {})} for e in range(20)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    numbers = {
        "top1": top1, "top5": 1.0, "loss": 1 - top1, "ece": 0.05, "balanced": top1, "best_top1": top1,
        "angular_fisher": 1 - top1, "class_counts": counts, "num_train": sum(counts), "num_test": 1000,
        "per_class": [max(0.0, top1 - 0.2 * i / classes) for i in range(classes)],
    } if metrics is None else metrics  # fmt: skip
    result = {
        "schema": 1, "name": spec.name, "spec": spec.to_dict(), "metrics": numbers, "seconds": 12.5,
        "preprocessing": {"shape": [1, 8, 8], "mean": [0.0], "std": [1.0], "classes": [str(i) for i in range(classes)]},
        "execution": {"device": "cpu"}, "versions": {"torch": "2.13.0"}, "hardware": {"cpu": "an example processor"},
        "finished": "2026-01-01T00:00:12+00:00", "resumed": 0, **changes,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.fixture(scope="session")
def run_folder():
    """Write one made-up run folder: `run_folder(runs, spec, top1=None, metrics=None, **changes_of_result)`."""
    return write_run


@pytest.fixture
def held_elsewhere():
    """Hold the lock of a run as another process would: in a thread, because a lock is reentrant within its own."""

    @contextmanager
    def hold(run):
        lock = run.lock()
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lock.__enter__).result()
            try:
                yield
            finally:
                thread.submit(lock.__exit__, None, None, None).result()

    return hold
