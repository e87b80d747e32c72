"""The head with fixed prototypes behind a trained layer, `hpn`, and how a normalisation is folded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep.checks import check_count
from maxsep.heads.base import LayerHead, linear_from
from maxsep.heads.prototypes import optimise_prototypes
from maxsep.heads.registry import register

__all__ = ["HPNHead", "unit_norm_then_linear"]


@register("hpn")
class HPNHead(LayerHead):
    """Prototypes spread by gradient descent (Mettes et al. 2019): what the closed form replaces.

    logits = radius * cos(weight x + bias, prototype_c); without `normalise`, dot products instead of cosines.

    Args:
        in_features: Width of the features.
        num_classes: C, at least 2.
        radius: Scale of the logits.
        normalise: Cosines (the original), or dot products.
        iterations: Of the prototype optimisation; the original runs 10,000.
        **options: bias, device and dtype of the trained layer, as for nn.Linear.

    Pitfall: the optimisation takes seconds at 100 classes; its result is kept for the life of the process.

    >>> HPNHead(64, 10, iterations=100).prototypes.shape
    torch.Size([10, 9])
    """

    prototypes: Tensor

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        radius: float = 1.0,
        *,
        normalise: bool = True,
        iterations: int = 10_000,
        **options: Any,
    ) -> None:
        super().__init__(in_features, num_classes, radius, **options)
        self.normalise = normalise
        self.iterations = check_count("iterations", iterations)
        self.register_buffer("prototypes", self.weight.new_empty(self.num_classes, self.num_classes - 1))
        self._place_prototypes()

    def reset_parameters(self) -> None:
        """Draw a new layer; the prototypes are always the same."""
        super().reset_parameters()
        if hasattr(self, "prototypes"):
            self._place_prototypes()

    @torch.no_grad()
    def _place_prototypes(self) -> None:
        if not self.prototypes.is_meta:
            vectors = optimise_prototypes(self.num_classes, self.num_classes - 1, iterations=self.iterations)
            self.prototypes.copy_(vectors)

    def features(self, x: Tensor) -> Tensor:
        """Return the C-1 numbers that are compared with the prototypes."""
        z = self.layer(x)
        return F.normalize(z, dim=-1) if self.normalise else z

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return F.linear(self.features(x), self.prototypes) * self.radius

    def class_vectors(self) -> Tensor:
        """Return the prototypes, (C, C-1)."""
        return self.prototypes

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return the product of prototypes and layer; only dot products have one."""
        if self.normalise:
            raise ValueError("cosines have no linear form. Use folded(), which keeps the normalisation as a layer.")
        weight = self.prototypes @ self.weight * self.radius
        return weight, None if self.bias is None else self.prototypes @ self.bias * self.radius

    @torch.no_grad()
    def folded(self) -> nn.Module:
        """Return one nn.Linear for dot products; the layer, a normalisation and an nn.Linear for cosines."""
        if not self.normalise:
            return super().folded()
        cosines = unit_norm_then_linear(self.prototypes * self.radius, None)
        return nn.Sequential(linear_from(self.weight, self.bias), *cosines)


def unit_norm_then_linear(weight: Tensor, bias: Tensor | None) -> nn.Sequential:
    """Return plain torch layers for weight (x / |x|) + bias.

    RMSNorm divides by |x| / sqrt(width); the weight takes the root back.

    >>> layers = unit_norm_then_linear(torch.eye(2), None)
    >>> layers(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]], grad_fn=<MmBackward0>)
    """
    width = weight.shape[1]
    norm = nn.RMSNorm(width, eps=torch.finfo(torch.float32).tiny, elementwise_affine=False)
    return nn.Sequential(norm, linear_from(weight / width**0.5, bias))
