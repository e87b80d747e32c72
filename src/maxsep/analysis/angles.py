"""Angles between vectors, exact also where they are nearly parallel or opposite."""

from __future__ import annotations

import torch
from torch import Tensor

from maxsep.checks import check_floating


def pairwise_angles(vectors: Tensor) -> Tensor:
    """Measure the angle of every pair of vectors, in degrees.

    angle(u, v) = 2 atan2(|u - v|, |u + v|) of the unit vectors. The arc cosine of a cosine loses half the digits
    near 0 and 180 degrees, and is NaN where rounding lifts the cosine above 1.

    Args:
        vectors: (N, D), none of them zero; their lengths do not matter.

    Returns:
        (N (N - 1) / 2,) float64 in [0, 180]: the pairs (0, 1), (0, 2), ..., (1, 2), ...; empty for one vector.

    >>> pairwise_angles(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])).tolist()
    [90.0, 180.0, 90.0]
    """
    vectors = check_floating(vectors, "vectors")
    if vectors.ndim != 2:
        raise ValueError(f"vectors must be (N, D), one vector per row, got shape {tuple(vectors.shape)}.")
    if not bool(vectors.isfinite().all()):
        raise ValueError("vectors hold NaN or infinite values, which have no direction. Look for their origin.")
    x = vectors.detach().double()
    largest = x.abs().amax(1, keepdim=True) if x.shape[1] else x.new_zeros(len(x), 1)
    if not bool((largest > 0).all()):
        zeros = (largest[:, 0] == 0).nonzero()[:, 0].tolist()
        raise ValueError(f"a zero vector has no direction, got one in row {zeros[0]} ({len(zeros)} in all). Remove it.")
    x = x / largest  # first, so that no square overflows or vanishes
    units = x / x.norm(dim=1, keepdim=True)
    exact = "donot_use_mm_for_euclid_dist"  # differences, not the products whose cancellation this avoids
    apart = torch.cdist(units, units, compute_mode=exact)
    together = torch.cdist(units, -units, compute_mode=exact)
    upper = torch.ones_like(apart, dtype=torch.bool).triu(1)
    return torch.rad2deg(2 * torch.atan2(apart[upper], together[upper]))
