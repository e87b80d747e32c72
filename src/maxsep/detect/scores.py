"""Scores of logits, higher = more in-distribution, in float64 so that neither saturation nor rounding creates ties.

References:
    D. Hendrycks and K. Gimpel. A baseline for detecting misclassified and out-of-distribution examples in neural
    networks. ICLR 2017 (maximum softmax probability).
    W. Liu, X. Wang, J. Owens and Y. Li. Energy-based out-of-distribution detection. NeurIPS 2020.
    S. Vaze, K. Han, A. Vedaldi and A. Zisserman. Open-set recognition: a good closed-set classifier is all you need?
    ICLR 2022 (maximum logit).
"""

import torch
from torch import Tensor

from maxsep.checks import check_floating, check_number


def max_softmax(logits: Tensor) -> Tensor:
    """Score logits (..., C) by the largest class probability, max_c softmax(logits)_c: (...) in [1/C, 1].

    A common shift of the logits cancels. In float32, every sample whose largest logit leads by more than 17 would
    score exactly 1; hence float64.

    >>> max_softmax(torch.tensor([[0.0, 0.0], [3.0, 0.0]])).round(decimals=4).tolist()
    [0.5, 0.9526]
    """
    return _float64_logits(logits, centre=False).softmax(-1).amax(-1)


def max_logit(logits: Tensor, *, centre: bool = False) -> Tensor:
    """Score logits (..., C) by the largest logit: (...).

    `centre` subtracts the mean logit of each sample first. The logits of a maximum-separation head have mean zero by
    construction, so a fair comparison with a plain head centres both.

    >>> logits = torch.tensor([[5.0, 4.0, 3.0]])
    >>> max_logit(logits).item(), max_logit(logits, centre=True).item()
    (5.0, 1.0)
    """
    return _float64_logits(logits, centre).amax(-1)


def energy(logits: Tensor, temperature: float = 1.0, *, centre: bool = False) -> Tensor:
    """Score logits (..., C) by the negative free energy, T log sum_c exp(logits_c / T): (...).

    It tends to `max_logit` as the temperature T tends to 0; for `centre` see there.

    >>> round(energy(torch.tensor([0.0, 0.0])).item(), 4)
    0.6931
    """
    temperature = check_number("temperature", temperature, "a positive number")
    return temperature * torch.logsumexp(_float64_logits(logits, centre) / temperature, -1)


def to_float64(x: Tensor) -> Tensor:
    """Convert to float64 on the same device; MPS has no float64, so its tensors move to the CPU."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


def _float64_logits(logits: Tensor, centre: bool) -> Tensor:
    logits = check_floating(logits, "logits")
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(f"logits must be (..., C) with at least one class, got shape {tuple(logits.shape)}")
    logits = to_float64(logits)
    return logits - logits.mean(-1, keepdim=True) if centre else logits
