"""Whether the nearest picture shows the same class: retrieval by embeddings of one model, or of two."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["recall_at_1"]

_BLOCK = 1024


def recall_at_1(
    queries: Tensor, query_labels: Tensor, gallery: Tensor, gallery_labels: Tensor, *, same_images: bool = False
) -> float:
    """Give the part of the queries whose nearest embedding in the gallery, by cosine, has their label.

    With embeddings of one model on both sides it says how well that model retrieves; with those of two, whether the
    queries of a new model find what an old one has stored. Then both must have embeddings of the same width.

    Args:
        queries: (Q, D).
        query_labels: int64, (Q,).
        gallery: (G, D).
        gallery_labels: int64, (G,).
        same_images: Whether place i is the same image on both sides: then it does not count as found.

    >>> line = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> recall_at_1(line, torch.tensor([0, 0, 1]), line, torch.tensor([0, 0, 1]), same_images=True)
    0.6666666666666666
    """
    _check(queries, query_labels, gallery, gallery_labels, same_images)
    places = F.normalize(gallery.float(), dim=1)
    found = 0
    for start in range(0, len(queries), _BLOCK):
        near = F.normalize(queries[start : start + _BLOCK].float(), dim=1) @ places.T
        if same_images:
            row = torch.arange(len(near), device=near.device)
            near[row, start + row] = -torch.inf
        found += int((gallery_labels[near.argmax(1)] == query_labels[start : start + _BLOCK]).sum())
    return found / len(queries)


def _check(queries: Tensor, query_labels: Tensor, gallery: Tensor, gallery_labels: Tensor, same_images: bool) -> None:
    for name, given in (
        ("queries", queries),
        ("query_labels", query_labels),
        ("gallery", gallery),
        ("gallery_labels", gallery_labels),
    ):
        if not isinstance(given, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(given).__name__}. Use torch.as_tensor.")
    if queries.ndim != 2 or gallery.ndim != 2 or queries.shape[1] != gallery.shape[1]:
        raise ValueError(
            f"queries and gallery must have shapes (Q, D) and (G, D), got {tuple(queries.shape)} and "
            f"{tuple(gallery.shape)}. Models of different widths cannot be compared by their features."
        )
    for name, labels, rows in (("query", query_labels, queries), ("gallery", gallery_labels, gallery)):
        if labels.shape != (len(rows),):
            raise ValueError(
                f"{name}_labels must have one label for each of {len(rows)} rows, got shape {tuple(labels.shape)}."
            )
    if same_images and len(queries) != len(gallery):
        raise ValueError(
            f"same_images needs as many queries as gallery rows, got {len(queries)} and {len(gallery)}. Leave it out "
            "where the two sides are different images."
        )
    if not (bool(queries.isfinite().all()) and bool(gallery.isfinite().all())):
        raise ValueError("embeddings must be finite numbers, and some are not. Look for where the model overflows.")
    if not len(queries) or len(gallery) <= same_images:
        raise ValueError("there is nothing to find: queries and gallery must not be empty.")
