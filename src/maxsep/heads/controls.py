"""Heads without the matrix, with which every result of the matrix is compared, and a trained scale for logits."""

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from maxsep.heads.base import Head, LayerHead
from maxsep.heads.registry import register


class _LinearHead(LayerHead):
    """A trained weight (C, in_features) and bias (C,): logits = scale (weight x + bias)."""

    has_matrix = False
    features = Head.features

    @property
    def scale(self) -> float:
        return self.radius

    def forward(self, x: Tensor) -> Tensor:
        logits = self.layer(x)
        return logits if self.scale == 1 else logits * self.scale

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        return self.weight * self.scale, None if self.bias is None else self.bias * self.scale


@register("plain")
class PlainHead(_LinearHead):
    """An ordinary linear classifier, the baseline: logits = weight x + bias. It has no radius other than 1.

    >>> PlainHead(64, 10)(torch.randn(2, 64)).shape
    torch.Size([2, 10])
    """

    def __init__(self, in_features: int, num_classes: int, radius: float = 1.0, **options: Any) -> None:
        super().__init__(in_features, num_classes, radius, **options)
        if self.radius != 1:
            raise ValueError(f"radius must be 1 for the head 'plain', got {radius}; the head 'scaled' has one")


@register("scaled")
class ScaledHead(_LinearHead):
    """A linear classifier times the radius: logits = radius (weight x + bias).

    >>> ScaledHead(64, 10, radius=0.1)(torch.randn(2, 64)).shape
    torch.Size([2, 10])
    """


@register("control")
class ControlHead(_LinearHead):
    """The exact control of `MaxSeparationHead`: a plain layer that trains in the same way under SGD.

    logits = radius sqrt(C/(C-1)) (weight x + bias), where weight and bias start minus their means over classes. For a
    loss that ignores a common shift of the logits, SGD moves both heads alike (docs/theory.md). Adam, which works
    coordinate by coordinate, does not.

    >>> head = ControlHead(64, 10, radius=0.1)
    >>> bool(head.weight.sum(0).abs().max() < 1e-6), round(head.scale, 4)
    (True, 0.1054)
    """

    @property
    def scale(self) -> float:
        """The factor of the layer, radius * sqrt(C / (C - 1))."""
        return self.radius * math.sqrt(self.num_classes / (self.num_classes - 1))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new parameters as nn.Linear does and subtract their means over classes."""
        super().reset_parameters()
        for parameter in self.parameters():
            parameter.sub_(parameter.mean(0))

    @classmethod
    def from_linear(cls, linear: nn.Linear, radius: float = 1.0) -> Self:
        """Convert a trained nn.Linear without changing a probability: the rows minus their mean, over the scale.

        `MaxSeparationHead.from_linear` of the same layer has the same logits, and the same ones in training by SGD.

        >>> linear, x = nn.Linear(8, 5), torch.randn(3, 8)
        >>> torch.allclose(ControlHead.from_linear(linear)(x).softmax(-1), linear(x).softmax(-1), atol=1e-6)
        True
        """
        return cls._from_linear(linear, radius, lambda head, centred: centred / head.scale)


class LogitScaledHead(Head):
    """Learnable weight scaling (Kang et al. 2020): logits_j = scale_j * head(x)_j, with scale started at 1.

    A second stage of training for long tails: the factors are trained on balanced batches after the head, with the
    head or without it. It is not in the registry, because it needs a head.
    """

    def __init__(self, head: Head) -> None:
        super().__init__(head.in_features, head.num_classes, head.radius)
        like = next(head.parameters(), torch.empty(0))
        self.head = head
        self.scale = nn.Parameter(torch.ones(self.num_classes, device=like.device, dtype=like.dtype))

    def features(self, x: Tensor) -> Tensor:
        """Return the features of the inner head."""
        return self.head.features(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        logits: Tensor = self.head(x)
        return logits * self.scale

    @torch.no_grad()
    def folded(self) -> nn.Module:
        """Return the plain form of the inner head with the factors in its last layer."""
        folded = self.head.folded()
        last = folded[-1] if isinstance(folded, nn.Sequential) else folded
        for parameter in last.parameters():  # of an nn.Linear, or an nn.RMSNorm
            parameter.mul_(self.scale.view(-1, *[1] * (parameter.dim() - 1)))
        return folded
