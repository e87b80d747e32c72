"""The losses that a spec can name, and deferred re-weighting of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from maxsep.checks import check_number
from maxsep.lab.spec import LDAM_SCALE, RunSpec
from maxsep.losses import (
    BalancedSoftmaxLoss,
    LabelAwareSmoothingLoss,
    LDAMLoss,
    LogitAdjustedLoss,
    effective_number_weights,
)

_REWEIGHTING: dict[str, Any] = {"reweight": None, "reweight_from": 0, "reweight_beta": 0.9999}
_OPTIONS: dict[str, dict[str, Any]] = {
    "balanced_softmax": {},
    "cross_entropy": {"label_smoothing": 0.0},
    # the published choice for CIFAR-100 at imbalance 0.01
    "label_aware_smoothing": {"smooth_head": 0.4, "smooth_tail": 0.1},
    "ldam": {"max_margin": 0.5, "scale": LDAM_SCALE, **_REWEIGHTING},
    "logit_adjusted": {"tau": 1.0},
    "squared_cosine": {},
}
"""The options of every loss and their defaults."""


class SquaredCosineLoss(nn.Module):
    """Average (1 - cos)^2 over the batch, where the logits are cosines with the class vectors."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Map logits (B, C) and class indices (B,) to a scalar."""
        return (1 - logits.gather(1, target[:, None])).square().mean()


def build_loss(spec: RunSpec, class_counts: Sequence[int]) -> nn.Module:
    """Build the spec's loss, which maps logits (B, C) and class indices (B,) to a scalar.

    The losses for long tails need the training images of every class and refuse a class without any.

    >>> loss = build_loss(RunSpec(), [50, 5])
    >>> round(loss(torch.zeros(1, 2), torch.tensor([0])).item(), 4)
    0.6931
    """
    if spec.loss not in _OPTIONS:
        raise ValueError(f"unknown loss {spec.loss!r}. Known: {', '.join(loss_names())}.")
    chosen, defaults = _chosen(spec), loss_defaults(spec.loss)
    if unknown := sorted(chosen.keys() - defaults.keys()):
        known = ", ".join(f"{key}={value}" for key, value in defaults.items()) or "none"
        raise ValueError(f"loss {spec.loss!r} does not take the options {unknown}. Known: {known}.")
    match spec.loss:
        case "cross_entropy":
            smoothing = chosen["label_smoothing"]
            check_number("label_smoothing", smoothing, "a number in [0, 1]")
            return nn.CrossEntropyLoss(label_smoothing=smoothing)
        case "squared_cosine":
            return SquaredCosineLoss()
        case "balanced_softmax":
            return BalancedSoftmaxLoss(class_counts)
        case "logit_adjusted":
            return LogitAdjustedLoss(class_counts, **chosen)
        case "label_aware_smoothing":
            return LabelAwareSmoothingLoss(class_counts, **chosen)
    if spec.reweights:
        _check_reweighting(chosen, dict(spec.loss_options), class_counts)
    return LDAMLoss(class_counts, chosen["max_margin"], chosen["scale"])


def loss_names() -> list[str]:
    """List the losses that a spec can name."""
    return sorted(_OPTIONS)


def loss_defaults(loss: str) -> dict[str, Any]:
    """Return the options of a loss with their defaults."""
    return dict(_OPTIONS.get(loss, {}))


def reweight(loss: nn.Module, spec: RunSpec, class_counts: Sequence[int], epoch: int) -> None:
    """Set the class weights of an epoch, counted from 0: a pure function of the spec, so nothing is to be resumed.

    Options of deferred re-weighting: `reweight="effective"` weighs classes by their effective number of images from
    epoch `reweight_from` on, with parameter `reweight_beta`. Either of the last two implies the first.
    """
    if isinstance(loss, LDAMLoss) and spec.reweights:
        chosen = _chosen(spec)
        due, beta = epoch >= chosen["reweight_from"], chosen["reweight_beta"]
        loss.reweight(effective_number_weights(class_counts, beta, dtype=torch.float64) if due else None)


def total_weight(loss: nn.Module, target: Tensor) -> Tensor | int:
    """Return the divisor of a batch's mean loss: its images, or their weights where classes have weights."""
    return loss.weight[target].sum() if isinstance(loss, LDAMLoss) else len(target)


def last_loss(spec: RunSpec, class_counts: Sequence[int]) -> nn.Module:
    """Build the spec's loss as in its last epoch, by which finished runs are evaluated."""
    loss = build_loss(spec, class_counts)
    reweight(loss, spec, class_counts, spec.trained_epochs - 1)
    return loss


def _check_reweighting(chosen: Mapping[str, Any], named: Mapping[str, Any], class_counts: Sequence[int]) -> None:
    """Refuse now what would otherwise stop a run in the epoch in which its classes get their weights."""
    if "reweight" in named and chosen["reweight"] != "effective":
        raise ValueError(f"reweight must be 'effective', got {chosen['reweight']!r}.")
    start = chosen["reweight_from"]
    if not isinstance(start, int) or start < 0:
        raise ValueError(f"reweight_from must be an epoch, counted from 0, got {start!r}.")
    effective_number_weights(class_counts, chosen["reweight_beta"])


def _chosen(spec: RunSpec) -> dict[str, Any]:
    return {**loss_defaults(spec.loss), **dict(spec.loss_options)}
