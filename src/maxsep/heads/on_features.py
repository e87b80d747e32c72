"""The head with nothing trained behind the features but, if asked for, a bias: `etf`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep.checks import check_count, check_num_classes
from maxsep.heads.base import Head, linear_from
from maxsep.heads.fixed import unit_norm_then_linear
from maxsep.heads.prototypes import orthonormal_rows
from maxsep.heads.registry import register
from maxsep.ops import separate
from maxsep.simplex import simplex

__all__ = ["ETFHead"]

torch.fx.wrap("separate")  # a symbolic trace keeps the product as one call


class _OnFeatures(Head):
    """Class vectors that are known before training: logits = radius * v_j^T h, plus a bias.

    A subclass gives the `features` h, the logits and the `class_vectors`; `directions`, where there are some, are rows
    at right angles that `rotation` is the seed of.
    """

    bias: nn.Parameter | None
    directions: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        radius: float,
        *,
        normalise: bool,
        rotation: int | None,
        rows: int,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(in_features, num_classes, radius)
        self.normalise = normalise
        self.rotation = None if rotation is None else check_count("rotation", rotation, least=0)
        self._like = torch.empty(0, device=device, dtype=dtype)  # a head without a tensor has none to tell them
        self.register_parameter("bias", nn.Parameter(self._like.new_empty(num_classes)) if bias else None)
        self.register_buffer("directions", None if rotation is None else self._like.new_empty(rows, in_features))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Put the bias, if there is one, to zero, and the directions where they always are."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.directions is not None and not self.directions.is_meta:
            rows, width = self.directions.shape
            self.directions.copy_(orthonormal_rows(rows, width, self.rotation or 0))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        given = state_dict.get(prefix + "directions")
        if given is not None and self.directions is not None and given.shape == self.directions.shape:
            self._check_directions(given)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _check_directions(self, given: Tensor) -> None:
        """Refuse the directions of another seed; those of the module may not be filled yet."""
        assert self.rotation is not None
        rows, width = given.shape
        own = orthonormal_rows(rows, width, self.rotation)
        # rows of length 1: their products with themselves sum to their number, with others to about nothing
        if not given.is_meta and (given.detach().cpu().double() * own).sum() < 0.9 * len(own):
            raise ValueError(
                f"this state dict has other directions than rotation={self.rotation} gives, and its features could not "
                "be compared with those of that rotation. Build the head with the rotation that it was trained with."
            )

    def _taken(self, x: Tensor) -> Tensor:
        """Return x as it is compared: at length 1 if only directions count."""
        x = self._checked(x)
        return F.normalize(x, dim=-1) if self.normalise else x

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
        return told + (f", rotation={self.rotation}" if self.rotation is not None else "")


@register("etf")
class ETFHead(_OnFeatures):
    """The simplex directly on the features, nothing trained after them (Zhu et al. 2021).

    logits = radius * P^T h, where h are the first C-1 features (all features, L2-normalised first, with
    `normalise`) or, with `rotation`, C-1 fixed directions of them at right angles. Classes have coordinates that are
    known before training and are the same in every run, so features of models that were trained apart can be compared.

    Args:
        in_features: At least num_classes + reserved - 1; without `rotation`, features beyond that are not used.
        num_classes: C, at least 2.
        radius: Length of the class vectors.
        normalise: Compare directions only: logits are radius times cosines.
        reserved: Vertices kept for classes that will come; the simplex is built for num_classes + reserved.
        rotation: Seed of directions that all features take part in. Models that are to be compared need the same one.
        bias: A trained bias per class, as in Zhu et al.'s code; off by default.
        device: Where the bias, the directions and a folded layer are made.
        dtype: Of these.

    Pitfall: features behind a ReLU are never negative, so without `rotation` most of the vertices are out of their
    reach, and training is slow or fails.

    >>> head = ETFHead(9, 10)
    >>> head(torch.randn(2, 9)).shape, len(list(head.parameters()))
    (torch.Size([2, 10]), 0)
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        radius: float = 1.0,
        *,
        normalise: bool = False,
        reserved: int = 0,
        rotation: int | None = None,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        width = check_num_classes(num_classes) + check_count("reserved", reserved, least=0) - 1
        if check_count("in_features", in_features) < width:
            raise ValueError(
                f"the etf head puts {num_classes} classes ({reserved} more reserved) right on the features and needs "
                f"at least {width} of them, got in_features={in_features}. Use the head 'maxsep', which brings a layer "
                "of its own, or widen the network."
            )
        super().__init__(
            in_features, num_classes, radius, normalise=normalise, rotation=rotation, rows=width,
             bias=bias, device=device, dtype=dtype,
        )  # fmt: skip
        self.reserved = int(reserved)

    @property
    def width(self) -> int:
        """How many features, or directions of them, are used: one less than the vertices of the simplex."""
        return self.num_classes + self.reserved - 1

    def features(self, x: Tensor) -> Tensor:
        """Return the coordinates that the simplex sees, (..., num_classes + reserved - 1)."""
        x = self._taken(x)
        return x[..., : self.width] if self.directions is None else F.linear(x, self.directions)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        logits = separate(self.features(x), self.radius)[..., : self.num_classes]
        return logits if self.bias is None else logits + self.bias

    def class_vectors(self) -> Tensor:
        """Return the vertices of the classes in use, (num_classes, num_classes + reserved - 1)."""
        like = next(tensor for tensor in (self.bias, self.directions, self._like) if tensor is not None)
        return simplex(self.width + 1, dtype=like.dtype, device=like.device)[:, : self.num_classes].T

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return the vertices in the space of the features; for `normalise`, of the normalised ones."""
        vectors = self.class_vectors() * self.radius
        if self.directions is not None:
            return vectors @ self.directions, self.bias
        return F.pad(vectors, (0, self.in_features - self.width)), self.bias

    def extra_repr(self) -> str:
        """Say the sizes, the radius and what differs from the defaults."""
        return super().extra_repr() + (f", reserved={self.reserved}" if self.reserved else "")
