"""Cross-entropy on logits that are shifted by the log-priors of the classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.checks import Reduction
from maxsep.losses.base import ClassCountLoss
from maxsep.losses.checks import check_number

__all__ = ["LogitAdjustedLoss"]


class LogitAdjustedLoss(ClassCountLoss):
    """Logit adjustment during training (Menon et al. 2021): the network need not learn how frequent classes are.

    loss = cross-entropy(logits + tau * log(prior), y) with prior_j = n_j / sum_i n_i. At tau = 1 the logits that
    minimise it rank classes by their balanced posterior; at tau = 0 it is plain cross-entropy.

    Args:
        class_counts: Training samples of every class, (C,), at least 1 each.
        tau: Strength, at least 0.
        reduction: "mean", "sum", or "none" for the loss of every sample.

    Pitfall: predict with the logits as they are. Adding the priors at test time undoes the adjustment.

    >>> loss = LogitAdjustedLoss([90, 10])
    >>> loss(torch.zeros(1, 2), torch.tensor([1]))  # -log(0.1)
    tensor(2.3026)
    """

    def __init__(
        self, class_counts: Sequence[float] | Tensor, tau: float = 1.0, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(class_counts, reduction)
        self.tau = check_number("tau", tau, "a number of at least 0", lambda value: value >= 0)
        counts = self.class_counts.to(torch.float64)
        self._keep("_shift", self.tau * (counts / counts.sum()).log())

    def _values(self, x: Tensor, index: Tensor) -> Tensor:
        return F.cross_entropy(x + self._constant("_shift", x), index, reduction="none")

    def extra_repr(self) -> str:
        """Say the number of classes and tau."""
        return f"{super().extra_repr()}, tau={self.tau:g}"
