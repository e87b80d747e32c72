"""The loss of hyperspherical prototypes: how far a feature points away from its class."""

from __future__ import annotations

import torch
from torch import Tensor

from maxsep.checks import Reduction, check_floating
from maxsep.losses.base import ClassLoss

__all__ = ["SquaredCosineLoss"]


class SquaredCosineLoss(ClassLoss):
    """Pull features towards the prototype of their class (Mettes et al. 2019).

    loss = mean_i (1 - cos(z_i, prototype_{y_i}))^2 for features z of shape (B, D): it looks at the features, not at
    logits, because it needs one cosine per sample and not C of them. Of a head, pass `head.features(x)` and build the
    loss with `head.class_vectors()`. Only directions count: features and prototypes may have any length.

    Args:
        prototypes: (C, D), one vector per class, none of them zero; `maxsep.simplex(C).T` is the best spread. They are
            copied and get no gradient.
        reduction: "mean", "sum", or "none" for the loss of every sample.

    Pitfall: a feature that is exactly zero has no direction; its loss is 1 and its gradient 0. The original sums over
    the batch: reduction="sum".

    >>> loss = SquaredCosineLoss(torch.eye(2))
    >>> loss(torch.tensor([[5.0, 0.0], [3.0, 4.0]]), torch.tensor([0, 1]))  # ((1 - 1)^2 + (1 - 0.8)^2) / 2
    tensor(0.0200)
    """

    _input = "features"
    _meaning = "as wide as the prototypes"
    _directions: Tensor

    def __init__(self, prototypes: Tensor, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self._keep("_directions", _check_prototypes(prototypes))
        self.num_classes, self.width = prototypes.shape

    def _values(self, x: Tensor, index: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=1)
        has_direction = length > 0
        products = (x * self._directions.to(x.device)[index].to(x.dtype)).sum(1)
        # dividing by a small constant instead would send a gradient of that size's inverse through a dead sample
        cosines = torch.where(has_direction, products / torch.where(has_direction, length, 1), 0)
        return (1 - cosines).square()

    def extra_repr(self) -> str:
        """Say the number of classes and the width of the features."""
        told = f"num_classes={self.num_classes}, width={self.width}"
        return told if self.reduction == "mean" else f"{told}, reduction={self.reduction}"


def _check_prototypes(prototypes: Tensor) -> Tensor:
    """Return unit vectors on the CPU, in float32 or wider."""
    check_floating(prototypes, "prototypes")
    if prototypes.is_meta:
        raise ValueError("prototypes are on the meta device and have no values. Pass real vectors.")
    if prototypes.dim() != 2 or prototypes.shape[0] < 2 or prototypes.shape[1] < 1:
        raise ValueError(
            f"prototypes must be (classes, width) with at least 2 classes, got shape {tuple(prototypes.shape)}. "
            "Transpose a matrix with one column per class."
        )
    vectors = prototypes.detach().to("cpu", torch.float64)
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    fine = lengths.isfinite() & (lengths > 0)
    if not fine.all():
        position = int((~fine).nonzero()[0])
        raise ValueError(
            f"prototypes must be finite and not zero, got one of length {lengths[position].item():g} for class "
            f"{position}. Give every class a direction."
        )
    wide = torch.float64 if prototypes.dtype == torch.float64 else torch.float32
    directions: Tensor = vectors / lengths[:, None]
    return directions.to(wide)
