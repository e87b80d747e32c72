"""Heads without the matrix, beside which every result of the matrix is shown."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.heads.base import LayerHead, default_init
from maxsep.heads.registry import register
from maxsep.ops import separate

__all__ = ["CentredHead", "PlainHead", "ScaledHead", "TwinHead"]


class _LinearHead(LayerHead):
    """A trained weight (C, in_features) and bias (C,); subclasses say what happens to weight x + bias."""

    def layer_outputs(self) -> int:
        """Return C: no matrix follows."""
        return self.num_classes

    def class_vectors(self) -> Tensor:
        """Return the trained weight."""
        return self.weight

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return radius times weight and bias."""
        return self.weight * self.radius, None if self.bias is None else self.bias * self.radius


@register("plain")
class PlainHead(_LinearHead):
    """An ordinary linear classifier, the baseline: logits = weight x + bias.

    >>> PlainHead(64, 10)(torch.randn(2, 64)).shape
    torch.Size([2, 10])
    """

    def __init__(self, in_features: int, num_classes: int, radius: float = 1.0, **options: Any) -> None:
        super().__init__(in_features, num_classes, radius, **options)
        if self.radius != 1:
            raise ValueError(f"the plain head has no radius, got {radius}. Use the head 'scaled' for a scaled one.")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return self.layer(x)


@register("scaled")
class ScaledHead(_LinearHead):
    """A linear classifier times the radius: the control in every table. logits = radius (weight x + bias).

    >>> ScaledHead(64, 10, radius=0.1)(torch.randn(2, 64)).shape
    torch.Size([2, 10])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return self.layer(x) * self.radius


@register("centred")
class CentredHead(_LinearHead):
    """A linear classifier minus its mean logit, times the radius: logits that sum to zero, as the matrix's do.

    >>> CentredHead(64, 10)(torch.randn(2, 64)).sum(-1).abs().max() < 1e-5
    tensor(True)
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        logits = self.layer(x) * self.radius
        return logits - logits.mean(-1, keepdim=True)

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias with their mean over the classes removed."""
        weight, bias = super().linear_form()
        return weight - weight.mean(0), None if bias is None else bias - bias.mean()


@register("twin")
class TwinHead(_LinearHead):
    """The plain head that takes exactly the steps of a `MaxSeparationHead` under SGD.

    logits = weight x + bias minus their mean, started at radius * P^T W0 for the W0 that `MaxSeparationHead` would
    draw from the same seed, with the gradient of weight and bias multiplied by `factor` = radius^2 C/(C-1). Momentum,
    Nesterov and weight decay carry over because they are linear; Adam does not, because it is coordinate-wise.

    Pitfall: the radius is in the start and the factor, not in the forward pass: the weight is the composed one.

    >>> TwinHead(64, 10, radius=0.1).factor
    0.011111111111111113
    """

    def __init__(self, in_features: int, num_classes: int, radius: float = 1.0, **options: Any) -> None:
        super().__init__(in_features, num_classes, radius, **options)
        self.factor = self.radius**2 * self.num_classes / (self.num_classes - 1)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw what a MaxSeparationHead would draw, and compose it with the matrix."""
        weight = torch.empty_like(self.weight[1:])
        bias = None if self.bias is None else torch.empty_like(self.bias[1:])
        default_init(weight, bias)
        self.weight.copy_(separate(weight.T, self.radius).T)
        if self.bias is not None and bias is not None:
            self.bias.copy_(separate(bias, self.radius))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        weight = _with_gradient_times(self.weight, self.factor)
        bias = None if self.bias is None else _with_gradient_times(self.bias, self.factor)
        logits = F.linear(self._checked(x), weight, bias)
        return logits - logits.mean(-1, keepdim=True)

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias with their mean over the classes removed."""
        bias = None if self.bias is None else self.bias - self.bias.mean()
        return self.weight - self.weight.mean(0), bias


def _with_gradient_times(tensor: Tensor, factor: float) -> Tensor:
    # The difference is exactly zero, so the value is untouched; its gradient is `factor`.
    fixed = tensor.detach()
    return fixed + factor * (tensor - fixed)
