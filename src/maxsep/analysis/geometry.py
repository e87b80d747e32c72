"""Geometry of features and class vectors: the angular Fisher score and neural collapse.

References:
    W. Liu, Y. Wen, Z. Yu, M. Li, B. Raj and L. Song. SphereFace: deep hypersphere embedding for face recognition.
    CVPR 2017.
    V. Papyan, X. Y. Han and D. L. Donoho. Prevalence of neural collapse during the terminal phase of deep learning
    training. PNAS 2020.
    Z. Zhu, T. Ding, J. Zhou, X. Li, C. You, J. Sulam and Q. Qu. A geometric analysis of neural collapse with
    unconstrained features. NeurIPS 2021.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from maxsep.checks import check_floating, check_samples


def angular_fisher_score(features: Tensor, labels: Tensor, eps: float = 1e-12) -> float:
    """Compare angles inside classes with angles between classes; lower is better separated.

    With class means m_i, the mean m of all features and n_i samples of class i (Liu et al. 2017):
    AFS = sum_i sum_{x in i} (1 - cos(x, m_i)) / sum_i n_i (1 - cos(m_i, m)). The means are of the raw features; only
    the cosines normalise. Where the global mean is nearly zero, as for centred logits of balanced data, the angles
    to it and so the score are ill-conditioned. features are (N, D), labels (N,); the score is infinite if all class
    means have the same direction. `eps` is the smallest norm that a cosine divides by.

    >>> x = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.1, 1.0], [-0.1, 1.0]])
    >>> round(angular_fisher_score(x, torch.tensor([0, 0, 1, 1])), 4)
    0.0169
    """
    check_samples("features", features, labels)
    x = features.double()
    _, index, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    means = x.new_zeros(len(counts), x.shape[1]).index_add_(0, index, x) / counts[:, None]
    within = (1 - F.cosine_similarity(x, means[index], dim=1, eps=eps)).sum()
    between = (counts * (1 - F.cosine_similarity(means, x.mean(0, keepdim=True), dim=1, eps=eps))).sum()
    # rounding leaves a little of equal directions
    return float(within / between) if float(between) > 1e-12 * len(labels) else float("inf")


def neural_collapse(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None = None) -> dict[str, float]:
    """Compute the four measures of neural collapse; each is 0 when the collapse is complete.

    With class means mu_c, the mean mu_G of all features, M = [mu_c - mu_G]_c, K classes, N samples and the target
    E = (I - 11^T / K) / sqrt(K - 1) (Papyan et al. 2020, Zhu et al. 2021):
    nc1 = trace(Sigma_W pinv(Sigma_B)) / K, the spread inside classes over the spread of their means, where
    Sigma_W = (1/N) sum_i (h_i - mu_{y_i})(h_i - mu_{y_i})^T and Sigma_B = (1/K) M M^T;
    nc2 = || W W^T / ||W W^T||_F - E ||_F, the classifier's distance from a simplex;
    nc3 = || W M / ||W M||_F - E ||_F, the classifier's distance from the class means;
    nc4 = || W mu_G + b ||_2, what the bias leaves of the global mean.

    Args:
        features: (N, D) inputs of the last layer, usually of the training set.
        labels: (N,) class indices 0 to K-1, each of which must occur: they index the rows of `weight`.
        weight: (K, D), such as that of `fold(head)`; with `head.features(x)` it is `head.class_vectors()`.
        bias: (K,), or None for zero.

    >>> from maxsep import simplex
    >>> corners = simplex(4, dtype=torch.float64).T
    >>> measures = neural_collapse(corners.repeat(3, 1), torch.arange(4).repeat(3), corners, torch.zeros(4))
    >>> [round(value, 6) for value in measures.values()]
    [0.0, 0.0, 0.0, 0.0]
    """
    stats = _class_means(features, labels)
    W, b = _check_classifier(weight, bias, stats)
    K = len(W)
    target = (torch.eye(K, dtype=W.dtype, device=W.device) - 1 / K) / (K - 1) ** 0.5
    gram, alignment = W @ W.T, W @ stats.means.T
    if not gram.any() or not alignment.any():
        raise ValueError("weight must not vanish on all features or on all class means")
    return {
        "nc1": _within_over_between(stats),
        "nc2": float((gram / gram.norm() - target).norm()),
        "nc3": float((alignment / alignment.norm() - target).norm()),
        "nc4": float((W @ stats.origin + b).norm()),
    }


class _ClassMeans(NamedTuple):
    """Centred features and class means in float64."""

    classes: Tensor  # (K,) labels that occur, increasing
    rows: Tensor  # (N,) index into `classes`
    origin: Tensor  # (D,) mean of all features
    centred: Tensor  # (N, D) features - origin
    means: Tensor  # (K, D) class means - origin


def _class_means(features: Tensor, labels: Tensor) -> _ClassMeans:
    check_samples("features", features, labels)
    if not features.isfinite().all():
        raise ValueError("features must be finite, got NaN or infinite values")
    x = features.detach().double()
    origin = x.mean(0)
    x = x - origin
    rest = x.mean(0)  # the first mean is rounded at the size of the features, the second at that of their spread
    x = x - rest
    classes, index, counts = torch.unique(labels.to(x.device), return_inverse=True, return_counts=True)
    sums = x.new_zeros(len(classes), x.shape[1]).index_add_(0, index, x)
    return _ClassMeans(classes, index, origin + rest, x, sums / counts[:, None])


def _within_over_between(stats: _ClassMeans) -> float:
    # On the singular vectors v_j of M: trace(Sigma_W pinv(Sigma_B)) / K = sum_j v_j^T Sigma_W v_j / s_j^2. Singular
    # values are cut before they are squared, and no D x D matrix is built.
    _, values, vectors = torch.linalg.svd(stats.means, full_matrices=False)
    scale = values[0] + stats.origin.norm()  # the features were rounded at their distance from zero
    kept = values > max(stats.means.shape) * torch.finfo(values.dtype).eps * scale
    spread = (stats.centred - stats.means[stats.rows]) @ vectors[kept].T
    return float((spread.square().mean(0) / values[kept].square()).sum())


def _check_classifier(weight: Tensor, bias: Tensor | None, stats: _ClassMeans) -> tuple[Tensor, Tensor]:
    W = check_floating(weight, "weight").detach().to(stats.means)
    width = stats.means.shape[1]
    if W.ndim != 2 or len(W) < 2 or W.shape[1] != width:
        raise ValueError(f"weight must be (K, {width}) with K >= 2, got shape {tuple(W.shape)}")
    b = W.new_zeros(len(W)) if bias is None else check_floating(bias, "bias").detach().to(W)
    if b.shape != W.shape[:1]:
        raise ValueError(f"bias must be ({len(W)},), got shape {tuple(b.shape)}")
    if stats.classes.tolist() != list(range(len(W))):
        raise ValueError(f"labels must contain each of 0..{len(W) - 1}, the rows of weight, and no other number")
    noise = 1e-12 * stats.centred.norm(dim=1).amax() + 1e-15 * stats.origin.norm()
    if (stats.means.norm(dim=1) <= noise).all():
        raise ValueError("features must have different class means: nc1 and nc3 are undefined where all coincide")
    return W, b
