"""Heads that compare directions, for losses with margins: a cosine layer, and the two ways to put the matrix on it.

The paper's "LDAM with the matrix" can be read in two ways: the matrix behind a cosine layer (`cosine_maxsep`), or
cosines with the columns of the matrix (`maxsep_cosine`, with its control `centred_cosine`).
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep.heads.base import LayerHead, linear_from, unit_norm_then_linear
from maxsep.heads.registry import register
from maxsep.ops import separate
from maxsep.simplex import simplex


class _CosineLayer(LayerHead):
    """A trained weight without bias, of which only the directions of its rows count."""

    def __init__(
        self, in_features: int, num_classes: int, radius: float = 1.0, bias: bool = False, **options: Any
    ) -> None:
        if bias:
            raise ValueError(f"bias must be False for {type(self).__name__}, which compares directions, got {bias}")
        super().__init__(in_features, num_classes, radius, bias=False, **options)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw rows uniformly from [-1, 1] and give each length 1, as Cao et al. do."""
        nn.init.uniform_(self.weight, -1, 1)
        self.weight.copy_(F.normalize(self.weight, dim=1))

    def cosines(self, x: Tensor) -> Tensor:
        """Return cos(x, row) for every row of the weight."""
        return F.linear(F.normalize(self._checked(x), dim=-1), F.normalize(self.weight, dim=1))


@register("cosine")
class CosineHead(_CosineLayer):
    """The head of LDAM (Cao et al. 2019), a plain classifier by direction: logits_j = radius * cos(x, weight_j).

    Pitfall: at radius 1 the logits lie in [-1, 1], too close together for cross-entropy. Use it with `LDAMLoss`, which
    has a scale itself.

    >>> bool(CosineHead(64, 10)(torch.randn(2, 64)).abs().max() <= 1)
    True
    """

    has_matrix = False

    def features(self, x: Tensor) -> Tensor:
        """Return x at length 1."""
        return F.normalize(self._checked(x), dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return self.cosines(x) * self.radius

    def folded(self) -> nn.Module:
        """Return a normalisation and an nn.Linear."""
        return unit_norm_then_linear(F.normalize(self.weight, dim=1) * self.radius, None)


@register("cosine_maxsep")
class CosineMaxSeparationHead(_CosineLayer):
    """The matrix behind a cosine layer of C-1 outputs: u_j = cos(x, weight_j), logits = radius * P^T u.

    The logits are no cosines, since |u| is not 1, but they are of order 1, so that margins keep their meaning roughly.
    """

    def features(self, x: Tensor) -> Tensor:
        """Return the C-1 cosines that the matrix turns into logits."""
        return self.cosines(x)

    def folded(self) -> nn.Module:
        """Return a normalisation and an nn.Linear that holds both layers."""
        rows = F.normalize(self.weight, dim=1)
        return unit_norm_then_linear(separate(rows.T, self.radius).T.contiguous(), None)


@register("maxsep_cosine")
class MaxSeparationCosineHead(LayerHead):
    """Cosines with the columns of the matrix: z = weight x + bias, logits = radius * P^T (z / |z|). At least 3 classes.

    Under SGD it follows `centred_cosine` from the same composed start, with steps C/(C-1) times as long.
    """

    min_classes = 3

    def features(self, x: Tensor) -> Tensor:
        """Return the direction that is compared with the columns, (..., C-1), of length 1."""
        return F.normalize(self.layer(x), dim=-1)

    def folded(self) -> nn.Module:
        """Return the layer, a normalisation and an nn.Linear that holds the matrix."""
        columns = simplex(self.num_classes, dtype=self.weight.dtype, device=self.weight.device).T
        cosines = unit_norm_then_linear(columns * self.radius, None)
        return nn.Sequential(linear_from(self.weight, self.bias), *cosines)


@register("centred_cosine")
class CentredCosineHead(LayerHead):
    """The control of `maxsep_cosine`: a plain layer whose logits are centred and given a fixed length.

    o = weight x + bias, c = o - mean(o), logits = radius * sqrt(C/(C-1)) * c / |c|: cosines with the corners of the
    regular simplex. At least 3 classes.
    """

    has_matrix = False
    min_classes = 3

    def features(self, x: Tensor) -> Tensor:
        """Return the centred logits at length 1, (..., C)."""
        logits = self.layer(x)
        return F.normalize(logits - logits.mean(-1, keepdim=True), dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return self.features(x) * (self.radius * math.sqrt(self.num_classes / (self.num_classes - 1)))

    @torch.no_grad()
    def folded(self) -> nn.Module:
        """Return an nn.Linear with centred weights, and a normalisation that holds the scale."""
        bias = None if self.bias is None else self.bias - self.bias.mean()
        layer = linear_from(self.weight - self.weight.mean(0), bias)
        norm = nn.RMSNorm(self.num_classes, eps=torch.finfo(torch.float32).tiny)
        norm.weight.fill_(self.radius / math.sqrt(self.num_classes - 1))
        return nn.Sequential(layer, norm.requires_grad_(False).to(layer.weight))
