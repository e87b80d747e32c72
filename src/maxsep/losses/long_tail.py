"""Cross-entropies for long-tailed data, built from the number of training samples of every class."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep.checks import (
    IGNORED,
    Reduction,
    can_look,
    check_class_counts,
    check_class_weights,
    check_floating,
    check_number,
    check_reduction,
    check_target,
)

PerClass = Sequence[float] | Tensor


class ClassCountLoss(nn.Module):
    """Base of the losses: logits (B, C) and class indices (B,) to a scalar, or to (B,) with reduction="none".

    Computes in float32, or in float64 for float64 logits. Labels, reductions and NaN without a counted sample are as in
    F.cross_entropy. Constants are float64 buffers outside of the state dict; move the loss to the logits' device.
    """

    takes_probabilities = False

    def __init__(self, class_counts: PerClass, reduction: Reduction) -> None:
        super().__init__()
        self.reduction = check_reduction(reduction)
        self.class_counts = check_class_counts(class_counts)
        self.num_classes = len(self.class_counts)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits (B, C) and class indices (B,), where -100 leaves a sample out."""
        check_floating(logits, "logits")
        if logits.dim() != 2 or logits.shape[1] != self.num_classes:
            raise ValueError(f"logits must be (batch, {self.num_classes}), got shape {tuple(logits.shape)}")
        if not (self.takes_probabilities and isinstance(target, Tensor) and target.is_floating_point()):
            check_target(target, logits.shape[:1], self.num_classes)
        elif target.shape != logits.shape:
            raise ValueError(f"target must be {tuple(logits.shape)}, probabilities, got shape {tuple(target.shape)}")
        losses, weights = self._losses(logits if logits.dtype == torch.float64 else logits.float(), target)
        if self.reduction == "none":
            return losses
        return losses.sum() / weights.sum() if self.reduction == "mean" else losses.sum()

    def _losses(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted loss and the weight of every sample, (B,) each, both 0 where the label is ignored."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Only the device may change: rounded by .half(), the constants would be others.
        for name, buffer in self._buffers.items():
            assert buffer is not None
            device = fn(torch.empty(0, device=buffer.device)).device
            # Apple's GPUs have no float64
            self._buffers[name] = buffer.to(device, torch.float32 if device.type == "mps" else torch.float64)
        return self


class LogitAdjustedLoss(ClassCountLoss):
    """Logit adjustment during training: the network need not learn how frequent classes are.

    loss = cross-entropy(logits + tau * log(prior), y) with prior_j = n_j / sum_i n_i. At tau = 1 the logits that
    minimise it rank classes by their balanced posterior; at tau = 0 it is plain cross-entropy.
    A. K. Menon et al.: Long-tail learning via logit adjustment. ICLR 2021.

    The target may be class probabilities (B, C), as of mixup or timm, in place of indices.
    class_counts are the training samples of every class, (C,), at least 1 each; tau is at least 0.

    Pitfall: predict with the logits as they are. Adding the priors at test time undoes the adjustment.

    >>> loss = LogitAdjustedLoss([90, 10])
    >>> loss(torch.zeros(1, 2), torch.tensor([1]))  # -log(0.1)
    tensor(2.3026)
    """

    shift: Tensor
    takes_probabilities = True

    def __init__(self, class_counts: PerClass, tau: float = 1.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(class_counts, reduction)
        self.tau = check_number("tau", tau, "a number >= 0")
        counts = self.class_counts.double()
        self.register_buffer("shift", self.tau * (counts / counts.sum()).log(), persistent=False)

    def extra_repr(self) -> str:
        """Return tau."""
        return f"tau={self.tau:g}"

    def _losses(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        is_soft = target.is_floating_point()
        losses = F.cross_entropy(x + self.shift.to(x), target.to(x) if is_soft else target, reduction="none")
        return losses, torch.ones_like(losses) if is_soft else target != IGNORED


class BalancedSoftmaxLoss(LogitAdjustedLoss):
    """Balanced softmax: loss = -log(n_y exp(logit_y) / sum_j n_j exp(logit_j)).

    A softmax does not see a common shift, so this is `LogitAdjustedLoss` at tau = 1 under its other name.
    J. Ren et al.: Balanced Meta-Softmax for Long-Tailed Visual Recognition. NeurIPS 2020.

    >>> loss = BalancedSoftmaxLoss([3, 1])
    >>> loss(torch.zeros(1, 2), torch.tensor([0]))  # -log(3 / 4)
    tensor(0.2877)
    """

    def __init__(self, class_counts: PerClass, *, reduction: Reduction = "mean") -> None:
        super().__init__(class_counts, reduction=reduction)
        counts = self.class_counts.double()
        self.shift = (counts / counts.max()).log()  # recorded runs have this common shift, and its rounding


class LDAMLoss(ClassCountLoss):
    """Label-distribution-aware margins: rare classes must win by more.

    margin_j = max_margin * (min_i n_i / n_j)^(1/4), and the loss of a sample of class y is
    cross-entropy(scale * (logits - margin_y e_y), y). The mean over the batch is weighted by the classes:
    sum_i weight_{y_i} loss_i / sum_i weight_{y_i}.
    K. Cao et al.: Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss. NeurIPS 2019.

    Deferred re-weighting: train most epochs with weight=None, then call
    `loss.reweight(effective_number_weights(class_counts))`. The weight is no part of the state dict; set it again by
    the epoch after resuming.

    class_counts are the training samples of every class, (C,), at least 1 each; weight (C,) is positive, or None for
    equal weights.

    Pitfall: margin and scale assume cosines in [-1, 1], such as `maxsep.heads.CosineHead` gives; on the CPU the loss
    warns once of logits beyond 10. Predict without margin; probabilities are softmax(scale * logits).

    >>> LDAMLoss([500, 5]).margins.round(decimals=4)
    tensor([0.1581, 0.5000], dtype=torch.float64)
    """

    margins: Tensor
    weight: Tensor
    _warned = False

    def __init__(
        self,
        class_counts: PerClass,
        max_margin: float = 0.5,
        scale: float = 30.0,
        weight: PerClass | None = None,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(class_counts, reduction)
        self.max_margin = check_number("max_margin", max_margin, "a number >= 0")
        self.scale = check_number("scale", scale, "a positive number")
        counts = self.class_counts.double()
        self.register_buffer("margins", self.max_margin * (counts.min() / counts) ** 0.25, persistent=False)
        self.register_buffer("weight", check_class_weights(weight, self.num_classes), persistent=False)

    def reweight(self, weight: PerClass | None) -> None:
        """Use other class weights from now on, equal ones for None, in place: steps in a CUDA graph use them too."""
        self.weight.copy_(check_class_weights(weight, self.num_classes))

    def _losses(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        self._warn_unless_cosines(x)
        is_target = target[:, None] == torch.arange(self.num_classes, device=x.device)
        losses = F.cross_entropy(self.scale * (x - self.margins.to(x) * is_target), target, reduction="none")
        weights = self.weight.to(x)[target.clamp(min=0)] * (target != IGNORED)
        return weights * losses, weights

    def _warn_unless_cosines(self, x: Tensor) -> None:
        """Warn once of logits that no cosine head gives; cosines behind the matrix may exceed 1, but hardly 10."""
        if self._warned or self.scale == 1 or not can_look(x) or not x.numel():
            return
        largest = x.detach().abs().max().item()
        if largest > 10:
            self._warned = True
            message = f"LDAMLoss expects cosines, as of maxsep.heads.CosineHead, got a logit of size {largest:.3g}"
            warnings.warn(message, stacklevel=6)  # the call of the loss, behind two frames of nn.Module


class LabelAwareSmoothingLoss(ClassCountLoss):
    """Label-aware smoothing in its concave form: frequent classes are smoothed more.

    smoothing_y = tail + (head - tail) * sin(pi/2 * (n_y - min n) / (max n - min n)), and the loss of a sample is
    (1 - smoothing_y) * (-log p_y) + smoothing_y * mean_j(-log p_j). Equal counts all get `smooth_head`.
    Z. Zhong et al.: Improving Calibration for Long-Tailed Recognition. CVPR 2021.

    smooth_head and smooth_tail, in [0, 1], are for the most frequent and the rarest class of class_counts (C,): 0.4 and
    0.1 for CIFAR-100 at imbalance 0.01.

    Pitfall: a logit of minus infinity makes the loss infinite, as with any label smoothing.

    >>> LabelAwareSmoothingLoss([500, 50, 5], smooth_head=0.4, smooth_tail=0.1).smoothing.round(decimals=4)
    tensor([0.4000, 0.1427, 0.1000], dtype=torch.float64)
    """

    smoothing: Tensor

    def __init__(
        self, class_counts: PerClass, smooth_head: float, smooth_tail: float, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(class_counts, reduction)
        head = check_number("smooth_head", smooth_head, "a number in [0, 1]")
        tail = check_number("smooth_tail", smooth_tail, "a number in [0, 1]")
        counts = self.class_counts.double()
        span = counts.max() - counts.min()
        place = (counts - counts.min()) / span if span > 0 else torch.ones_like(counts)
        smoothing = tail + (head - tail) * torch.sin(math.pi / 2 * place)
        self.register_buffer("smoothing", smoothing, persistent=False)

    def _losses(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        is_counted = target != IGNORED
        log_p = F.log_softmax(x, dim=1)
        smoothing = self.smoothing.to(x)[target.clamp(min=0)]
        losses = (1 - smoothing) * F.nll_loss(log_p, target, reduction="none") - smoothing * log_p.mean(1)
        return torch.where(is_counted, losses, 0), is_counted


def effective_number_weights(
    class_counts: PerClass, beta: float = 0.9999, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return class weights (C,), the inverse of the effective number of samples.

    weight_j is proportional to (1 - beta) / (1 - beta^n_j), and the weights sum to C. They are equal at beta = 0 and
    inversely proportional to the counts as beta approaches 1. Use them as `weight` of torch's cross-entropy or in
    `LDAMLoss.reweight`. Y. Cui et al.: Class-Balanced Loss Based on Effective Number of Samples. CVPR 2019.

    class_counts are the training samples of every class, (C,), at least 1 each; beta is in [0, 1).

    Pitfall: with beta = 0.9999 classes of more than about 50 thousand samples all have the same weight.

    >>> effective_number_weights([500, 50, 5])
    tensor([0.0277, 0.2708, 2.7015])
    """
    counts = check_class_counts(class_counts).double()
    beta = check_number("beta", beta, "a number in [0, 1)")
    # expm1 avoids the cancellation in 1 - beta^n for beta near 1; the common factor 1 - beta drops out
    inverse = -1 / torch.expm1(counts * (math.log(beta) if beta > 0 else -math.inf))
    weights = inverse * (len(counts) / inverse.sum())
    return weights.to(dtype)
