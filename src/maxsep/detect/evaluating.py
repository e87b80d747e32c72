"""Running a classifier for its answers only: evaluation mode for a while, its device, logits out of what it returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put a module into evaluation mode, and afterwards every part of it back into its own.

    A method of a module, such as `network.features`, stands for the module; any other callable is left alone.

    >>> model = nn.Dropout()
    >>> with evaluating(model):
    ...     print(model.training)
    False
    >>> model.training
    True
    """
    owner = _module(model)
    before = [] if owner is None else [(part, part.training) for part in owner.modules()]
    for part, _ in before:
        part.training = False
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def device_of(model: Any) -> torch.device | None:
    """Say where the parameters of a model lie (the first, if they are spread); None if it has none.

    A method of a module stands for the module, as in `evaluating`.

    >>> device_of(nn.Linear(2, 2)), device_of(len)
    (device(type='cpu'), None)
    """
    owner = _module(model)
    return None if owner is None else next((parameter.device for parameter in owner.parameters()), None)


def logits_of(model: Any, x: Any) -> Tensor:
    """Return the logits of a model, also of one that answers with an object that holds `.logits`."""
    answer = model(x)
    logits = getattr(answer, "logits", answer)
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model must return logits as a tensor (or in an attribute `logits`), got {type(answer).__name__}. "
            "Wrap it so that it returns (B, C) logits."
        )
    return logits


def _module(model: Any) -> nn.Module | None:
    owner = model if isinstance(model, nn.Module) else getattr(model, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None
