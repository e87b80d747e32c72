"""Scores that need the logits alone."""

from __future__ import annotations

import torch
from torch import Tensor

from maxsep.checks import check_floating
from maxsep.detect.precision import check_positive, precise


def max_softmax(logits: Tensor) -> Tensor:
    """Score by the largest class probability (Hendrycks and Gimpel 2017).

    score = max_c softmax(logits)_c. A common shift of the logits cancels, so there is nothing to centre.
    Computed in float64: in float32 every sample with a logit lead above 17 would score exactly 1 and tie.

    Args:
        logits: (..., C), any floating type, any device.

    Returns:
        (...), float64 in [1/C, 1]; higher is more in-distribution. NaN logits give NaN.

    >>> max_softmax(torch.tensor([[0.0, 0.0], [3.0, 0.0]])).round(decimals=4).tolist()
    [0.5, 0.9526]
    """
    return _classes(logits, centre=False).softmax(-1).amax(-1)


def max_logit(logits: Tensor, *, centre: bool = False) -> Tensor:
    """Score by the largest logit (Vaze et al. 2022, where it is the maximum logit score).

    Args:
        logits: (..., C), any floating type, any device.
        centre: Remove the mean logit of every sample first. A maximum-separation head has mean logit zero by
            construction; with this a plain head is compared without its common shift.

    Returns:
        (...), float64; higher is more in-distribution. At least 0 if centred.

    >>> logits = torch.tensor([[5.0, 4.0, 3.0]])
    >>> max_logit(logits).item(), max_logit(logits, centre=True).item()
    (5.0, 1.0)
    """
    return _classes(logits, centre).amax(-1)


def energy(logits: Tensor, temperature: float = 1.0, *, centre: bool = False) -> Tensor:
    """Score by the negative free energy (Liu et al. 2020).

    score = T log sum_c exp(logits_c / T). The energy itself is the negative of this: small for known samples.

    Args:
        logits: (..., C), any floating type, any device.
        temperature: T above zero; the smaller, the closer to `max_logit`.
        centre: Remove the mean logit of every sample first, see `max_logit`.

    Returns:
        (...), float64; higher is more in-distribution. At least T log C if centred.

    >>> round(energy(torch.tensor([0.0, 0.0])).item(), 4)
    0.6931
    """
    temperature = check_positive("temperature", temperature)
    return temperature * torch.logsumexp(_classes(logits, centre) / temperature, -1)


def _classes(logits: Tensor, centre: bool) -> Tensor:
    logits = check_floating(logits, "logits")
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(
            f"logits must be (..., C) with at least one class, got shape {tuple(logits.shape)}. "
            "Pass the classifier's output, one row per sample."
        )
    logits = precise(logits)
    return logits - logits.mean(-1, keepdim=True) if centre else logits
