"""Check arguments that several rooms take; every error says in one line what is allowed and what was passed."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, ValuesView
from numbers import Integral, Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS = get_args(Reduction)
IGNORED = -100
"""The label of samples that do not count; torch's losses use the same number."""


def check_count(name: str, value: Any, *, least: int = 1) -> int:
    """Return a whole number of at least `least` as an int."""
    if isinstance(value, bool) or not isinstance(value, (int, Integral)):
        raise TypeError(f"{name} must be an int, got {_describe(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


RANGES: dict[str, Callable[[float], bool]] = {
    "a finite number": lambda value: True,
    "a positive number": lambda value: value > 0,
    "a number >= 0": lambda value: value >= 0,
    "a number in [0, 1]": lambda value: 0 <= value <= 1,
    "a number in [0, 1)": lambda value: 0 <= value < 1,
    "a number in (0, 1]": lambda value: 0 < value <= 1,
}


def check_number(name: str, value: Any, allowed: str) -> float:
    """Return a finite number of a range, a key of RANGES, as a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):  # torch 2.6 cannot trace int | float
        raise TypeError(f"{name} must be {allowed}, got {_describe(value)}")
    number: Any = value
    # comparisons, which a compiler can trace
    if not (-math.inf < number < math.inf and RANGES[allowed](number)):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return float(number)


def check_reduction(reduction: Any) -> Reduction:
    """Return one of torch's three reductions."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    valid: Reduction = reduction
    return valid


def check_floating(x: Any, name: str = "x") -> Tensor:
    """Return a real floating-point tensor as it is."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {_describe(x)}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be a real floating-point tensor, got dtype {x.dtype}")
    return x


def as_tensor(name: str, values: Any, **options: Any) -> Tensor:
    """Return what torch.as_tensor does, also for NumPy arrays with negative strides."""
    try:
        return torch.as_tensor(values.copy() if hasattr(values, "__array_interface__") else values, **options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be numbers, got {_describe(values)}") from error


def check_features(x: Any, expected: int, meaning: str) -> None:
    """Raise unless x is a floating-point tensor whose last dimension has `expected` entries."""
    check_floating(x)
    if x.dim() == 0 or x.shape[-1] != expected:
        advice = "; pool feature maps first" if x.dim() == 4 and x.shape[1] == expected else ""
        raise ValueError(f"the last dimension of x must be {meaning} = {expected}, got shape {tuple(x.shape)}{advice}")


def check_per_class(name: str, values: Any, num_classes: int, device: torch.device) -> Tensor | None:
    """Return a floating-point tensor (C,) on `device` as it is, or None."""
    if values is None:
        return None
    numbers = check_floating(values, name)
    if numbers.shape != (num_classes,):
        shape = tuple(numbers.shape)
        raise ValueError(f"{name} must be ({num_classes},), one number for every class, got shape {shape}")
    if numbers.device != device:
        raise ValueError(f"{name} must be on the device of x, {device}, got {numbers.device}")
    return numbers


def check_target(target: Any, shape: torch.Size, num_classes: int, ignored: int = IGNORED) -> None:
    """Raise unless target holds int64 class indices or `ignored`, in this shape; read where that needs no waiting."""
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a tensor of class indices, got {_describe(target)}")
    if target.dtype != torch.int64:
        raise TypeError(f"target must hold class indices of dtype torch.int64, got {target.dtype}")
    if target.shape != shape:
        raise ValueError(f"target must be {tuple(shape)}, a label per sample, got {tuple(target.shape)}")
    if not can_look(target):
        return
    target = target.reshape(-1)
    bad = ((target < 0) | (target >= num_classes)) & (target != ignored)
    if bad.any():
        position = int(bad.nonzero()[0])
        allowed = f"class indices from 0 to {num_classes - 1}, or {ignored} for a sample to ignore"
        raise ValueError(f"target must hold {allowed}, got {int(target[position])} at position {position}")


def check_samples(name: str, rows: Any, labels: Any, *, least: int = 1) -> None:
    """Raise unless rows are a floating-point tensor (N, D) and labels a tensor (N,), of at least so many samples."""
    check_floating(rows, name)
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a tensor, got {_describe(labels)}")
    if rows.ndim != 2 or labels.shape != rows.shape[:1] or len(labels) < least:
        shapes = f"{tuple(rows.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"{name} must be (N, D) and labels (N,) with N >= {least}, got {shapes}")


def check_class_counts(class_counts: Any) -> Tensor:
    """Return the number of training samples of every class, (C,) int64 on the CPU, each at least 1."""
    counts = as_vector("class_counts", class_counts)
    if len(counts) < 2:
        raise ValueError(f"class_counts must have an entry for each of at least 2 classes, got {len(counts)}")
    require_all("class_counts", counts, counts >= 1, "at least 1")
    whole = (counts == counts.round()) & (counts <= 2**53)  # larger floats skip numbers
    require_all("class_counts", counts, whole, "whole numbers")
    return counts.to(torch.int64)


def check_class_weights(weight: Any, num_classes: int) -> Tensor:
    """Return positive weights, (C,) float64 on the CPU; None gives ones."""
    weights = as_vector("weight", [1.0] * num_classes if weight is None else weight)
    if len(weights) != num_classes:
        raise ValueError(f"weight must have an entry for each of the {num_classes} classes, got {len(weights)}")
    require_all("weight", weights, (weights > 0) & weights.isfinite(), "positive and finite")
    return weights


def can_look(tensor: Tensor) -> bool:
    """Return whether values can be read without waiting: on the CPU, outside of tracing and function transforms."""
    return (
        tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and type(tensor) is Tensor  # the fake tensors of a tracer have no values
        and torch._C._functorch.peek_interpreter_stack() is None  # vmap's batched tensors have no single value
    )


def as_vector(name: str, values: Any) -> Tensor:
    """Return one number for every class, (C,) float64 on the CPU."""
    # a Counter lists classes in the order in which it met them, value_counts of pandas by falling count
    in_order = getattr(getattr(values, "index", None), "is_monotonic_increasing", True)
    if isinstance(values, Mapping | ValuesView) or not in_order:
        raise TypeError(f"{name} must be numbers in class order, as of torch.bincount, got {_describe(values)}")
    values = list(values) if isinstance(values, Iterator) or hasattr(values, "index") else values
    vector = as_tensor(name, values, dtype=torch.float64, device="cpu").detach().clone()
    if vector.dim() != 1 or not len(vector):
        raise ValueError(f"{name} must hold one number per class, got shape {tuple(vector.shape)}")
    return vector


def require_all(name: str, values: Tensor, allowed: Tensor, meaning: str) -> None:
    """Raise for the first class whose value is not allowed."""
    if not allowed.all():
        position = int((~allowed).nonzero()[0])
        raise ValueError(f"{name} must be {meaning}, got {values[position].item():g} for class {position}")


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if shape := getattr(value, "shape", ()):
        return f"{type(value).__name__} of shape {tuple(shape)}"
    return textwrap.shorten(f"{type(value).__name__} {value!r}", 120, placeholder=" ...")
