"""Which images a run sees: long tails, hold-outs, limits; and whether they come in the official order."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from maxsep.lab.data.datasets import Dataset
from maxsep.lab.data.download import Progress
from maxsep.lab.data.images import ImageSet, Splits, check_labels, draw_per_class, hold_out
from maxsep.lab.spec import ORDERED, RunSpec

OFFICIAL = {"cifar100": "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3"}
"""SHA-256 of the training labels in the order of the official files, one byte each."""


def prepare(
    spec: RunSpec, root: str | Path | None = None, *, download: bool = False, progress: Progress | None = None
) -> Splits:
    """Read a run's data and cut it as its spec says: long tail, validation, calibration, then limits.

    With `spec.validation` the result's `test` is held out of the training set, and the real test set plays no role; it
    is cut before the calibration, so that it is the same with and without. The limits leave the calibration alone. All
    choices depend on `spec.subset_seed` only, so that runs with other seeds share them.

    >>> prepare(RunSpec(dataset="digits", imbalance=0.1)).train.class_counts
    [119, 94, 73, 56, 43, 33, 26, 20, 15, 12]
    """
    splits = Dataset.parse(spec.dataset).read(root, download=download, progress=progress)
    train, test, calibration = splits.train, splits.test, None
    if spec.data_order and _name_order(spec.dataset, train.labels) != spec.data_order:
        raise ValueError(f"data_order is 'official', but the training images of {spec.dataset} have another order.")
    if spec.imbalance < 1:
        chosen = long_tail_indices(train.labels, spec.imbalance, spec.subset_seed, num_classes=train.num_classes)
        train = train.subset(chosen)
    if spec.validation > 0:
        train, test = _hold_out(train, spec, "validation")
    if spec.calibration > 0:
        train, calibration = _hold_out(train, spec, "calibration")
    if spec.max_train is not None:
        present = sum(count > 0 for count in train.class_counts)
        if spec.max_train < present:
            raise ValueError(f"max_train must be at least {present}, one image for every class, got {spec.max_train}.")
        train = train.subset(limit(train.labels, spec.max_train, spec.subset_seed))
    if spec.max_test is not None:
        test = test.subset(limit(test.labels, spec.max_test, spec.subset_seed))
    return replace(splits, train=train, test=test, calibration=calibration)


def _hold_out(train: ImageSet, spec: RunSpec, purpose: str) -> tuple[ImageSet, ImageSet]:
    kept, held = hold_out(train.labels, getattr(spec, purpose), spec.subset_seed)
    if not len(held):
        raise ValueError(f"{purpose} must be 0: no class of {spec.dataset} has two training images.")
    return train.subset(kept), train.subset(held)


def long_tail_counts(max_count: int, num_classes: int, imbalance: float) -> list[int]:
    """Return the class sizes of a long tail: floor(max_count * imbalance ** (i / (num_classes - 1))), at least 1.

    `imbalance` is the smallest over the largest class size, in (0, 1]: the literature's "imbalance 100" is 0.01 here.
    """
    if not 0 < imbalance <= 1:
        raise ValueError(f"imbalance must be in (0, 1], got {imbalance!r}: write 0.01 for 100:1.")
    if max_count < 1 or num_classes < 1:
        raise ValueError(f"max_count and num_classes must be at least 1, got {max_count!r} and {num_classes!r}.")
    steps = max(num_classes - 1, 1)
    return [max(1, math.floor(max_count * imbalance ** (i / steps))) for i in range(num_classes)]


def long_tail_indices(labels: Tensor, imbalance: float, seed: int = 0, *, num_classes: int | None = None) -> Tensor:
    """Choose the images of a long-tailed subset; on CIFAR it is the subset that published results use.

    One legacy numpy generator, seeded once, serves all classes in increasing order: each class's positions, in
    dataset order, are shuffled in place and the first n_i are kept, with n_i from `long_tail_counts` and max_count
    the size of the largest class. A class gives no more images than it has.

    Published subsets use seed 0 whatever the seed of the run.
    """
    labels = torch.as_tensor(labels).cpu()
    if not len(labels):
        raise ValueError("labels must not be empty.")
    classes = int(labels.max()) + 1 if num_classes is None else num_classes
    check_labels(labels, classes, len(labels))
    values = labels.numpy()
    counts = long_tail_counts(int(np.bincount(values).max()), classes, imbalance)
    # The legacy generator is what published subsets were drawn with; its stream is frozen across numpy versions.
    generator = np.random.RandomState(seed)
    kept = []
    for label, count in enumerate(counts):
        positions = np.flatnonzero(values == label)
        generator.shuffle(positions)
        kept.append(positions[:count])
    return torch.from_numpy(np.concatenate(kept).astype(np.int64))


def limit(labels: Tensor, count: int, seed: int = 0) -> Tensor:
    """Choose at most `count` positions with the class proportions of the whole, in dataset order.

    Every class with images keeps at least one; below that number of classes, the first `count` of them keep one.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count!r}.")
    if count >= len(labels):
        return torch.arange(len(labels))
    return draw_per_class(labels, _shares(torch.bincount(labels.cpu()).tolist(), count), seed)


def _shares(sizes: list[int], count: int) -> list[int]:
    """Divide count among classes: one each, then the rest in proportion (largest remainder first)."""
    present = [i for i, size in enumerate(sizes) if size]
    shares = [int(i in present[:count]) for i in range(len(sizes))]
    rest, room = count - sum(shares), sum(sizes) - len(present)
    if rest <= 0 or room <= 0:
        return shares
    exact = {i: rest * (sizes[i] - 1) / room for i in present}
    for i in present:
        shares[i] += int(exact[i])
    missing = count - sum(shares)
    for i in sorted(present, key=lambda i: (int(exact[i]) - exact[i], i))[:missing]:
        shares[i] += 1
    return shares


def _name_order(dataset: str, labels: Tensor) -> str:
    digest = hashlib.sha256(labels.to(torch.uint8).cpu().numpy().tobytes()).hexdigest()
    return "official" if OFFICIAL.get(dataset) == digest else ""


def with_order(specs: Iterable[RunSpec], root: str | Path | None = None, *, download: bool = False) -> list[RunSpec]:
    """Set `data_order` in specs that leave it open, from the files that their runs would read.

    Long-tailed subsets and shuffles depend on the order of the training images, so it is part of a run. Where the
    files cannot be read, the order is the official one, which a download has: training reports the reason.
    """
    specs = list(specs)
    orders = dict.fromkeys(ORDERED, "official")
    for dataset in {spec.dataset for spec in specs if not spec.data_order} & set(ORDERED):
        with suppress(OSError, ValueError):
            labels = Dataset.parse(dataset).read(root, download=download).train.labels
            orders[dataset] = _name_order(dataset, labels)
    return [spec.replace(data_order=spec.data_order or orders.get(spec.dataset, "")) for spec in specs]
