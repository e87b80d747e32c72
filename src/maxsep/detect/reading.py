"""Reading a data loader batch by batch, and a model for its logits and features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from maxsep.detect.evaluating import logits_of


def batches(loader: Iterable[Any], device: torch.device | str | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the inputs of a loader on a device, each with its labels on the CPU, or None where there are none.

    Args:
        loader: Yields inputs (B, ...), or (inputs, labels, ...). One pass is made, so a generator will do.
        device: Where inputs are moved to; None leaves them where they are.

    >>> [(len(inputs), labels) for inputs, labels in batches([torch.zeros(2, 3), [torch.zeros(1, 3)]], "cpu")]
    [(2, None), (1, None)]
    """
    empty = True
    for batch in loader:
        inputs, labels = _unpack(batch)
        yield inputs if device is None else inputs.to(device), labels
        empty = False
    if empty:
        raise ValueError(
            "the loader yields no batches, so there is nothing to read. "
            "Check the size of the dataset, or make the generator anew if it was read before."
        )


class Reader:
    """Reads logits and features of a model, in one pass through the backbone if the model allows it.

    A method `features` gives the features (B, D). A submodule of that name does not count: in some libraries it is a
    stack of convolutions, whose output is no feature vector.

    >>> Reader(nn.Linear(3, 2)).has_features
    False
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        features = getattr(model, "features", None)
        self._features = features if callable(features) and not isinstance(features, nn.Module) else None
        self._head = getattr(model, "head", None)
        self._short_cut: bool | None = None if isinstance(self._head, nn.Module) else False

    @property
    def has_features(self) -> bool:
        """Whether the model has a method `features`."""
        return self._features is not None

    def features(self, inputs: Tensor) -> Tensor:
        """Return the features (B, D) of inputs; ask only a model that has them."""
        assert self._features is not None, "asked for features that the model does not have"
        features = self._features(inputs)
        if not isinstance(features, Tensor) or features.ndim != 2:
            told = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
            raise ValueError(f"model.features must give (B, D), got {told}. Pool over space in that method.")
        return features

    def read(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return logits and features; no features if the model has none."""
        if not self.has_features:
            return logits_of(self.model, inputs), None
        features = self.features(inputs)
        if self._short_cut:
            return logits_of(self._head, features), features
        logits = logits_of(self.model, inputs)
        if self._short_cut is None:
            self._short_cut = self._agrees(features, logits)
        return logits, features

    def _agrees(self, features: Tensor, logits: Tensor) -> bool:
        try:
            other = logits_of(self._head, features)
        except (RuntimeError, TypeError, ValueError):
            return False  # this head takes something else
        return other.shape == logits.shape and torch.allclose(other, logits, rtol=1e-4, atol=1e-5, equal_nan=True)


def _unpack(batch: Any) -> tuple[Tensor, Tensor | None]:
    parts = batch if isinstance(batch, tuple | list) else (batch,)
    if not parts or not all(isinstance(part, Tensor) for part in parts[:2]):
        raise TypeError(
            f"a batch must be a tensor or (inputs, labels, ...), got {type(batch).__name__}"
            f"{' of ' + ', '.join(type(part).__name__ for part in parts) if isinstance(batch, tuple | list) else ''}. "
            "Wrap the loader so that it yields tensors."
        )
    return parts[0], parts[1].cpu() if len(parts) > 1 else None
