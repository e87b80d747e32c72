"""Calibration error, and accuracy of classes with many, medium and few training images."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from maxsep.checks import as_vector, check_count, check_samples, require_all


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Average the gap between confidence and accuracy over equally wide bins of confidence.

    The confidence of a row is its largest probability. Bin b of B holds the confidences in (b/B, (b+1)/B], and
    ECE = sum_b (n_b / N) |accuracy_b - confidence_b|, a fraction; 0 is perfectly calibrated. probabilities are (N, C),
    rows that sum to 1, and labels (N,) class indices.

    >>> rows = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
    >>> round(expected_calibration_error(rows, torch.tensor([0, 1])), 4)
    0.4
    """
    check_count("bins", bins)
    check_samples("probabilities", probabilities, labels)
    low, off = float(probabilities.min()), float((probabilities.double().sum(1) - 1).abs().max())
    if not (low >= 0 and off <= 0.01):  # half precision is this coarse
        rows = f"got values from {low:g} and sums up to {off:g} from 1"
        raise ValueError(f"probabilities must be rows >= 0 that sum to 1, {rows}; pass logits.softmax(-1)")
    if not ((labels >= 0) & (labels < probabilities.shape[1])).all():
        raise ValueError(f"labels must be from 0 to {probabilities.shape[1] - 1}, got {labels.min()} to {labels.max()}")
    confidence, predicted = probabilities.double().max(dim=1)
    correct = (predicted == labels).double()
    edges = torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins
    gaps = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gaps.index_add_(0, torch.bucketize(confidence, edges), correct - confidence)
    return float(gaps.abs().sum() / len(labels))


def shot_groups(class_counts: Sequence[int] | Tensor, *, many: int = 100, few: int = 20) -> dict[str, list[int]]:
    """Group classes by their number of training images, class_counts (C,).

    A class with more images than `many` is a many-shot class, one with fewer than `few` a few-shot class, and all
    others are medium. Returns class indices under `many`, `medium` and `few`; a group may be empty.

    >>> shot_groups([500, 101, 100, 20, 19])
    {'many': [0, 1], 'medium': [2, 3], 'few': [4]}
    """
    check_count("many", many)
    check_count("few", few)
    if few > many + 1:
        raise ValueError(f"few must be at most many + 1, got few={few} and many={many}")
    counts = as_vector("class_counts", class_counts)
    is_whole = (counts >= 0) & (counts == counts.floor()) & counts.isfinite()
    require_all("class_counts", counts, is_whole, "integers >= 0")
    masks = {"many": counts > many, "medium": (counts >= few) & (counts <= many), "few": counts < few}
    return {name: mask.nonzero()[:, 0].tolist() for name, mask in masks.items()}


def accuracy_by_shot(
    accuracies: Sequence[float] | Tensor, class_counts: Sequence[int] | Tensor, *, many: int = 100, few: int = 20
) -> dict[str, float | None]:
    """Average accuracy over many-, medium- and few-shot classes, each class with the same weight.

    accuracies are (C,) fractions, NaN for a class without test samples. Returns means over the groups of `shot_groups`
    and over `all`; None for a group without a class.

    >>> accuracy_by_shot([1.0, 0.5, 0.75], [500, 400, 30])
    {'many': 0.75, 'medium': 0.75, 'few': None, 'all': 0.75}
    """
    groups = shot_groups(class_counts, many=many, few=few)
    total = sum(map(len, groups.values()))
    values = as_vector("accuracies", accuracies)
    if len(values) != total:
        raise ValueError(f"accuracies must have one entry per class count, got {len(values)} for {total}")
    require_all("accuracies", values, ~((values < 0) | (values > 1)), "fractions in [0, 1]")
    means = {name: float(values[group].nanmean()) for name, group in {**groups, "all": list(range(total))}.items()}
    return {name: None if math.isnan(mean) else mean for name, mean in means.items()}
