"""Checks of what a loss is built from and called with: class counts, class weights, options, batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, ValuesView
from typing import Any

import torch
from torch import Tensor

from maxsep.checks import IGNORED, advice_on_labels, check_floating, check_index_type, check_labels, check_number

__all__ = [
    "IGNORED",
    "check_batch",
    "check_class_counts",
    "check_class_weights",
    "check_index_type",
    "check_labels",
    "check_number",
]


def check_class_counts(class_counts: Any) -> Tensor:
    """Return the number of training samples of every class, (C,) int64 on the CPU, or say what is wrong with it.

    Floats are taken if they are whole. A class without samples is an error: its margin, weight or prior is not defined.

    >>> check_class_counts([500, 50.0, 5])
    tensor([500,  50,   5])
    """
    counts = _as_vector("class_counts", class_counts, "how many training samples every class has, such as [500, 50, 5]")
    if len(counts) < 2:
        raise ValueError(
            f"class_counts must have an entry for each of at least 2 classes, got {len(counts)}. "
            "Pass the counts of all classes."
        )
    if counts.is_floating_point():
        whole = (counts == counts.round()) & (counts.abs() <= 2**53)  # beyond, floats skip numbers
        _require_all("class_counts", counts, whole, "whole numbers", "Pass counts, not frequencies.")
    advice = "Leave a class without samples out, and its logit too, or count it as 1."
    _require_all("class_counts", counts, counts >= 1, "at least 1", advice)
    return counts.to(torch.int64)


def check_class_weights(weight: Any, num_classes: int) -> Tensor:
    """Return one positive weight per class, (C,) float64 on the CPU; None gives ones.

    A weight of zero is an error: a batch with no other class would have no mean.

    >>> check_class_weights(None, 2)
    tensor([1., 1.], dtype=torch.float64)
    """
    if weight is None:
        return torch.ones(num_classes, dtype=torch.float64, device="cpu")
    weights = _as_vector("weight", weight, "one positive number for every class, or None for equal weights")
    if len(weights) != num_classes:
        raise ValueError(
            f"weight must have an entry for each of the {num_classes} classes of class_counts, got {len(weights)}. "
            "Compute it from the same counts."
        )
    weights = weights.to(torch.float64)
    positive = (weights > 0) & weights.isfinite()
    _require_all(
        "weight", weights, positive, "positive and finite", "Give a class that shall not count a small weight."
    )
    return weights


def check_batch(
    x: Any, target: Any, width: int, num_classes: int, meaning: str, name: str = "logits", averages: bool = True
) -> None:
    """Raise unless x is a floating-point (B, width) and target the B class indices that go with it.

    Labels are compared with the range of classes only where looking at them is free: in CPU tensors outside of
    compiled code and function transforms. On other devices this would make the host wait at every step.

    >>> check_batch(torch.zeros(2, 3), torch.tensor([0, 2]), 3, 3, "one column for every class")
    """
    check_floating(x, name)
    check_index_type(target)
    if x.dim() != 2 or x.shape[1] != width:
        raise ValueError(
            f"{name} must be (batch, {width}), {meaning}, got shape {tuple(x.shape)}. "
            "Check the head's number of outputs, or build the loss for this one; flatten any further dimensions."
        )
    if target.shape != x.shape[:1]:
        raise ValueError(
            f"target must be ({x.shape[0]},), a class index for every row of {name}, got shape {tuple(target.shape)}. "
            + advice_on_labels(target)
        )
    if x.shape[0] == 0 and averages:
        raise ValueError("the mean loss of an empty batch is not defined, got 0 samples. Skip empty batches.")
    if x.device != target.device:
        raise ValueError(
            f"{name} and target must be on one device, got {x.device} and {target.device}. "
            f"Move the target with target.to({name}.device)."
        )
    check_labels(target, num_classes)


def _as_vector(name: str, values: Any, meaning: str) -> Tensor:
    """Return user numbers as a CPU vector: int64 if they are whole by type, else float64."""
    advice = f"Pass a list or a tensor with {meaning}."
    if isinstance(values, Mapping | ValuesView):  # in the order in which classes were met
        raise TypeError(
            f"{name} must be numbers in the order of the classes, got {type(values).__name__}. Pass a list such as "
            "[counts[c] for c in range(num_classes)], or torch.bincount(labels)."
        )
    if isinstance(values, Iterator):
        values = list(values)
    if isinstance(values, Tensor) and values.is_meta:
        raise ValueError(f"{name} is on the meta device and has no values. {advice}")
    try:
        vector = torch.as_tensor(values, device="cpu").detach()
        if vector.is_floating_point():
            # what is whole as a Python float need not be so in float32
            vector = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError) as problem:
        raise TypeError(f"{name} must be numbers, got {type(values).__name__} {values!r}. {advice}") from problem
    if vector.dtype == torch.bool or vector.is_complex():
        raise TypeError(f"{name} must be numbers, got dtype {vector.dtype}. {advice}")
    if vector.dim() != 1:
        raise ValueError(f"{name} must have one dimension, got shape {tuple(vector.shape)}. {advice}")
    return vector.clone()  # the caller's own tensor may change later


def _require_all(name: str, values: Tensor, fine: Tensor, allowed: str, advice: str) -> None:
    if not fine.all():
        position = int((~fine).nonzero()[0])
        raise ValueError(f"{name} must be {allowed}, got {values[position].item():g} for class {position}. {advice}")
