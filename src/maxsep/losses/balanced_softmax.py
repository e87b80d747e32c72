"""Cross-entropy of a softmax in which every class counts as often as it occurs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.checks import Reduction
from maxsep.losses.base import ClassCountLoss

__all__ = ["BalancedSoftmaxLoss"]


class BalancedSoftmaxLoss(ClassCountLoss):
    """Balanced softmax (Ren et al. 2020): loss = -log(n_y exp(logit_y) / sum_j n_j exp(logit_j)).

    A softmax does not see a common shift, so this is `LogitAdjustedLoss` at tau = 1; it has a name of its own because
    the literature gives it one.

    Args:
        class_counts: Training samples of every class, (C,), at least 1 each.
        reduction: "mean", "sum", or "none" for the loss of every sample.

    Pitfall: predict with the logits as they are, without the counts.

    >>> loss = BalancedSoftmaxLoss([3, 1])
    >>> loss(torch.zeros(1, 2), torch.tensor([0]))  # -log(3 / 4)
    tensor(0.2877)
    """

    def __init__(self, class_counts: Sequence[float] | Tensor, *, reduction: Reduction = "mean") -> None:
        super().__init__(class_counts, reduction)
        counts = self.class_counts.to(torch.float64)
        self._keep("_shift", (counts / counts.max()).log())

    def _values(self, x: Tensor, index: Tensor) -> Tensor:
        return F.cross_entropy(x + self._constant("_shift", x), index, reduction="none")
