"""The number format of scores: float64, so that neither saturation nor rounding invents a tie."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from maxsep.checks import check_floating


def precise(x: Tensor) -> Tensor:
    """Return `x` in float64, on its own device where that has the format, else on the CPU.

    >>> import torch
    >>> precise(torch.zeros(2)).dtype
    torch.float64
    """
    return x.cpu().double() if x.device.type == "mps" else x.double()


def score_set(name: str, scores: Any) -> Tensor:
    """Return one set of scores as float64, or say why it cannot be ranked.

    Infinite scores are allowed, they have a rank; NaN has none.

    >>> import torch
    >>> score_set("id_scores", torch.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    scores = check_floating(scores, name)
    if scores.ndim != 1:
        raise ValueError(
            f"{name} must be one-dimensional, one score per sample, got shape {tuple(scores.shape)}. "
            "Score the logits first, for example with energy(logits)."
        )
    if not len(scores):
        raise ValueError(f"{name} is empty, and no rate of no samples is defined. Pass at least one score.")
    bad = int(scores.isnan().sum())
    if bad:
        raise ValueError(
            f"{name} holds {bad} NaN among {len(scores)} scores, and NaN has no rank. "
            "Look for the samples that the network answers with NaN, for example in half precision."
        )
    return precise(scores.detach())


def check_rate(name: str, rate: Any) -> float:
    """Return a rate in (0, 1], or say what is wrong with it.

    >>> check_rate("tpr", 0.95)
    0.95
    """
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
        raise ValueError(f"{name} must be a number in (0, 1], got {rate!r}. Pass a fraction such as 0.95.")
    return float(rate)


def check_positive(name: str, value: Any, *, zero: bool = False) -> float:
    """Return a finite number above zero (or from zero on), or say what is wrong with it.

    >>> check_positive("temperature", 1000)
    1000.0
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        allowed = "zero or a positive finite number" if zero else "a positive finite number"
        raise ValueError(f"{name} must be {allowed}, got {value!r}. Pass a float.")
    return float(value)
