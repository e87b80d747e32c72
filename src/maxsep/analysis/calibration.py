"""How far a classifier's confidence is from its accuracy."""

from __future__ import annotations

import torch
from torch import Tensor


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Average the gap between confidence and accuracy over equally wide bins of confidence.

    The confidence of a row is its largest probability. Bin b of B holds confidences in (b/B, (b+1)/B],
    closed on the right, and ECE = sum_b (n_b / N) |accuracy_b - confidence_b|.

    Args:
        probabilities: (N, C), rows that sum to 1. Logits are refused: they have no confidence.
        labels: (N,) class indices.
        bins: Number of bins.

    Returns:
        A fraction in [0, 1]; 0 is perfectly calibrated.

    >>> rows = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
    >>> round(expected_calibration_error(rows, torch.tensor([0, 1])), 4)
    0.4
    """
    _check(probabilities, labels, bins)
    confidence, predicted = probabilities.double().max(dim=1)
    correct = (predicted == labels).double()
    # right-closed bins: the upper edge b/B belongs to bin b-1, and a confidence of 0 to the first bin
    edges = torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins
    index = torch.bucketize(confidence, edges)
    gaps = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gaps.index_add_(0, index, correct - confidence)
    return float(gaps.abs().sum() / len(labels))


def _check(probabilities: Tensor, labels: Tensor, bins: int) -> None:
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}.")
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
        raise ValueError(
            f"probabilities must be (N, C) and labels (N,), got {tuple(probabilities.shape)} and {tuple(labels.shape)}."
        )
    if not len(labels):
        raise ValueError("the calibration error of no samples is not defined; pass at least one row.")
    low, high = float(probabilities.min()), float(probabilities.max())
    if not (low >= 0 and high <= 1 + 1e-4):
        raise ValueError(
            f"probabilities must lie in [0, 1], got values from {low:g} to {high:g}. Pass logits.softmax(-1)."
        )
