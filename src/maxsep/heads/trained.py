"""The paper's two ablations: what if what stands in the matrix's place is trained?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep.heads.base import LayerHead, default_init
from maxsep.heads.registry import register
from maxsep.simplex import simplex

__all__ = ["ExtraLayerHead", "LearnableMatrixHead"]


@register("learnable_matrix")
class LearnableMatrixHead(LayerHead):
    """The matrix as the start of a trained one: logits = matrix^T (weight x + bias), matrix started at radius * P.

    Pitfall: the trained matrix has C (C-1) entries; it is meant for the comparison, not for many classes.

    >>> head = LearnableMatrixHead(64, 10)
    >>> head.matrix.shape
    torch.Size([9, 10])
    """

    def __init__(self, in_features: int, num_classes: int, radius: float = 1.0, **options: Any) -> None:
        super().__init__(in_features, num_classes, radius, **options)
        self.matrix = nn.Parameter(self._start())

    def reset_parameters(self) -> None:
        """Draw a new layer and put the matrix back to radius * P."""
        super().reset_parameters()
        if hasattr(self, "matrix"):
            with torch.no_grad():
                self.matrix.copy_(self._start())

    def features(self, x: Tensor) -> Tensor:
        """Return the C-1 numbers that the matrix turns into logits."""
        return self.layer(x)

    def _start(self) -> Tensor:
        return simplex(self.num_classes, dtype=self.weight.dtype, device=self.weight.device) * self.radius

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return F.linear(self.features(x), self.matrix.T)

    def class_vectors(self) -> Tensor:
        """Return the trained matrix, transposed and without the radius."""
        return self.matrix.T / self.radius

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return matrix^T weight and matrix^T bias."""
        return self.matrix.T @ self.weight, None if self.bias is None else self.matrix.T @ self.bias


@register("extra_layer")
class ExtraLayerHead(LayerHead):
    """One more trained layer in place of the matrix, from a random start: logits = extra (weight x + bias).

    >>> ExtraLayerHead(64, 10).extra
    Linear(in_features=9, out_features=10, bias=True)
    """

    def __init__(
        self, in_features: int, num_classes: int, radius: float = 1.0, bias: bool = True, **options: Any
    ) -> None:
        super().__init__(in_features, num_classes, radius, bias, **options)
        if self.radius != 1:
            raise ValueError(f"the extra layer has no radius, got {radius}: its scale is trained. Leave radius at 1.")
        self.extra = nn.Linear(self.num_classes - 1, self.num_classes, bias, **options)

    def reset_parameters(self) -> None:
        """Draw both layers anew as nn.Linear does."""
        super().reset_parameters()
        if hasattr(self, "extra"):
            default_init(self.extra.weight, self.extra.bias)

    def features(self, x: Tensor) -> Tensor:
        """Return the C-1 numbers that the extra layer turns into logits."""
        return self.layer(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        logits: Tensor = self.extra(self.features(x))
        return logits

    def class_vectors(self) -> Tensor:
        """Return the trained extra weight."""
        return self.extra.weight

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return the product of the two layers."""
        weight = self.extra.weight @ self.weight
        return weight, None if self.bias is None else self.extra.weight @ self.bias + self.extra.bias
