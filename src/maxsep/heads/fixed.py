"""Heads whose class vectors are fixed and meet the features by cosine or directly: `etf` and `hpn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep.checks import check_count, check_positive
from maxsep.heads.base import Head, LayerHead, linear_from
from maxsep.heads.prototypes import optimise_prototypes
from maxsep.heads.registry import register
from maxsep.ops import separate
from maxsep.simplex import simplex

__all__ = ["ETFHead", "HPNHead"]

torch.fx.wrap("separate")  # a symbolic trace keeps the product as one call


@register("etf")
class ETFHead(Head):
    """The simplex directly on the features, nothing trained after them (Zhu et al. 2021).

    logits = radius / temperature * P^T h, where h are the first C-1 features (all features, L2-normalised first, with
    `normalise`). Classes have coordinates that are known before training and are the same in every run.

    Args:
        in_features: At least num_classes + reserved - 1; features beyond that are not used.
        num_classes: C, at least 2.
        radius: Length of the class vectors.
        normalise: Compare directions only: logits are radius / temperature times cosines.
        temperature: Divides the logits.
        reserved: Vertices kept for classes that will come; the simplex is built for num_classes + reserved.
        bias: A trained bias per class, as in Zhu et al.'s code; off by default.
        device: Where the bias, and a folded layer, is made.
        dtype: Of the bias, and of a folded layer.

    Pitfall: features behind a ReLU are never negative, so half of the space is out of their reach.

    >>> head = ETFHead(9, 10)
    >>> head(torch.randn(2, 9)).shape, len(list(head.parameters()))
    (torch.Size([2, 10]), 0)
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        radius: float = 1.0,
        *,
        normalise: bool = False,
        temperature: float = 1.0,
        reserved: int = 0,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, radius)
        self.reserved = check_count("reserved", reserved, least=0)
        self.normalise = normalise
        self.temperature = check_positive("temperature", temperature)
        self._like = torch.empty(0, device=device, dtype=dtype)  # a head without bias has no tensor to tell them
        if self.in_features < self.width:
            raise ValueError(
                f"the etf head puts {self.num_classes} classes ({self.reserved} more reserved) right on the features "
                f"and needs at least {self.width} of them, got in_features={in_features}. Use the head 'maxsep', which "
                "brings a layer of its own, or widen the network."
            )
        self.register_parameter(
            "bias", nn.Parameter(torch.zeros(self.num_classes, device=device, dtype=dtype)) if bias else None
        )

    @property
    def width(self) -> int:
        """How many features are used: one less than the vertices of the simplex."""
        return self.num_classes + self.reserved - 1

    def reset_parameters(self) -> None:
        """Put the bias, if there is one, back to zero."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def features(self, x: Tensor) -> Tensor:
        """Return the features that the simplex sees, (..., num_classes + reserved - 1)."""
        x = self._checked(x)
        return (F.normalize(x, dim=-1) if self.normalise else x)[..., : self.width]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        logits = separate(self.features(x), self.radius / self.temperature)[..., : self.num_classes]
        return logits if self.bias is None else logits + self.bias

    def class_vectors(self) -> Tensor:
        """Return the vertices of the classes in use, (num_classes, num_classes + reserved - 1)."""
        like = self._like if self.bias is None else self.bias
        return simplex(self.width + 1, dtype=like.dtype, device=like.device)[:, : self.num_classes].T

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return the vertices, padded to the width of the features; for `normalise`, of the normalised ones."""
        vectors = self.class_vectors() * (self.radius / self.temperature)
        return F.pad(vectors, (0, self.in_features - self.width)), self.bias

    @torch.no_grad()
    def folded(self) -> nn.Module:
        """Return an nn.Linear, behind a normalisation layer if the head normalises."""
        weight, bias = self.linear_form()
        return unit_norm_then_linear(weight, bias) if self.normalise else linear_from(weight, bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's is not annotated
        self._like = fn(self._like)
        return self

    def extra_repr(self) -> str:
        """Say the sizes, the radius and what differs from the defaults."""
        told = super().extra_repr() + (", normalise=True" if self.normalise else "")
        told += f", temperature={self.temperature:g}" if self.temperature != 1 else ""
        return told + (f", reserved={self.reserved}" if self.reserved else "")


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
