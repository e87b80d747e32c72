"""The angular Fisher score: spread of directions inside classes over spread between them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def angular_fisher_score(features: Tensor, labels: Tensor, eps: float = 1e-12) -> float:
    """Compare the angles inside classes with the angles between classes; lower is better separated.

    With class means m_i, the mean m of all features and n_i samples of class i (Liu et al. 2017, SphereFace):
    AFS = sum_i sum_{x in i} (1 - cos(x, m_i)) / sum_i n_i (1 - cos(m_i, m)). Means are of the features as
    they are; only the cosines normalise.

    Args:
        features: (N, D), such as a network's pooled features.
        labels: (N,) class indices; classes without a sample do not count.
        eps: Smallest norm that a cosine divides by. In a space whose global mean is nearly zero, such as
            centred logits on balanced data, the directions to it are ill-conditioned and so is the score.

    Returns:
        A number >= 0; infinite if all class means point the same way.

    >>> x = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.1, 1.0], [-0.1, 1.0]])
    >>> round(angular_fisher_score(x, torch.tensor([0, 0, 1, 1])), 4)
    0.0169
    """
    if features.ndim != 2 or labels.shape != features.shape[:1] or not len(labels):
        raise ValueError(
            "features must be (N, D) and labels (N,) with N at least 1, got "
            f"{tuple(features.shape)} and {tuple(labels.shape)}."
        )
    x = features.double()
    present, index, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(present), x.shape[1], dtype=x.dtype, device=x.device).index_add_(0, index, x)
    means = sums / counts[:, None]
    within = (1 - F.cosine_similarity(x, means[index], dim=1, eps=eps)).sum()
    between = (counts * (1 - F.cosine_similarity(means, x.mean(0, keepdim=True), dim=1, eps=eps))).sum()
    # what rounding leaves of equal directions is no separation
    return float(within / between) if float(between) > 1e-12 * len(labels) else float("inf")
