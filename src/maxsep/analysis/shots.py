"""Accuracy of frequent, middling and rare classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maxsep.checks import check_count


def shot_groups(class_counts: Sequence[int] | Tensor, *, many: int = 100, few: int = 20) -> dict[str, list[int]]:
    """Group classes by how many training images they have.

    Args:
        class_counts: (C,) training images of each class.
        many: A class with more than this many images is a many-shot class.
        few: A class with fewer than this many is a few-shot class; medium is what lies between, both ends included.

    Returns:
        Class indices under `many`, `medium` and `few`; a group may be empty.

    >>> shot_groups([500, 101, 100, 20, 19])
    {'many': [0, 1], 'medium': [2, 3], 'few': [4]}
    """
    check_count("many", many)
    check_count("few", few)
    if few > many + 1:
        raise ValueError(f"few must be at most many + 1, got few={few} and many={many}: a class would be in both.")
    counts = _vector("class_counts", class_counts)
    # written so that NaN fails too
    if not bool(((counts >= 0) & (counts == counts.floor()) & counts.isfinite()).all()):
        raise ValueError("class_counts must be whole numbers, zero or more. Pass the images per class in training.")
    chosen = {"many": counts > many, "medium": (counts >= few) & (counts <= many), "few": counts < few}
    return {name: mask.nonzero()[:, 0].tolist() for name, mask in chosen.items()}


def per_class_accuracy(predictions: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Measure the accuracy of every class.

    Args:
        predictions: (N,) predicted class indices, or (N, C) logits.
        labels: (N,) true class indices.
        num_classes: C.

    Returns:
        (C,) float64 fractions; NaN for a class without a sample.

    >>> per_class_accuracy(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2).tolist()
    [0.5, 1.0]
    """
    check_count("num_classes", num_classes)
    if predictions.ndim == 2:
        predictions = predictions.argmax(1)
    if labels.ndim != 1 or predictions.shape != labels.shape:
        raise ValueError(
            "predictions must be (N,) or logits (N, C) and labels (N,), got "
            f"{tuple(predictions.shape)} and {tuple(labels.shape)}."
        )
    if labels.is_floating_point() or predictions.is_floating_point():
        raise TypeError(
            f"predictions and labels must be whole numbers, got {predictions.dtype} and {labels.dtype}. "
            "Pass class indices, for example logits.argmax(1)."
        )
    labels, predictions = labels.long(), predictions.to(labels.device).long()
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise ValueError(f"labels must lie in 0..{num_classes - 1}, got {int(labels.min())}..{int(labels.max())}.")
    right = torch.bincount(labels[predictions == labels], minlength=num_classes)
    return right.double() / torch.bincount(labels, minlength=num_classes)


def accuracy_by_shot(
    accuracies: Sequence[float] | Tensor,
    class_counts: Sequence[int] | Tensor,
    *,
    labels: Tensor | None = None,
    many: int = 100,
    few: int = 20,
) -> dict[str, float | None]:
    """Average the accuracy over many-, medium- and few-shot classes.

    Args:
        accuracies: (C,) accuracy of every class, fractions; or, with `labels`, the predictions (N,) or logits (N, C)
            of a test set. A class without an accuracy (NaN, no test sample) does not count.
        class_counts: (C,) training images of each class.
        labels: (N,) true labels of the predictions.
        many: See `shot_groups`.
        few: See `shot_groups`.

    Returns:
        `many`, `medium`, `few` and `all`: means over classes, so every class weighs the same; None for a group
        without a class.

    >>> accuracy_by_shot([1.0, 0.5, 0.75], [500, 400, 30])
    {'many': 0.75, 'medium': 0.75, 'few': None, 'all': 0.75}
    """
    groups = shot_groups(class_counts, many=many, few=few)
    total = sum(map(len, groups.values()))
    if labels is not None:
        accuracies = per_class_accuracy(torch.as_tensor(accuracies), labels, total)
    values = _vector("accuracies", accuracies)
    if len(values) != total:
        raise ValueError(
            f"accuracies has {len(values)} entries, class_counts {total}. "
            "Pass one of each per class, or predictions together with labels."
        )
    known = values[~values.isnan()]
    if not bool(((known >= 0) & (known <= 1)).all()):
        raise ValueError("accuracies must be fractions in [0, 1]. Divide percentages by 100.")
    return {name: _mean(values[chosen]) for name, chosen in {**groups, "all": list(range(total))}.items()}


def _mean(values: Tensor) -> float | None:
    values = values[~values.isnan()]
    return float(values.mean()) if len(values) else None


def _vector(name: str, values: Any) -> Tensor:
    tensor = values.detach() if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.float64)
    if tensor.ndim != 1 or not len(tensor):
        raise ValueError(f"{name} must hold one number per class, got shape {tuple(tensor.shape)}.")
    return tensor.double()
