"""How far apart the class means lie, compared with the simplex that no arrangement beats."""

from __future__ import annotations

import math

from torch import Tensor

from maxsep.analysis.angles import pairwise_angles
from maxsep.analysis.class_means import class_means


def class_mean_separation(features: Tensor, labels: Tensor) -> dict[str, float]:
    """Measure the angles between class means as seen from the mean of all features, in degrees.

    K vectors cannot all be further apart than arccos(-1 / (K - 1)), the angle of a simplex; only there do mean and
    smallest angle meet it.

    Args:
        features: (N, D).
        labels: (N,) class indices, at least two of which occur.

    Returns:
        `mean_angle` and `min_angle` over all pairs of classes, and `simplex_angle`, the best possible `min_angle`.

    >>> import torch
    >>> corners = torch.tensor([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]])
    >>> {name: round(angle, 3) for name, angle in class_mean_separation(corners, torch.arange(3)).items()}
    {'mean_angle': 120.0, 'min_angle': 120.0, 'simplex_angle': 120.0}
    """
    stats = class_means(features, labels)
    classes = len(stats.classes)
    if classes < 2:
        raise ValueError(f"separation needs at least two classes, got {classes}. Pass features of several classes.")
    at_mean = int(stats.at_origin().sum())
    if at_mean:
        raise ValueError(f"{at_mean} of {classes} class means lie at the mean of all features and have no direction.")
    angles = pairwise_angles(stats.means)
    return {
        "mean_angle": float(angles.mean()),
        "min_angle": float(angles.min()),
        "simplex_angle": math.degrees(math.acos(-1 / (classes - 1))),
    }
