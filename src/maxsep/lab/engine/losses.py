"""The losses that a spec can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maxsep.checks import check_number
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

_REWEIGHTING: dict[str, Any] = {"reweight": None, "reweight_from": 0, "reweight_beta": 0.9999}
_OPTIONS: dict[str, dict[str, Any]] = {
    "balanced_softmax": {},
    "cross_entropy": {"label_smoothing": 0.0},
    "label_aware_smoothing": {"smooth_head": 0.4, "smooth_tail": 0.1},
    "ldam": {"max_margin": 0.5, "scale": LDAM_SCALE, **_REWEIGHTING},
    "logit_adjusted": {"tau": 1.0},
    "squared_cosine": {},
}
"""The options of every loss and their defaults; None: left out, nothing of the kind is done."""


def build_loss(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    """Build the spec's loss.

    Options by name: cross_entropy (label_smoothing=0), ldam (max_margin=0.5, scale=30, and those of `reweight`),
    logit_adjusted (tau=1), label_aware_smoothing (smooth_head=0.4, smooth_tail=0.1: the published choice for CIFAR-100
    at imbalance 0.01); balanced_softmax and squared_cosine take none: `loss_defaults` says them. Those of the long tail
    are modules: move them to the device of the logits. They refuse a class without training images.

    >>> loss = build_loss(RunSpec(), [50, 5])
    >>> round(loss(torch.zeros(1, 2), torch.tensor([0])).item(), 4)
    0.6931
    """
    if spec.loss not in _LOSSES:
        raise ValueError(f"unknown loss {spec.loss!r}. Known: {', '.join(loss_names())}.")
    if spec.loss in _OPTIONS:
        check_loss_options(spec.loss, dict(spec.loss_options))
    return _LOSSES[spec.loss](spec, class_counts)


def loss_names() -> list[str]:
    """Name the losses that a spec can ask for."""
    return sorted(_LOSSES)


def loss_defaults(loss: str) -> dict[str, Any]:
    """Give the options of a loss with their defaults; one that was registered later is known to have none.

    >>> loss_defaults("label_aware_smoothing")
    {'smooth_head': 0.4, 'smooth_tail': 0.1}
    """
    return dict(_OPTIONS.get(loss, {}))


def check_loss_options(loss: str, given: Mapping[str, Any]) -> None:
    """Raise if a loss does not have one of these options; the message lists those that it has.

    >>> check_loss_options("logit_adjusted", {"margin": 1.0})
    Traceback (most recent call last):
        ...
    ValueError: loss 'logit_adjusted' does not take the options ['margin']. Known: tau=1.
    """
    defaults = loss_defaults(loss)
    if unknown := sorted(given.keys() - defaults.keys()):
        known = [f"{k}=effective (by default none)" if v is None else f"{k}={v:g}" for k, v in defaults.items()]
        raise ValueError(f"loss {loss!r} does not take the options {unknown}. Known: {', '.join(known) or 'none'}.")


def register_loss(name: str, factory: LossFactory) -> None:
    """Make a loss known under a name; a name that is taken is an error."""
    if name in _LOSSES:
        raise ValueError(f"the loss {name!r} exists already. Choose another name than: {', '.join(loss_names())}.")
    _LOSSES[name] = factory


def _cross_entropy(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    given = _chosen(spec)["label_smoothing"]
    smoothing = check_number("label_smoothing", given, "a number in [0, 1]", lambda value: 0 <= value <= 1)

    def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target, label_smoothing=smoothing)

    return cross_entropy


def _squared_cosine(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    def squared_cosine(logits: Tensor, target: Tensor) -> Tensor:
        """Average (1 - cos)^2 over the batch, where the logits are cosines with the class vectors."""
        return (1 - logits.gather(1, target[:, None])).square().mean()

    return squared_cosine


def reweight(loss: Loss, spec: RunSpec, class_counts: Sequence[int], epoch: int) -> None:
    """Set the class weights of an epoch, counted from 0: a pure function of the spec, so nothing is to be resumed.

    Deferred re-weighting has three loss options: reweight="effective" weighs classes by their effective number of
    images, reweight_from=160 says from which epoch on (before it, all weigh the same), reweight_beta=0.9999 how. Either
    of the last two asks for the first, too.

    >>> spec = RunSpec(loss="ldam", loss_options=(("reweight", "effective"), ("reweight_from", 160)))
    >>> loss = build_loss(spec, [500, 5])
    >>> reweight(loss, spec, [500, 5], epoch=160)
    >>> loss.weight.round(decimals=3).tolist()
    [0.02, 1.98]
    """
    if isinstance(loss, LDAMLoss) and spec.reweights:
        chosen = _chosen(spec)
        due, beta = epoch >= chosen["reweight_from"], chosen["reweight_beta"]
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


def _check_reweighting(spec: RunSpec, class_counts: Sequence[int]) -> None:
    """Refuse now what would otherwise stop a run in the epoch in which its classes get their weights."""
    chosen = _chosen(spec)
    how, start = chosen["reweight"], chosen["reweight_from"]
    given = dict(spec.loss_options)
    if how != "effective" and "reweight" in given:
        raise ValueError(f"unknown re-weighting {how!r}. Known: effective. Leave it out for none.")
    if not isinstance(start, int) or start < 0:
        raise ValueError(f"reweight_from must be an epoch, counted from 0, got {start!r}. Name one such as 160 of 200.")
    effective_number_weights(class_counts, chosen["reweight_beta"])


def _ldam(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    if spec.reweights:
        _check_reweighting(spec, class_counts)
    own = {key: value for key, value in _chosen(spec).items() if key not in _REWEIGHTING}
    return LDAMLoss(class_counts, **own)


def _logit_adjusted(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    return LogitAdjustedLoss(class_counts, **_chosen(spec))


def _balanced_softmax(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    return BalancedSoftmaxLoss(class_counts)


def _label_aware_smoothing(spec: RunSpec, class_counts: Sequence[int]) -> Loss:
    return LabelAwareSmoothingLoss(class_counts, **_chosen(spec))


def _chosen(spec: RunSpec) -> dict[str, Any]:
    """Give the spec's loss options over the defaults."""
    return {**loss_defaults(spec.loss), **dict(spec.loss_options)}


_LOSSES: dict[str, LossFactory] = {
    "balanced_softmax": _balanced_softmax,
    "cross_entropy": _cross_entropy,
    "label_aware_smoothing": _label_aware_smoothing,
    "ldam": _ldam,
    "logit_adjusted": _logit_adjusted,
    "squared_cosine": _squared_cosine,
}
