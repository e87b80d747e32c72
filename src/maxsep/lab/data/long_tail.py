"""Long-tailed subsets with an exponential profile, drawn exactly as the long-tailed CIFAR literature draws them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def long_tail_counts(max_count: int, num_classes: int, imbalance: float) -> list[int]:
    """Give the class sizes of a long tail: floor(max_count * imbalance ** (i / (num_classes - 1))), at least 1.

    Args:
        max_count: Size of class 0, the head.
        num_classes: Number of classes.
        imbalance: Smallest over largest class size, in (0, 1]. The literature's "imbalance 100" is 0.01 here.

    >>> long_tail_counts(5000, 10, 0.01)
    [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    """
    _check_imbalance(imbalance)
    for name, value in (("max_count", max_count), ("num_classes", num_classes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    steps = max(num_classes - 1, 1)
    return [max(1, math.floor(max_count * imbalance ** (i / steps))) for i in range(num_classes)]


def long_tail_indices(labels: Tensor, imbalance: float, seed: int = 0, *, num_classes: int | None = None) -> Tensor:
    """Choose the images of a long-tailed subset.

    One legacy numpy generator, seeded once, serves all classes in increasing order: each class's positions, in
    dataset order, are shuffled in place and the first n_i are kept, with n_i from `long_tail_counts` and
    max_count the size of the largest class. On CIFAR this is the subset that published long-tailed results use.

    Where classes are not equally large (digits, SVHN, folders) a class cannot give more than it has: its count is
    capped at its own size. A class without images stays without.

    Args:
        labels: int64, (N,).
        imbalance: Smallest over largest class size, in (0, 1].
        seed: Seed of the subset; published subsets use 0 whatever the seed of the run.
        num_classes: Number of classes; by default the largest label + 1.

    Returns:
        int64 positions, class after class, in the shuffled order within each class.

    >>> labels = torch.arange(3).repeat(100)
    >>> indices = long_tail_indices(labels, 0.1)
    >>> torch.bincount(labels[indices]).tolist()
    [100, 31, 10]
    """
    import numpy as np

    from maxsep.lab.data.imageset import check_labels

    _check_imbalance(imbalance)
    labels = torch.as_tensor(labels).cpu()
    if labels.numel() == 0:
        raise ValueError("labels must not be empty: a long tail is cut from existing images.")
    classes = int(labels.max()) + 1 if num_classes is None else num_classes
    check_labels(labels, classes, len(labels))
    values = labels.numpy()
    sizes = np.bincount(values, minlength=classes)
    counts = long_tail_counts(int(sizes.max()), classes, imbalance)
    # The legacy generator is what published subsets were drawn with; its stream is frozen across numpy versions.
    generator = np.random.RandomState(seed)
    kept = []
    for label, count in enumerate(counts):
        positions = np.flatnonzero(values == label)
        generator.shuffle(positions)
        kept.append(positions[:count])
    return torch.from_numpy(np.concatenate(kept).astype(np.int64))


def _check_imbalance(imbalance: float) -> None:
    if not 0 < imbalance <= 1:
        raise ValueError(
            f"imbalance must be in (0, 1], got {imbalance!r}. It is the smallest class over the largest: "
            "write 0.01 for 100:1."
        )
