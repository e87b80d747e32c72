"""Class weights from the effective number of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from maxsep.losses.checks import check_class_counts, check_number

__all__ = ["effective_number_weights"]


def effective_number_weights(
    class_counts: Sequence[float] | Tensor,
    beta: float = 0.9999,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Weigh classes by the inverse of their effective number of samples (Cui et al. 2019).

    weight_j is proportional to (1 - beta) / (1 - beta^n_j), and the weights sum to C. They are equal at beta = 0 and
    inversely proportional to the counts as beta approaches 1.

    Args:
        class_counts: Training samples of every class, (C,), at least 1 each.
        beta: In [0, 1).
        dtype: Of the result; computed in float64.
        device: Of the result.

    Returns:
        (C,) weights, for the `weight` of torch's cross-entropy or `LDAMLoss.reweight`.

    Pitfall: with beta = 0.9999 classes of more than about 50 thousand samples all have the same weight.

    >>> effective_number_weights([500, 50, 5])
    tensor([0.0277, 0.2708, 2.7015])
    """
    counts = check_class_counts(class_counts).to(torch.float64)
    beta = check_number("beta", beta, "a number in [0, 1)", lambda value: 0 <= value < 1)
    # 1 - beta^n without the cancellation that beta near 1 brings; the common factor 1 - beta drops out
    inverse = -1 / torch.expm1(counts * (math.log(beta) if beta > 0 else -math.inf))
    weights = inverse * (len(counts) / inverse.sum())
    return weights.to(device=torch.empty(0, device=device).device, dtype=dtype)
