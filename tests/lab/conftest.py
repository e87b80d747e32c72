"""Datasets of a handful of random images in the official formats."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

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
