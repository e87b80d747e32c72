"""Cross-entropy with more label smoothing for frequent classes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.checks import Reduction
from maxsep.losses.base import ClassCountLoss
from maxsep.losses.checks import check_number

__all__ = ["LabelAwareSmoothingLoss"]


class LabelAwareSmoothingLoss(ClassCountLoss):
    """Label-aware smoothing in its concave form (Zhong et al. 2021): frequent classes are smoothed more.

    smoothing_y = tail + (head - tail) * sin(pi/2 * (n_y - min n) / (max n - min n)), and the loss of a sample is
    (1 - smoothing_y) * (-log p_y) + smoothing_y * mean_j(-log p_j). If all classes have the same count, each is as
    frequent as the most frequent one and gets `smooth_head`.

    Args:
        class_counts: Training samples of every class, (C,), at least 1 each.
        smooth_head: Smoothing of the most frequent class, in [0, 1]; 0.4 for CIFAR-100 at imbalance 0.01.
        smooth_tail: Smoothing of the rarest class, in [0, 1]; usually the smaller one, 0.1 there.
        reduction: "mean", "sum", or "none" for the loss of every sample.

    Pitfall: a logit of minus infinity makes the loss infinite, as with any label smoothing.

    >>> LabelAwareSmoothingLoss([500, 50, 5], smooth_head=0.4, smooth_tail=0.1).smoothing.round(decimals=4)
    tensor([0.4000, 0.1427, 0.1000], dtype=torch.float64)
    """

    _smoothing: Tensor

    def __init__(
        self,
        class_counts: Sequence[float] | Tensor,
        smooth_head: float,
        smooth_tail: float,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(class_counts, reduction)
        self.smooth_head = check_number("smooth_head", smooth_head, "a number in [0, 1]", _is_fraction)
        self.smooth_tail = check_number("smooth_tail", smooth_tail, "a number in [0, 1]", _is_fraction)
        counts = self.class_counts.to(torch.float64)
        least, span = counts.min(), counts.max() - counts.min()
        place = (counts - least) / span if span > 0 else torch.ones_like(counts)
        head_share = torch.sin(math.pi / 2 * place)
        self._keep("_smoothing", self.smooth_tail + (self.smooth_head - self.smooth_tail) * head_share)

    @property
    def smoothing(self) -> Tensor:
        """The smoothing of every class, (C,)."""
        return self._smoothing

    def _values(self, x: Tensor, index: Tensor) -> Tensor:
        log_probabilities = F.log_softmax(x, dim=1)
        hard = F.nll_loss(log_probabilities, index, reduction="none")
        smoothing = self._constant("_smoothing", x)[index]
        return (1 - smoothing) * hard - smoothing * log_probabilities.mean(1)

    def extra_repr(self) -> str:
        """Say the number of classes and both ends of the smoothing."""
        return f"{super().extra_repr()}, smooth_head={self.smooth_head:g}, smooth_tail={self.smooth_tail:g}"


def _is_fraction(value: float) -> bool:
    return 0 <= value <= 1
