"""The losses that a spec can name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maxsep.lab.spec import LDAM_SCALE, RunSpec
from maxsep.losses import (
    BalancedSoftmaxLoss,
    LabelAwareSmoothingLoss,
    LDAMLoss,
    LogitAdjustedLoss,
    effective_number_weights,
)

Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps logits (B, C) and class indices (B,) to a scalar."""
LossFactory = Callable[[RunSpec, Sequence[int]], Loss]
"""Builds a loss from the spec and the number of training images of every class."""


def build_loss(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    """Build the spec's loss.

    Options by name: cross_entropy (label_smoothing=0), ldam (max_margin=0.5, scale=30, and those of `reweight`),
    logit_adjusted (tau=1), label_aware_smoothing (smooth_head=0.4, smooth_tail=0.1: the published choice for CIFAR-100
    at imbalance 0.01); balanced_softmax and squared_cosine take none. Those of the long tail are modules: move them to
    the device of the logits. They refuse a class without training images.

    >>> loss = build_loss(RunSpec(), [50, 5])
    >>> round(loss(torch.zeros(1, 2), torch.tensor([0])).item(), 4)
    0.6931
    """
    if spec.loss not in _LOSSES:
        raise ValueError(f"unknown loss {spec.loss!r}. Known: {', '.join(loss_names())}.")
    return _LOSSES[spec.loss](spec, class_counts)


def loss_names() -> list[str]:
    """Name the losses that a spec can ask for."""
    return sorted(_LOSSES)


def register_loss(name: str, factory: LossFactory) -> None:
    """Make a loss known under a name; a name that is taken is an error."""
    if name in _LOSSES:
        raise ValueError(f"the loss {name!r} exists already. Choose another name than: {', '.join(loss_names())}.")
    _LOSSES[name] = factory


def _cross_entropy(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    options = dict(spec.loss_options)
    smoothing = float(options.pop("label_smoothing", 0.0))
    _refuse(options, "cross_entropy", "label_smoothing")

    def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target, label_smoothing=smoothing)

    return cross_entropy


def _squared_cosine(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    _refuse(dict(spec.loss_options), "squared_cosine", "none")

    def squared_cosine(logits: Tensor, target: Tensor) -> Tensor:
        """Average (1 - cos)^2 over the batch, where the logits are cosines with the class vectors."""
        return (1 - logits.gather(1, target[:, None])).square().mean()

    return squared_cosine


def reweight(loss: Loss, spec: RunSpec, class_counts: Sequence[int], epoch: int) -> None:
    """Set the class weights of an epoch, counted from 0: a pure function of the spec, so nothing is to be resumed.

    Deferred re-weighting has three loss options: reweight="effective" weighs classes by their effective number of
    images, reweight_from=160 says from which epoch on (before it, all weigh the same), reweight_beta=0.9999 how.

    >>> spec = RunSpec(loss="ldam", loss_options=(("reweight", "effective"), ("reweight_from", 160)))
    >>> loss = build_loss(spec, [500, 5])
    >>> reweight(loss, spec, [500, 5], epoch=160)
    >>> loss.weight.round(decimals=3).tolist()
    [0.02, 1.98]
    """
    if isinstance(loss, LDAMLoss) and "reweight" in dict(spec.loss_options):
        chosen = _reweighting(spec)
        due = epoch >= int(chosen["reweight_from"])
        beta = float(chosen["reweight_beta"])
        loss.reweight(effective_number_weights(class_counts, beta, dtype=torch.float64) if due else None)


def last_loss(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    """Build the spec's loss as its last epoch has it, by which finished runs are judged.

    >>> spec = RunSpec(loss="ldam", loss_options=(("reweight", "effective"),))
    >>> last_loss(spec, [500, 5]).weight.round(decimals=3).tolist()
    [0.02, 1.98]
    """
    loss = build_loss(spec, class_counts)
    reweight(loss, spec, class_counts, spec.epochs - 1)
    return loss


def _reweighting(spec: RunSpec) -> dict[str, Any]:
    chosen = {"reweight": "effective", "reweight_from": 0, "reweight_beta": 0.9999, **dict(spec.loss_options)}
    if chosen["reweight"] != "effective":
        raise ValueError(f"unknown re-weighting {chosen['reweight']!r}. Known: effective. Leave it out for none.")
    return chosen


def _ldam(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    deferred = ("reweight", "reweight_from", "reweight_beta")
    if "reweight" in dict(spec.loss_options):
        _reweighting(spec)
        own = tuple((key, value) for key, value in spec.loss_options if key not in deferred)
        spec = spec.replace(loss_options=own)
    return LDAMLoss(class_counts, **_take(spec, max_margin=0.5, scale=LDAM_SCALE))


def _logit_adjusted(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    return LogitAdjustedLoss(class_counts, **_take(spec, tau=1.0))


def _balanced_softmax(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    return BalancedSoftmaxLoss(class_counts, **_take(spec))


def _label_aware_smoothing(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    return LabelAwareSmoothingLoss(class_counts, **_take(spec, smooth_head=0.4, smooth_tail=0.1))


def _take(spec: RunSpec, **defaults: float) -> dict[str, Any]:
    """Give the spec's loss options over the defaults; one without a default is refused."""
    given = dict(spec.loss_options)
    _refuse({key: given[key] for key in given.keys() - defaults}, spec.loss, ", ".join(defaults) or "none")
    return {**defaults, **given}


def _refuse(options: dict[str, object], loss: str, known: str) -> None:
    if options:
        raise ValueError(f"loss {loss!r} does not take the options {sorted(options)}. Known: {known}.")


_LOSSES: dict[str, LossFactory] = {
    "balanced_softmax": _balanced_softmax,
    "cross_entropy": _cross_entropy,
    "label_aware_smoothing": _label_aware_smoothing,
    "ldam": _ldam,
    "logit_adjusted": _logit_adjusted,
    "squared_cosine": _squared_cosine,
}
