"""Heads with something else in the place of the matrix: optimised prototypes, trained layers, a rotated matrix."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep.checks import check_count
from maxsep.heads.base import LayerHead, default_init, linear_from, unit_norm_then_linear
from maxsep.heads.etf import orthonormal_rows
from maxsep.heads.registry import register
from maxsep.ops import separate
from maxsep.simplex import simplex


@register("hpn")
class HPNHead(LayerHead):
    """Prototypes spread by gradient descent (Mettes et al. 2019), which the closed form replaces.

    logits = radius * cos(weight x + bias, prototype_c), for at least 3 classes; without `normalise`, dot products
    instead of cosines. The original runs 10,000 iterations, which take seconds at 100 classes.
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
        check_count("num_classes", num_classes, least=3 if normalise else 2)
        super().__init__(in_features, num_classes, radius, **options)
        self.normalise = normalise
        self.iterations = check_count("iterations", iterations)
        self.register_buffer("prototypes", self._start())

    def reset_parameters(self) -> None:
        """Draw a new layer; the prototypes are always the same."""
        super().reset_parameters()
        if hasattr(self, "prototypes"):
            self.prototypes.copy_(self._start())

    def _start(self) -> Tensor:
        iterations = 1 if self.weight.is_meta else self.iterations
        prototypes = optimise_prototypes(self.num_classes, self.num_classes - 1, iterations)
        return prototypes.to(self.weight.detach(), copy=True)

    def features(self, x: Tensor) -> Tensor:
        """Return the C-1 numbers that are compared with the prototypes."""
        z = self.layer(x)
        return F.normalize(z, dim=-1) if self.normalise else z

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return F.linear(self.features(x), self.prototypes) * self.radius

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return the product of prototypes and layer; only dot products have one."""
        if self.normalise:
            return super().linear_form()
        weight = self.prototypes @ self.weight * self.radius
        return weight, None if self.bias is None else self.prototypes @ self.bias * self.radius

    def folded(self) -> nn.Module:
        """Return one nn.Linear for dot products; the layer, a normalisation and an nn.Linear for cosines."""
        if not self.normalise:
            return super().folded()
        cosines = unit_norm_then_linear(self.prototypes * self.radius, None)
        return nn.Sequential(linear_from(self.weight, self.bias), *cosines)


@lru_cache(maxsize=16)
def optimise_prototypes(num_classes: int, width: int, iterations: int = 10_000) -> Tensor:
    """Spread unit vectors, (num_classes, width), by gradient descent on the mean of each one's largest cosine.

    The original makes a new optimiser at every step, so its momentum never acts: this is plain gradient descent with a
    normalisation after each step. The result is shared between calls: clone it before changing it.
    """
    generator = torch.Generator("cpu").manual_seed(300)
    vectors = F.normalize(torch.randn(num_classes, width, generator=generator, device="cpu"), dim=1)
    with torch.no_grad(), torch.device("cpu"):
        for _ in range(iterations):
            cosines = (vectors @ vectors.T).fill_diagonal_(-2)
            nearest = cosines.argmax(1)
            # gradient of sum_i <v_i, v_nearest(i)>: the nearest of i, and every vector whose nearest is i
            gradient = vectors[nearest].index_add(0, nearest, vectors)
            vectors = F.normalize(vectors - 0.1 / num_classes * gradient, dim=1)
    return vectors


@register("learnable_matrix")
class LearnableMatrixHead(LayerHead):
    """The matrix as the start of a trained one: logits = matrix^T (weight x + bias), matrix started at radius * P."""

    def __init__(self, in_features: int, num_classes: int, radius: float = 1.0, **options: Any) -> None:
        super().__init__(in_features, num_classes, radius, **options)
        self.matrix = nn.Parameter(self._start())

    def reset_parameters(self) -> None:
        """Draw a new layer and put the matrix back to radius * P."""
        super().reset_parameters()
        if hasattr(self, "matrix"):
            with torch.no_grad():
                self.matrix.copy_(self._start())

    def _start(self) -> Tensor:
        return simplex(self.num_classes, dtype=self.weight.dtype, device=self.weight.device) * self.radius

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return F.linear(self.features(x), self.matrix.T)

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return matrix^T weight and matrix^T bias."""
        return self.matrix.T @ self.weight, None if self.bias is None else self.matrix.T @ self.bias


@register("extra_layer")
class ExtraLayerHead(LayerHead):
    """One more trained layer in place of the matrix, from a random start: logits = extra (weight x + bias)."""

    def __init__(
        self, in_features: int, num_classes: int, radius: float = 1.0, bias: bool = True, **options: Any
    ) -> None:
        super().__init__(in_features, num_classes, radius, bias, **options)
        if self.radius != 1:
            raise ValueError(f"radius must be 1 for the head 'extra_layer', whose scale is trained, got {radius}")
        self.extra = nn.Linear(self.num_classes - 1, self.num_classes, bias, **options)

    def reset_parameters(self) -> None:
        """Draw both layers as nn.Linear does."""
        super().reset_parameters()
        if hasattr(self, "extra"):
            default_init(self.extra.weight, self.extra.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        logits: Tensor = self.extra(self.features(x))
        return logits

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return the product of the two layers."""
        weight = self.extra.weight @ self.weight
        return weight, None if self.bias is None else self.extra.weight @ self.bias + self.extra.bias


@register("maxsep_rotated")
class RotatedMaxSeparationHead(LayerHead):
    """The matrix in rotated coordinates: logits = radius * P^T Q (weight x + bias).

    Q is orthogonal and drawn from the seed `rotation`. The functions and the training by SGD are those of `maxsep`;
    under Adam, which works coordinate by coordinate, training differs.
    """

    matrix: Tensor

    def __init__(
        self, in_features: int, num_classes: int, radius: float = 1.0, *, rotation: int = 0, **options: Any
    ) -> None:
        super().__init__(in_features, num_classes, radius, **options)
        self.rotation = check_count("rotation", rotation, least=0)
        self.register_buffer("matrix", self._rotation_matrix(), persistent=False)

    def _rotation_matrix(self) -> Tensor:
        return orthonormal_rows(self.num_classes - 1, self.num_classes - 1, self.rotation).to(self.weight)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's is not annotated
        self.matrix = self._rotation_matrix()  # exact again after half() or to_empty()
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self.matrix = self._rotation_matrix()  # with assign=True the weight may have moved

    def features(self, x: Tensor) -> Tensor:
        """Return the C-1 numbers that P turns into logits."""
        return F.linear(self.layer(x), self.matrix)

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return radius * P^T Q weight and radius * P^T Q bias."""
        weight = separate((self.matrix @ self.weight).T, self.radius).T.contiguous()
        return weight, None if self.bias is None else separate(self.matrix @ self.bias, self.radius)
