"""Running a classifier for its answers only: evaluation mode for a while, logits out of whatever it returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
    owner = model if isinstance(model, nn.Module) else getattr(model, "__self__", None)
    before = [(part, part.training) for part in owner.modules()] if isinstance(owner, nn.Module) else []
    for part, _ in before:
        part.training = False
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


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
