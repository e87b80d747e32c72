"""Heads that compare directions, for losses with margins: a cosine layer, and the two ways to put the matrix on it.

A margin of 0.5 means something for cosines in [-1, 1] and nothing for logits of any size. What the paper calls "LDAM
with the matrix" can be read in two ways: the matrix behind a cosine layer (`cosine_maxsep`), or cosines with the
columns of the matrix (`maxsep_cosine`).
"""

from __future__ import annotations

import math

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep.heads.base import LayerHead, linear_from
from maxsep.heads.fixed import unit_norm_then_linear
from maxsep.heads.registry import register
from maxsep.ops import separate
from maxsep.simplex import simplex

__all__ = ["CentredCosineHead", "CosineHead", "CosineMaxSeparationHead", "MaxSeparationCosineHead"]

torch.fx.wrap("separate")  # a symbolic trace keeps the product as one call

_NO_LINEAR_FORM = "cosines have no linear form. Use folded(), which keeps the normalisation as a layer."


class _CosineLayer(LayerHead):
    """A trained weight without bias, of which only the directions of its rows count."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        radius: float = 1.0,
        bias: bool = False,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if bias:
            raise ValueError(f"{type(self).__name__} compares directions and has no bias, got bias=True. Leave it out.")
        super().__init__(in_features, num_classes, radius, bias=False, device=device, dtype=dtype)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw rows uniformly from [-1, 1] and give each length 1, as Cao et al. do."""
        nn.init.uniform_(self.weight, -1, 1)
        self.weight.copy_(F.normalize(self.weight, dim=1))

    def cosines(self, x: Tensor) -> Tensor:
        """Return cos(x, row) for every row of the weight."""
        return F.linear(F.normalize(self._checked(x), dim=-1), F.normalize(self.weight, dim=1))

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Refuse: a cosine is not linear in x."""
        raise ValueError(_NO_LINEAR_FORM)


@register("cosine")
class CosineHead(_CosineLayer):
    """A plain classifier by direction: logits_j = radius * cos(x, weight_j), the head of LDAM (Cao et al. 2019).

    Args:
        in_features: Width of the features.
        num_classes: C, at least 2.
        radius: Scale of the logits; 1 for a loss that brings its own scale.
        device: Where the weight is made.
        dtype: Of the weight.

    Pitfall: at radius 1 the logits lie in [-1, 1], too close together for cross-entropy. Use it with `LDAMLoss`.

    >>> head = CosineHead(64, 10)
    >>> bool(head(torch.randn(2, 64)).abs().max() <= 1)
    True
    """

    def layer_outputs(self) -> int:
        """Return C: no matrix follows."""
        return self.num_classes

    def features(self, x: Tensor) -> Tensor:
        """Return x at length 1."""
        return F.normalize(self._checked(x), dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return self.cosines(x) * self.radius

    def class_vectors(self) -> Tensor:
        """Return the trained rows at length 1."""
        return F.normalize(self.weight, dim=1)

    @torch.no_grad()
    def folded(self) -> nn.Module:
        """Return a normalisation and an nn.Linear."""
        return unit_norm_then_linear(self.class_vectors() * self.radius, None)


@register("cosine_maxsep")
class CosineMaxSeparationHead(_CosineLayer):
    """The matrix behind a cosine layer of C-1 outputs: u_j = cos(x, weight_j), logits = radius * P^T u.

    The smallest edit that puts the matrix on LDAM. The logits are no cosines: |u| is not 1, and rows of the weight
    need not be orthogonal; they are of order 1, so margin and scale keep their meaning roughly.

    Args:
        in_features: Width of the features.
        num_classes: C, at least 2.
        radius: Length of the class vectors.
        device: Where the weight is made.
        dtype: Of the weight.

    >>> CosineMaxSeparationHead(64, 10).weight.shape
    torch.Size([9, 64])
    """

    def features(self, x: Tensor) -> Tensor:
        """Return the C-1 cosines that the matrix turns into logits."""
        return self.cosines(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return separate(self.features(x), self.radius)

    def class_vectors(self) -> Tensor:
        """Return the columns of the matrix, (C, C-1)."""
        return _columns(self)

    @torch.no_grad()
    def folded(self) -> nn.Module:
        """Return a normalisation and an nn.Linear that holds both layers."""
        rows = F.normalize(self.weight, dim=1)
        return unit_norm_then_linear(separate(rows.T, self.radius).T.contiguous(), None)


@register("maxsep_cosine")
class MaxSeparationCosineHead(LayerHead):
    """Cosines with the columns of the matrix: z = weight x + bias, logits = radius * P^T (z / |z|).

    These are true cosines, in [-radius, radius], as margins assume. Under SGD it walks the path of a plain head whose
    logits are centred and normalised (`centred_cosine`), with the start and step of `twin`.

    Args:
        in_features: Width of the features.
        num_classes: C, at least 2.
        radius: Scale of the cosines.
        bias: Whether the trained layer has a bias.
        device: Where the parameters are made.
        dtype: Of the parameters.

    >>> head = MaxSeparationCosineHead(64, 10)
    >>> bool(head(torch.randn(2, 64)).abs().max() <= 1 + 1e-6)
    True
    """

    def features(self, x: Tensor) -> Tensor:
        """Return the direction that is compared with the columns, (..., C-1), of length 1."""
        return F.normalize(self.layer(x), dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return separate(self.features(x), self.radius)

    def class_vectors(self) -> Tensor:
        """Return the columns of the matrix, (C, C-1)."""
        return _columns(self)

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Refuse: a cosine is not linear in x."""
        raise ValueError(_NO_LINEAR_FORM)

    @torch.no_grad()
    def folded(self) -> nn.Module:
        """Return the layer, a normalisation and an nn.Linear that holds the matrix."""
        cosines = unit_norm_then_linear(_columns(self) * self.radius, None)
        return nn.Sequential(linear_from(self.weight, self.bias), *cosines)


@register("centred_cosine")
class CentredCosineHead(LayerHead):
    """The control of `maxsep_cosine`: a plain layer whose logits are centred and given a fixed length.

    o = weight x + bias, c = o minus its mean, logits = radius * sqrt(C/(C-1)) * c / |c|. The root makes the logits the
    cosines of c with the corners of the regular simplex, so they are in [-radius, radius] too.

    Args:
        in_features: Width of the features.
        num_classes: C, at least 2.
        radius: Scale of the cosines.
        bias: Whether the trained layer has a bias.
        device: Where the parameters are made.
        dtype: Of the parameters.

    >>> logits = CentredCosineHead(64, 10)(torch.randn(2, 64))
    >>> bool(logits.sum(-1).abs().max() < 1e-5), bool(logits.abs().max() <= 1 + 1e-6)
    (True, True)
    """

    def layer_outputs(self) -> int:
        """Return C: no matrix follows."""
        return self.num_classes

    def features(self, x: Tensor) -> Tensor:
        """Return the centred logits at length 1, (..., C)."""
        logits = self.layer(x)
        return F.normalize(logits - logits.mean(-1, keepdim=True), dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return self.features(x) * (self.radius * self._corner)

    def class_vectors(self) -> Tensor:
        """Return the corners of the regular simplex on the plane of zero-sum logits, (C, C), each of length 1."""
        eye = torch.eye(self.num_classes, device=self.weight.device, dtype=self.weight.dtype)
        return (eye - 1 / self.num_classes) * self._corner

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Refuse: a cosine is not linear in x."""
        raise ValueError(_NO_LINEAR_FORM)

    @torch.no_grad()
    def folded(self) -> nn.Module:
        """Return an nn.Linear with centred weights, and a normalisation that holds the scale."""
        bias = None if self.bias is None else self.bias - self.bias.mean()
        layer = linear_from(self.weight - self.weight.mean(0), bias)
        norm = nn.RMSNorm(self.num_classes, eps=torch.finfo(torch.float32).tiny)
        norm.weight.fill_(self.radius * self._corner / math.sqrt(self.num_classes))
        return nn.Sequential(layer, norm.requires_grad_(False).to(layer.weight))

    @property
    def _corner(self) -> float:
        """One over the distance of a one-hot vector from the plane's origin: sqrt(C/(C-1))."""
        return math.sqrt(self.num_classes / (self.num_classes - 1))


def _columns(head: LayerHead) -> Tensor:
    return simplex(head.num_classes, dtype=head.weight.dtype, device=head.weight.device).T
