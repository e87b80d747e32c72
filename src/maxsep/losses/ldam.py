"""Cross-entropy with margins that are larger for rare classes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.checks import Reduction, can_look
from maxsep.losses.base import ClassCountLoss
from maxsep.losses.checks import check_class_weights, check_number

__all__ = ["LDAMLoss"]

_NO_COSINE = 10.0
"""Cosines behind the matrix may exceed 1, but hardly this."""


class LDAMLoss(ClassCountLoss):
    """Label-distribution-aware margins (Cao et al. 2019): rare classes must win by more.

    margin_j = max_margin * (min_i n_i / n_j)^(1/4), and the loss of a sample of class y is
    cross-entropy(scale * (logits - margin_y e_y), y). The mean over the batch is weighted by the classes:
    sum_i weight_{y_i} loss_i / sum_i weight_{y_i}.

    Deferred re-weighting: train most epochs with weight=None, then call
    `loss.reweight(effective_number_weights(class_counts))`. The weight is no part of the state dict; set it again by
    the epoch after resuming.

    Args:
        class_counts: Training samples of every class, (C,), at least 1 each.
        max_margin: Margin of the rarest class.
        scale: Multiplies the logits after the margin.
        weight: One positive weight per class, or None for equal weights.
        reduction: "mean", "sum", or "none" for the loss of every sample, times its weight.

    Pitfall: margin and scale assume cosines in [-1, 1], such as `maxsep.heads.CosineHead` gives. Other logits make the
    margin void and are multiplied by the scale: the loss warns once, on the CPU, of any beyond 10. Predict without
    margin; the class is that of the largest logit, and its probabilities are softmax(scale * logits).

    >>> loss = LDAMLoss([500, 5])
    >>> loss.margins.round(decimals=4)
    tensor([0.1581, 0.5000], dtype=torch.float64)
    >>> loss(torch.tensor([[0.9, -0.9]]), torch.tensor([0])) < loss(torch.tensor([[-0.9, 0.9]]), torch.tensor([0]))
    tensor(True)
    """

    _margins: Tensor
    _weight: Tensor
    _warned = False

    def __init__(
        self,
        class_counts: Sequence[float] | Tensor,
        max_margin: float = 0.5,
        scale: float = 30.0,
        weight: Sequence[float] | Tensor | None = None,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(class_counts, reduction)
        self.max_margin = check_number("max_margin", max_margin, "a number of at least 0", lambda value: value >= 0)
        self.scale = check_number("scale", scale, "a positive number", lambda value: value > 0)
        counts = self.class_counts.to(torch.float64)
        self._keep("_margins", self.max_margin * (counts.min() / counts) ** 0.25)
        self.reweight(weight)

    @property
    def margins(self) -> Tensor:
        """The margin of every class, (C,)."""
        return self._margins

    @property
    def weight(self) -> Tensor:
        """The weight of every class, (C,); change it with `reweight`."""
        return self._weight

    def reweight(self, weight: Sequence[float] | Tensor | None) -> None:
        """Use other class weights from now on; None makes them equal.

        The weights change in place, so a step that was compiled or captured in a CUDA graph follows.

        >>> loss = LDAMLoss([500, 5])
        >>> loss.reweight([0.5, 1.5])
        >>> loss.weight
        tensor([0.5000, 1.5000], dtype=torch.float64)
        """
        self._keep("_weight", check_class_weights(weight, self.num_classes))

    def _values(self, x: Tensor, index: Tensor) -> Tensor:
        self._warn_of(x)
        is_true = index[:, None] == torch.arange(self.num_classes, device=x.device)
        shifted = x - self._constant("_margins", x) * is_true
        return F.cross_entropy(self.scale * shifted, index, reduction="none")

    def _warn_of(self, x: Tensor) -> None:
        """Warn once of logits that no cosine head gives, where looking at them is free."""
        if self._warned or self.scale == 1 or not can_look(x) or not x.numel():
            return
        largest = x.detach().abs().max().item()
        if not largest > _NO_COSINE:
            return
        self._warned = True
        warnings.warn(
            f"LDAMLoss got a logit of size {largest:.3g}, and multiplies it by {self.scale:g}: margins and scale are "
            "made for cosines, between -1 and 1. Use a head such as maxsep.heads.CosineHead(in_features, num_classes), "
            "or scale=1 for logits as they are.",
            stacklevel=6,  # the line that calls the loss: values, forward and two of torch's lie between
        )

    def _weights(self, x: Tensor, index: Tensor) -> Tensor:
        return self._constant("_weight", x)[index]

    def extra_repr(self) -> str:
        """Say the number of classes, the largest margin and the scale."""
        return f"{super().extra_repr()}, max_margin={self.max_margin:g}, scale={self.scale:g}"
