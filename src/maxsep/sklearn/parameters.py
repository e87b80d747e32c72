"""Checks of the estimator's parameters, at fit: which one, what is allowed, what was given, what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch

from maxsep import heads

__all__ = ["LOSSES", "check_parameters", "check_partial", "find_device"]

LOSSES = ("cross_entropy", "logit_adjusted")


class Rule(NamedTuple):
    """What a parameter may be, in words and as a test, and what to do about another value."""

    allowed: str
    holds: Callable[[Any], bool]
    advice: str


def is_whole(value: Any, least: int) -> bool:
    """Say whether a value is a whole number of at least `least`, of Python's type or numpy's; True and False are none.

    >>> is_whole(np.int64(3), 1), is_whole(True, 0), is_whole(3.0, 1)
    (True, False, False)
    """
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def is_number(value: Any, fits: Callable[[float], bool]) -> bool:
    """Say whether a value is a finite number for which `fits` holds.

    >>> is_number(np.float32(0.5), lambda value: value > 0), is_number("1", lambda value: value > 0)
    (True, False)
    """
    return (
        not isinstance(value, bool)
        and isinstance(value, Real)
        and bool(np.isfinite(float(value)))
        and fits(float(value))
    )


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _are_widths(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(is_whole(width, 1) for width in value)


def _are_class_weights(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(is_number(weight, lambda number: number >= 0) for weight in value.values())
    return value is None or (isinstance(value, str) and value == "balanced")


def _rules() -> dict[str, Rule]:
    """State the rules; a function, because heads may be registered at any time."""
    names = ", ".join(heads.names())
    positive = "a positive finite number"
    return {
        "hidden_layer_sizes": Rule(
            "a tuple of whole numbers of at least 1", _are_widths, "Pass (100,) for one hidden layer, () for none."
        ),
        "radius": Rule(
            positive, lambda value: is_number(value, lambda number: number > 0), "It scales all logits; start with 1.0."
        ),
        "head": Rule(f"one of {names}", lambda value: value in heads.names(), "Add yours with maxsep.heads.register."),
        "loss": Rule(
            f"one of {', '.join(LOSSES)}", lambda value: value in LOSSES, "Take the second if y is imbalanced."
        ),
        "class_weight": Rule(
            "None, 'balanced' or a dict of numbers of at least 0", _are_class_weights, "Pass {label: weight}."
        ),
        "max_epochs": Rule("a whole number of at least 1", lambda value: is_whole(value, 1), "Start with 100."),
        "batch_size": Rule(
            "'auto' or a whole number of at least 1",
            lambda value: is_whole(value, 1) or (isinstance(value, str) and value == "auto"),
            "Leave it at 'auto' for 200 samples.",
        ),
        "learning_rate": Rule(
            positive, lambda value: is_number(value, lambda number: number > 0), "Start with 0.1 at radius 1."
        ),
        "momentum": Rule(
            "a number from 0 to below 1", lambda value: is_number(value, lambda number: 0 <= number < 1), "Take 0.9."
        ),
        "weight_decay": Rule(
            "a finite number of at least 0", lambda value: is_number(value, lambda number: number >= 0), "0 is none."
        ),
        "early_stopping": Rule("True or False", _is_flag, "True needs samples to hold out."),
        "validation_fraction": Rule(
            "a number between 0 and 1", lambda value: is_number(value, lambda number: 0 < number < 1), "Take 0.1."
        ),
        "patience": Rule("a whole number of at least 1", lambda value: is_whole(value, 1), "Start with 10."),
        "verbose": Rule("True or False", _is_flag, "True prints the loss of every epoch."),
    }


def check_parameters(estimator: Any) -> None:
    """Raise for the first parameter of an estimator that breaks its rule.

    >>> from maxsep.sklearn import MaxSeparationClassifier
    >>> check_parameters(MaxSeparationClassifier())
    """
    for name, rule in _rules().items():
        value = getattr(estimator, name)
        if not rule.holds(value):
            raise ValueError(
                f"The {name!r} parameter of {type(estimator).__name__} must be {rule.allowed}, got {value!r}. "
                f"{rule.advice}"
            )
    find_device(estimator.device)


def check_partial(estimator: Any) -> bool:
    """Say that an estimator can be trained on a part of the data at a time, or raise for what needs all of them.

    >>> from maxsep.sklearn import MaxSeparationClassifier
    >>> check_partial(MaxSeparationClassifier())
    True
    """
    for name, value, instead in (
        ("class_weight", "balanced", "Pass a dict of weights, or sample_weight"),
        ("loss", "logit_adjusted", "Use 'cross_entropy' with sample_weight"),
        ("early_stopping", True, "Turn it off"),
    ):
        given = getattr(estimator, name)
        if type(given) is type(value) and given == value:
            raise ValueError(
                f"partial_fit cannot have {name}={value!r}, which needs all samples at once. {instead}, or call fit."
            )
    return True


def find_device(device: Any) -> torch.device:
    """Return the device of a name, `auto` being an accelerator if there is one, or say why it cannot be used.

    >>> find_device("cpu")
    device(type='cpu')
    """
    if isinstance(device, str) and device == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (AssertionError, RuntimeError, TypeError, NotImplementedError) as problem:
        reason = str(problem).splitlines()[0]
        raise ValueError(
            f"The 'device' parameter of MaxSeparationClassifier must be a device of this machine, got {device!r}. "
            f"Torch says: {reason}. Pass 'cpu', or 'auto' for an accelerator if there is one."
        ) from problem
    return found
