"""Datasets of a handful of random images in the official formats."""

import pickle

import numpy as np
import pytest

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


@pytest.fixture(scope="session")
def tiny_cifar():
    """The function that writes one."""
    return write_cifar
