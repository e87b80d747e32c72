"""Logits, features and labels of a whole data loader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from maxsep.detect.evaluating import evaluating, logits_of


class Collected(NamedTuple):
    """What a model said about a data loader, in its order, on the CPU."""

    logits: Tensor
    """(N, C)."""
    features: Tensor | None
    """(N, D), or None if the model has no method `features`."""
    labels: Tensor | None
    """(N,), or None if the loader yields inputs alone."""


@torch.no_grad()
def collect(model: nn.Module, loader: Iterable[Any], device: torch.device | str | None = None) -> Collected:
    """Gather logits, and features where the model has them, over a data loader.

    The model runs in evaluation mode without gradients and is left as it was found. Only results are kept, on the
    CPU, so the data may be larger than memory. Scores are then taken of all samples at once: measures that are fed
    batch by batch may rescale each batch by itself.

    Args:
        model: Maps inputs to logits (B, C). A method `features` that gives (B, D) is used; where the model is
            `head(features(x))`, which the first batch shows, the backbone runs once per batch.
        loader: Yields inputs, or (inputs, labels, ...).
        device: Where inputs are moved to; by default where the model's parameters lie. The model is not moved.

    Returns:
        A named tuple `(logits, features, labels)`.

    >>> batches = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1])), (torch.randn(2, 3), torch.tensor([1, 1]))]
    >>> logits, features, labels = collect(nn.Linear(3, 2), batches)
    >>> logits.shape, features, labels.tolist()
    (torch.Size([6, 2]), None, [0, 1, 0, 1, 1, 1])
    """
    if device is None:
        device = next((parameter.device for parameter in model.parameters()), None)
    reader = _Reader(model)
    rows: list[tuple[Tensor, Tensor | None, Tensor | None]] = []
    with evaluating(model):
        for batch in loader:
            inputs, given = _unpack(batch)
            answer, vectors = reader.read(inputs if device is None else inputs.to(device))
            rows.append((answer.cpu(), None if vectors is None else vectors.cpu(), given))
    if not rows:
        raise ValueError("the loader yields no batches, so there is nothing to collect. Check the size of the dataset.")
    logits, features, labels = zip(*rows, strict=True)
    return Collected(torch.cat(logits), _joined(features), _joined(labels))


class _Reader:
    """Reads logits and features, in one pass through the backbone if the model allows it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        features = getattr(model, "features", None)
        # in some libraries `features` is a stack of convolutions, whose output is no feature vector
        self.features = features if callable(features) and not isinstance(features, nn.Module) else None
        self.head = getattr(model, "head", None)
        self.short_cut: bool | None = None if isinstance(self.head, nn.Module) else False

    def read(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.features is None:
            return logits_of(self.model, inputs), None
        features = self.features(inputs)
        if not isinstance(features, Tensor) or features.ndim != 2:
            told = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
            raise ValueError(f"model.features must give (B, D), got {told}. Pool over space in that method.")
        if self.short_cut:
            return logits_of(self.head, features), features
        logits = logits_of(self.model, inputs)
        if self.short_cut is None:
            self.short_cut = self._agrees(features, logits)
        return logits, features

    def _agrees(self, features: Tensor, logits: Tensor) -> bool:
        try:
            other = logits_of(self.head, features)
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


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    if present and len(present) < len(parts):
        raise ValueError("some batches have labels and some have none. Let the loader yield one kind of batch.")
    return torch.cat(present) if present else None
