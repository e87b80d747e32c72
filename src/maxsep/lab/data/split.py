"""Stratified choices: a validation hold-out, a test split, and a limit on the number of images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def hold_out(labels: Tensor, fraction: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Split positions into a part to train on and a part held out, class by class.

    Of a class with n images round(fraction * n) are held out: at least one, but never the last one. A class with a
    single image therefore stays in training and is absent from the held-out part.

    Args:
        labels: int64, (N,).
        fraction: Part of every class to hold out, in (0, 1).
        seed: Seed of the choice.

    Returns:
        (kept, held): int64 positions, both in dataset order; together they are all positions.

    >>> kept, held = hold_out(torch.tensor([0, 0, 0, 0, 1, 1, 2]), 0.25)
    >>> len(kept), len(held)
    (5, 2)
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must lie strictly between 0 and 1, got {fraction!r}. 0.1 holds out a tenth.")
    counts = torch.bincount(labels.cpu()).tolist()
    held = _choose(labels, held_counts(counts, fraction), seed)
    mask = torch.ones(len(labels), dtype=torch.bool)
    mask[held] = False
    return mask.nonzero()[:, 0], held


def held_counts(counts: Sequence[int], fraction: float) -> list[int]:
    """Say how many images of every class `hold_out` holds out.

    >>> held_counts([40, 5, 1, 0], 0.1)
    [4, 1, 0, 0]
    """
    return [min(max(1, round(fraction * n)), n - 1) if n else 0 for n in counts]


def limit(labels: Tensor, count: int, seed: int = 0) -> Tensor:
    """Choose at most `count` positions with the class proportions of the whole.

    Every class with images keeps at least one as long as `count` reaches to all classes; below that the first
    `count` classes keep one image each.

    Returns:
        int64 positions in dataset order.

    >>> labels = torch.tensor([0] * 90 + [1] * 9 + [2])
    >>> torch.bincount(labels[limit(labels, 20)]).tolist()
    [17, 2, 1]
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"the number of images to keep must be a whole number of at least 1, got {count!r}.")
    if count >= len(labels):
        return torch.arange(len(labels))
    sizes = torch.bincount(labels.cpu()).tolist()
    return _choose(labels, _shares(sizes, count), seed)


def _shares(sizes: list[int], count: int) -> list[int]:
    """Divide count among classes: one each, then the rest in proportion (largest remainder first)."""
    present = [i for i, size in enumerate(sizes) if size]
    shares = [0] * len(sizes)
    for i in present[:count]:
        shares[i] = 1
    rest = count - sum(shares)
    room = sum(sizes) - len(present)
    if rest <= 0 or room <= 0:
        return shares
    exact = {i: rest * (sizes[i] - 1) / room for i in present}
    for i in present:
        shares[i] += int(exact[i])
    missing = count - sum(shares)
    for i in sorted(present, key=lambda i: (int(exact[i]) - exact[i], i))[:missing]:
        shares[i] += 1
    return shares


def _choose(labels: Tensor, take: list[int], seed: int) -> Tensor:
    """Draw take[i] positions of each class i; sorted, the same on every machine and version."""
    import numpy as np

    values = labels.cpu().numpy()
    generator = np.random.RandomState(seed)  # its stream never changes between numpy versions
    chosen = [generator.permutation(np.flatnonzero(values == i))[:n] for i, n in enumerate(take)]
    return torch.from_numpy(np.sort(np.concatenate(chosen)).astype(np.int64))
