"""The simplex directly on the features, with nothing trained after them but an optional bias: `etf`."""

from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep.checks import check_count
from maxsep.heads.base import Head, linear_from, unit_norm_then_linear
from maxsep.heads.registry import register
from maxsep.ops import separate
from maxsep.simplex import simplex

torch.fx.wrap("separate")  # a symbolic trace keeps the product as one call


@register("etf")
class ETFHead(Head):
    """A fixed simplex equiangular tight frame on the features (Zhu et al. 2021, Yang et al. 2022).

    logits = radius * P^T h, where h are the first C-1 features (of x at length 1 with `normalise`) or, with `rotation`,
    C-1 fixed orthonormal directions of all of them.

    Args:
        in_features: At least num_classes + reserved - 1; without `rotation`, features beyond that are not used.
        normalise: Compare directions only: the logits are radius times cosines.
        reserved: Vertices kept for later classes; the simplex is built for num_classes + reserved.
        rotation: Seed of the orthonormal directions. Models that are compared need the same one.
        bias: A trained bias per class, as in Zhu et al.'s code.

    Pitfall: features behind a ReLU are never negative, so without `rotation` most vertices are out of their reach,
    and training is slow or fails.

    >>> head = ETFHead(9, 10)
    >>> head(torch.randn(2, 9)).shape, len(list(head.parameters()))
    (torch.Size([2, 10]), 0)
    """

    bias: nn.Parameter | None
    directions: Tensor | None
    _like: Tensor

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
        super().__init__(in_features, num_classes, radius)
        self.normalise = normalise
        self.reserved = check_count("reserved", reserved, least=0)
        self.rotation = None if rotation is None else check_count("rotation", rotation, least=0)
        check_count("in_features", in_features, least=self.width)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.register_parameter("bias", nn.Parameter(torch.empty(num_classes, **factory)) if bias else None)
        directions = None if rotation is None else torch.empty(self.width, in_features, **factory)
        self.register_buffer("directions", directions)
        self.register_buffer("_like", torch.empty(0, **factory), persistent=False)  # has the device and dtype
        self.reset_parameters()

    def extra_repr(self) -> str:
        """Return the sizes, the radius, the rotation and the number of reserved vertices."""
        return f"{super().extra_repr()}, rotation={self.rotation}, reserved={self.reserved}"

    @property
    def width(self) -> int:
        """The number of features or directions in use: one less than the vertices of the simplex."""
        return self.num_classes + self.reserved - 1

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the bias to zero and recompute the directions, which depend on `rotation` alone."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.directions is not None and not self.directions.is_meta:
            self.directions.copy_(orthonormal_rows(self.width, self.in_features, self.rotation or 0))

    def features(self, x: Tensor) -> Tensor:
        """Return the coordinates that the simplex is applied to, (..., num_classes + reserved - 1)."""
        x = self._checked(x)
        x = F.normalize(x, dim=-1) if self.normalise else x
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

    def folded(self) -> nn.Module:
        """Return an nn.Linear, behind a normalisation layer if the head normalises."""
        return (unit_norm_then_linear if self.normalise else linear_from)(*self.linear_form())

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        saved, current = state_dict.get(prefix + "directions"), self.directions
        if saved is not None and current is not None and saved.shape == current.shape and not saved.is_meta:
            # computed anew, as the current ones may still be uninitialised
            expected = orthonormal_rows(self.width, self.in_features, self.rotation or 0)
            # unit rows: their products with themselves sum to their number, with others to about zero
            if (saved.detach().cpu().double() * expected).sum() < 0.9 * len(expected):
                raise ValueError(f"'{prefix}directions' of the state dict are not those of rotation={self.rotation}")
        super()._load_from_state_dict(state_dict, prefix, *rest)


def orthonormal_rows(count: int, width: int, seed: int = 0) -> Tensor:
    """Draw orthonormal rows, (count, width) in float64, uniformly; fewer of the same seed are the first of more."""
    generator = torch.Generator("cpu").manual_seed(seed)
    # row by row, because the number of values drawn at once can change the last of them
    rows = [torch.randn(width, generator=generator, dtype=torch.float64, device="cpu") for _ in range(count)]
    columns, upper = torch.linalg.qr(torch.stack(rows, dim=1))
    # the signs of a QR decomposition are the library's choice; with a positive diagonal it is unique
    result: Tensor = (columns * upper.diagonal().sign()).T.contiguous()
    return result
