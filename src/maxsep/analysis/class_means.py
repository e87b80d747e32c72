"""Class means of features, the start of every measure of their geometry."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from maxsep.checks import check_floating


class ClassMeans(NamedTuple):
    """Features around their global mean, and their class means, all in float64."""

    classes: Tensor
    """(K,) labels that occur, increasing."""
    rows: Tensor
    """(N,) row of `means` that belongs to each sample."""
    origin: Tensor
    """(D,) mean of all features."""
    centred: Tensor
    """(N, D) features minus `origin`."""
    means: Tensor
    """(K, D) class means minus `origin`."""

    def at_origin(self) -> Tensor:
        """Tell which class means (K,) coincide with the global mean up to rounding, and so have no direction."""
        noise = 1e-12 * self.centred.norm(dim=1).amax() + 1e-15 * self.origin.norm()
        return torch.le(self.means.norm(dim=1), noise)


def class_means(features: Tensor, labels: Tensor) -> ClassMeans:
    """Centre features (N, D) at their mean and average them by label (N,).

    >>> class_means(torch.tensor([[1.0], [3.0], [8.0]]), torch.tensor([5, 5, 7])).means.tolist()
    [[-2.0], [4.0]]
    """
    features = check_floating(features, "features")
    if features.ndim != 2 or labels.shape != features.shape[:1] or not len(labels):
        raise ValueError(
            "features must be (N, D) and labels (N,) with N at least 1, got "
            f"{tuple(features.shape)} and {tuple(labels.shape)}."
        )
    if not bool(features.isfinite().all()):
        raise ValueError("features hold NaN or infinite values, which spoil every mean. Look for their origin.")
    x = features.detach().double()
    origin = x.mean(0)
    x = x - origin
    # once more: the first mean is rounded at the size of the features, the second at that of their spread
    rest = x.mean(0)
    x = x - rest
    classes, index, counts = torch.unique(labels.to(x.device), return_inverse=True, return_counts=True)
    sums = x.new_zeros(len(classes), x.shape[1]).index_add_(0, index, x)
    return ClassMeans(classes, index, origin + rest, x, sums / counts[:, None])
