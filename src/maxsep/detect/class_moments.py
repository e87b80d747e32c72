"""Class means and the scatter inside classes, in one pass over batches of any size."""

from __future__ import annotations

import torch
from torch import Tensor

from maxsep.checks import check_floating
from maxsep.detect.precision import precise


class ClassMoments:
    """Accumulate class means and the scatter sum_i (h_i - mu_{y_i})(h_i - mu_{y_i})^T in float64.

    Batches are merged by their means, never by sums of squares: features far from the origin lose no digits.

    >>> moments = ClassMoments()
    >>> moments.add(torch.tensor([[1.0], [3.0]]), torch.tensor([7, 7]))
    >>> moments.means.tolist(), moments.scatter.tolist(), moments.count
    ([[2.0]], [[2.0]], 2)
    """

    def __init__(self) -> None:
        self.classes = torch.zeros(0, dtype=torch.int64)
        """Labels that occurred, increasing."""
        self.counts = torch.zeros(0, dtype=torch.float64)
        self.means = torch.zeros(0, 0, dtype=torch.float64)
        self.scatter = torch.zeros(0, 0, dtype=torch.float64)
        self.count = 0

    @torch.no_grad()
    def add(self, features: Tensor, labels: Tensor) -> None:
        """Merge a batch of features (B, D) with labels (B,)."""
        self._check(features, labels)
        # what is kept must serve gradients later, so nothing may be made in inference mode
        with torch.inference_mode(False):
            x = precise(features)
            self._merge(x, labels.to(device=x.device, dtype=torch.int64))

    def _merge(self, x: Tensor, labels: Tensor) -> None:
        if not self.count:
            self.means, self.scatter = x.new_zeros(0, x.shape[1]), x.new_zeros(x.shape[1], x.shape[1])
        old = self.classes.to(x.device)
        classes, index = torch.unique(torch.cat([old, labels]), return_inverse=True)
        before, where = index[: len(old)], index[len(old) :]
        counts = x.new_zeros(len(classes)).index_copy_(0, before, self.counts.to(x.device))
        means = x.new_zeros(len(classes), x.shape[1]).index_copy_(0, before, self.means.to(x.device))

        added = torch.bincount(where, minlength=len(classes)).to(x.dtype)
        # the mean of a batch as its offset from what is known: first from the batch mean, for digits far from zero
        origin = x.mean(0) if len(x) else x.new_zeros(x.shape[1])
        offsets = torch.zeros_like(means).index_add_(0, where, x - origin) / added.clamp_min(1)[:, None]
        batch_means = torch.where(added[:, None] > 0, offsets + origin, means)
        within = x - batch_means[where]
        shift = torch.where(counts[:, None] > 0, batch_means - means, 0.0)
        total = counts + added
        moved = shift[added > 0]  # a batch moves few of many classes
        weights = (counts * added / total)[added > 0]

        self.scatter = self.scatter.to(x.device) + within.T @ within + (moved * weights[:, None]).T @ moved
        self.means = torch.where(counts[:, None] > 0, means + shift * (added / total)[:, None], batch_means)
        self.classes, self.counts = classes, total
        self.count += len(x)

    def _check(self, features: Tensor, labels: Tensor) -> None:
        check_floating(features, "features")
        if features.ndim != 2 or not isinstance(labels, Tensor) or labels.shape != features.shape[:1]:
            told = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
            raise ValueError(
                f"features must be (N, D) and labels a tensor (N,), got {tuple(features.shape)} and {told}. "
                "Pool over space first, and pass one label per row."
            )
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise TypeError(f"labels must be whole numbers, got dtype {labels.dtype}. Pass class indices.")
        if self.count and features.shape[1] != self.means.shape[1]:
            raise ValueError(
                f"this batch has {features.shape[1]} features, the ones before had {self.means.shape[1]}. "
                "Take all batches from the same layer."
            )
        if not len(features) and not self.count:
            raise ValueError("the first batch is empty. Pass at least one row of features.")
        if not bool(features.isfinite().all()):
            raise ValueError(
                "features hold NaN or infinite values, and one of them would spoil every mean. "
                "Look for the samples that the network answers so, for example in half precision."
            )
