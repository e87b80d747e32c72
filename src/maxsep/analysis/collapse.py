"""Neural collapse: how close features and classifier are to one simplex (Papyan et al. 2020, Zhu et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from maxsep.analysis.class_means import ClassMeans, class_means
from maxsep.checks import check_floating


def neural_collapse(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None = None) -> dict[str, float]:
    """Measure the four signs of neural collapse; each is 0 when it is complete.

    With class means mu_c, the mean mu_G of all features, M = [mu_c - mu_G]_c, K classes, N samples and the target
    E = (I - 11^T / K) / sqrt(K - 1):
    nc1 = trace(Sigma_W pinv(Sigma_B)) / K, the spread inside classes over the spread of their means, where
    Sigma_W = (1/N) sum_i (h_i - mu_{y_i})(h_i - mu_{y_i})^T and Sigma_B = (1/K) M M^T;
    nc2 = || W W^T / ||W W^T||_F - E ||_F, the classifier's distance from a simplex;
    nc3 = || W M / ||W M||_F - E ||_F, the classifier's distance from the class means;
    nc4 = || W mu_G + b ||_2, what the bias leaves of the global mean.

    Args:
        features: (N, D) inputs of the last layer, usually of the training set.
        labels: (N,) class indices 0 to K-1, each of which must occur: they name the rows of `weight`.
        weight: (K, D). For a maximum-separation head either the pooled features with the weight of `fold(head)`, or
            `head.features(x)` with `head.class_vectors()`, for which nc2 is 0 by construction.
        bias: (K,), or None for zero.

    Returns:
        `nc1`, `nc2`, `nc3`, `nc4`, all >= 0.

    >>> from maxsep import simplex
    >>> corners = simplex(4, dtype=torch.float64).T
    >>> measures = neural_collapse(corners.repeat(3, 1), torch.arange(4).repeat(3), corners, torch.zeros(4))
    >>> [round(value, 6) for value in measures.values()]
    [0.0, 0.0, 0.0, 0.0]
    """
    W, b = _classifier(weight, bias)
    stats = class_means(features, labels)
    _check(W, stats)
    W, b = W.to(stats.means.device), b.to(stats.means.device)
    K = len(W)
    target = (torch.eye(K, dtype=W.dtype, device=W.device) - 1 / K) / (K - 1) ** 0.5
    gram, alignment = W @ W.T, W @ stats.means.T
    if not bool(gram.any()) or not bool(alignment.any()):
        raise ValueError("the weight is zero on all features or on all class means, so nc2 or nc3 is not defined.")
    return {
        "nc1": _within_over_between(stats),
        "nc2": float((gram / gram.norm() - target).norm()),
        "nc3": float((alignment / alignment.norm() - target).norm()),
        "nc4": float((W @ stats.origin + b).norm()),
    }


def _within_over_between(stats: ClassMeans) -> float:
    # On the singular vectors v_j of M: trace(Sigma_W pinv(Sigma_B)) / K = sum_j v_j^T Sigma_W v_j / s_j^2. Singular
    # values are cut before they are squared, and no D x D matrix is built.
    _, values, vectors = torch.linalg.svd(stats.means, full_matrices=False)
    # the means were rounded where they lay: far from the origin, more than their distances say
    scale = values[0] + stats.origin.norm()
    kept = values > max(stats.means.shape) * torch.finfo(values.dtype).eps * scale
    spread = (stats.centred - stats.means[stats.rows]) @ vectors[kept].T
    return float((spread.square().mean(0) / values[kept].square()).sum())


def _classifier(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    W = check_floating(weight, "weight").detach().double()
    if W.ndim != 2 or len(W) < 2:
        raise ValueError(f"weight must be (K, D) with at least 2 classes, got shape {tuple(W.shape)}.")
    if bias is None:
        return W, W.new_zeros(len(W))
    b = check_floating(bias, "bias").detach().double().to(W.device)
    if b.shape != W.shape[:1]:
        raise ValueError(f"bias must be ({len(W)},), one number per row of weight, got shape {tuple(b.shape)}.")
    return W, b


def _check(W: Tensor, stats: ClassMeans) -> None:
    K, width = W.shape
    if stats.means.shape[1] != width:
        raise ValueError(
            f"weight takes {width} features, but the features have {stats.means.shape[1]}. "
            "Pass the inputs of the layer that the weight belongs to."
        )
    low, high = int(stats.classes[0]), int(stats.classes[-1])
    if low < 0 or high >= K:
        raise ValueError(f"labels must lie in 0..{K - 1}, the rows of weight, got {low}..{high}.")
    if len(stats.classes) < K:
        raise ValueError(
            f"every class needs a sample, but {K - len(stats.classes)} of {K} have none. "
            "Measure on the training set, or drop the rows of weight and relabel."
        )
    if bool(stats.at_origin().all()):
        raise ValueError("all class means coincide, so nothing is separated and nc1 and nc3 are not defined.")
