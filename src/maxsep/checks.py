"""Checks of user input, one message each: what was given, what is allowed, what to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]
Basis = Literal["recursive", "householder"]
"""The coordinates of the simplex: the paper's, or those of a Householder reflection (`maxsep.simplex`)."""
IGNORED = -100
"""The label of a sample that shall not count; torch's own losses use the same number."""


def check_num_classes(num_classes: Any) -> int:
    """Return a valid number of classes, or say what is wrong with it.

    >>> check_num_classes(10)
    10
    """
    _check_int("num_classes", num_classes, "Pass a whole number such as 10.")
    if num_classes < 2:
        raise ValueError(
            f"num_classes must be at least 2, got {num_classes}. "
            "A simplex needs two classes; for one-class problems use a detector on the features."
        )
    return int(num_classes)


def check_count(name: str, value: Any, *, least: int = 1) -> int:
    """Return a whole number of at least `least`, or say what is wrong with it.

    >>> check_count("in_features", 64)
    64
    """
    _check_int(name, value, "Pass a whole number.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}. Pass a larger whole number.")
    return int(value)


def check_radius(radius: Any) -> float:
    """Return a valid radius as a float, or say what is wrong with it.

    >>> check_radius(0.1)
    0.1
    """
    return _check_positive(
        "radius",
        radius,
        "Pass a positive float such as 1.0; to learn a scale, multiply the logits by a parameter of your own.",
        "It scales all logits: 1.0, the default, leaves them as they are.",
    )


def check_basis(basis: Any) -> Basis:
    """Return one of the two bases of the simplex, or say which there are.

    >>> check_basis("householder")
    'householder'
    """
    if basis not in get_args(Basis):
        raise ValueError(
            f"basis must be one of {', '.join(get_args(Basis))}, got {basis!r}. "
            "Leave it out for the paper's, 'recursive'."
        )
    found: Basis = basis
    return found


def check_floating(x: Any, name: str = "x") -> Tensor:
    """Return a real floating-point tensor, or say what is wrong with it.

    >>> check_floating(torch.zeros(2, 3)).shape
    torch.Size([2, 3])
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {_told(x)}. Convert it with torch.as_tensor.")
    if not x.is_floating_point():
        raise TypeError(
            f"{name} must be a real floating-point tensor, got dtype {x.dtype}. Convert it with {name}.float()."
        )
    return x


def check_last_dimension(x: Tensor, expected: int, meaning: str) -> None:
    """Raise unless the last dimension of `x` has `expected` entries.

    >>> check_last_dimension(torch.zeros(2, 3), 3, "in_features")
    """
    if x.dim() == 0 or x.shape[-1] != expected:
        advice = "Check the layer before the head, or build the head for this width."
        if x.dim() == 4 and x.shape[1] == expected:
            advice = "These are feature maps: pool them first, with x.mean((2, 3)), or flatten them for a wider head."
        raise ValueError(
            f"the last dimension of x must be {meaning} = {expected}, got shape {tuple(x.shape)}. {advice}"
        )


def check_number(name: str, value: Any, allowed: str, is_allowed: Callable[[float], bool]) -> float:
    """Return a finite number for which `is_allowed` holds, or say what is allowed.

    >>> check_number("tau", 1, "a number of at least 0", lambda tau: tau >= 0)
    1.0
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be {allowed}, got {type(value).__name__} {value!r}. Pass a plain number.")
    if not (math.isfinite(value) and is_allowed(value)):
        raise ValueError(f"{name} must be {allowed}, got {value!r}. Choose a value in this range.")
    return float(value)


def check_reduction(reduction: Any) -> Reduction:
    """Return one of torch's three reductions, or say which there are.

    >>> check_reduction("mean")
    'mean'
    """
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction must be one of {', '.join(get_args(Reduction))}, got {reduction!r}. Choose one.")
    found: Reduction = reduction
    return found


def check_smoothing(label_smoothing: Any) -> float:
    """Return the share of the target that is spread over all classes, or say what it may be.

    >>> check_smoothing(0.1)
    0.1
    """
    return check_number("label_smoothing", label_smoothing, "a number from 0 to 1", lambda value: 0 <= value <= 1)


def check_per_class(name: str, values: Any, num_classes: int, device: torch.device) -> Tensor | None:
    """Return one number for every class, (C,), or None if None is given, or say what is wrong with them.

    >>> check_per_class("weight", torch.ones(3), 3, torch.device("cpu"))
    tensor([1., 1., 1.])
    """
    if values is None:
        return None
    numbers = check_floating(values, name)
    if numbers.shape != (num_classes,):
        raise ValueError(
            f"{name} must be ({num_classes},), one number for every class, got shape {tuple(numbers.shape)}. "
            "Build it for the head's number of classes."
        )
    if numbers.device != device:
        raise ValueError(f"{name} must be on the device of x, {device}, got {numbers.device}. Move it with .to().")
    return numbers


def check_index_type(target: Any) -> None:
    """Raise unless target is a tensor of class indices.

    >>> check_index_type(torch.tensor([0, 2]))
    """
    if not isinstance(target, Tensor):
        raise TypeError(
            f"target must be a tensor of class indices, got {type(target).__name__}. "
            "Convert it with torch.as_tensor(target)."
        )
    if target.dtype != torch.int64:
        raise TypeError(
            f"target must hold class indices of dtype torch.int64, got {target.dtype}. Convert indices with "
            "target.long() and one-hot rows with target.argmax(1); for two labels a sample, mix two losses as "
            "maxsep.losses.mixup shows."
        )


def check_labels(target: Tensor, num_classes: int, ignored: int = IGNORED) -> None:
    """Raise for a label that is neither a class nor `ignored`, where looking at labels is free.

    >>> check_labels(torch.tensor([0, 2, -100]), 3)
    """
    if not can_look(target):
        return
    target = target.reshape(-1)
    bad = ((target < 0) | (target >= num_classes)) & (target != ignored)
    if bad.any():
        position = int(bad.nonzero()[0])
        raise ValueError(
            f"target must hold class indices from 0 to {num_classes - 1}, or {ignored} for a sample to ignore, "
            f"got {int(target[position])} at position {position}. Check the labels, or build the loss for more classes."
        )


def advice_on_labels(target: Tensor) -> str:
    """Say what to do about labels of another shape than (batch,).

    >>> advice_on_labels(torch.zeros(4, 3)), advice_on_labels(torch.zeros(3))
    ('Turn one-hot rows into indices with target.argmax(1).', 'Give as many labels as samples.')
    """
    if target.dim() == 1:
        return "Give as many labels as samples."
    return "Turn one-hot rows into indices with target.argmax(1)."


def can_look(target: Tensor) -> bool:
    """Say whether the numbers of a tensor can be looked at for free: on the CPU, outside of tracers and transforms."""
    return (
        target.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and type(target) is Tensor  # the fake tensors of a tracer have no values
        and torch._C._functorch.peek_interpreter_stack() is None  # nor may vmap's be asked
    )


def _check_positive(name: str, value: Any, other_type: str, other_value: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Real):
        raise TypeError(f"{name} must be a number, got {_told(value)}. {other_type}")
    number: Any = value
    if not 0 < number < math.inf:  # comparisons, because a compiler can trace them
        raise ValueError(f"{name} must be positive and finite, got {value}. {other_value}")
    return float(number)


def _check_int(name: str, value: Any, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | Integral):
        raise TypeError(f"{name} must be an int, got {_told(value)}. {hint}")


def _told(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r}"
