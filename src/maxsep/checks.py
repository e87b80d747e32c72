"""Checks of user input, one message each: what was given, what is allowed, what to do."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import torch


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
        "Pass a positive float such as 0.1; to learn a scale, multiply the logits by a parameter of your own.",
        "It scales all logits: 1.0 is the paper's default, 0.1 its choice for long-tailed ResNets.",
    )


def check_positive(name: str, value: Any) -> float:
    """Return a positive finite number as a float, or say what is wrong with it.

    >>> check_positive("temperature", 2)
    2.0
    """
    return _check_positive(name, value, "Pass a positive float.", "Pass a positive float.")


def check_floating(x: Any, name: str = "x") -> torch.Tensor:
    """Return a real floating-point tensor, or say what is wrong with it.

    >>> check_floating(torch.zeros(2, 3)).shape
    torch.Size([2, 3])
    """
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, got {_told(x)}. Convert it with torch.as_tensor.")
    if not x.is_floating_point():
        raise TypeError(
            f"{name} must be a real floating-point tensor, got dtype {x.dtype}. Convert it with {name}.float()."
        )
    return x


def check_last_dimension(x: torch.Tensor, expected: int, meaning: str) -> None:
    """Raise unless the last dimension of `x` has `expected` entries.

    >>> check_last_dimension(torch.zeros(2, 3), 3, "in_features")
    """
    if x.dim() == 0 or x.shape[-1] != expected:
        raise ValueError(
            f"the last dimension of x must be {meaning} = {expected}, got shape {tuple(x.shape)}. "
            "Check the layer before the head, or build the head for this width."
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
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r}"
