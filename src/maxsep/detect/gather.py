"""Logits, features and labels of a whole data loader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from maxsep.detect.evaluating import device_of, evaluating
from maxsep.detect.reading import Reader, batches


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
    reader = Reader(model)
    rows: list[tuple[Tensor, Tensor | None, Tensor | None]] = []
    with evaluating(model):
        for inputs, given in batches(loader, device_of(model) if device is None else device):
            answer, vectors = reader.read(inputs)
            rows.append((answer.cpu(), None if vectors is None else vectors.cpu(), given))
    logits, features, labels = zip(*rows, strict=True)
    return Collected(torch.cat(logits), _joined(features), _joined(labels))


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    if present and len(present) < len(parts):
        raise ValueError("some batches have labels and some have none. Let the loader yield one kind of batch.")
    return torch.cat(present) if present else None
