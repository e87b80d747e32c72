"""The paper's head: a trained layer to C-1 outputs, then the fixed matrix, in either basis."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from maxsep.checks import Basis, check_basis, check_last_dimension, check_num_classes, check_radius
from maxsep.heads.base import Identified, LayerHead
from maxsep.heads.registry import register
from maxsep.ops import adjoint, separate, separate_linear, widened
from maxsep.simplex import simplex

__all__ = ["MaxSeparation", "MaxSeparationHead"]

# a symbolic trace keeps the product as one call
torch.fx.wrap("separate")
torch.fx.wrap("separate_linear")


class MaxSeparation(Identified):
    """The fixed matrix as a layer: (..., C-1) to (..., C) logits, nothing to train and nothing to store.

    logits = radius * P^T x. It has no parameters and no buffers, so optimisers, DDP and `.half()` pass it by.

    Args:
        num_classes: C, at least 2.
        radius: Length of the class vectors.
        basis: `recursive`, the paper's, or `householder`: see `MaxSeparationHead`.

    Pitfall: it wants C-1 inputs. `MaxSeparationHead` brings the layer that makes them.

    >>> layer = MaxSeparation(3)
    >>> layer(torch.tensor([[1.0, 0.0]]))
    tensor([[ 1.0000, -0.5000, -0.5000]])
    """

    def __init__(self, num_classes: int, radius: float = 1.0, *, basis: Basis = "recursive") -> None:
        super().__init__()
        self.num_classes = check_num_classes(num_classes)
        self.radius = check_radius(radius)
        self._basis = check_basis(basis)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        if isinstance(x, Tensor):
            check_last_dimension(x, self.num_classes - 1, "num_classes - 1")
        return separate(x, self.radius, basis=self.basis)

    def extra_repr(self) -> str:
        """Say the size, the radius and the basis if it is not the paper's."""
        return f"num_classes={self.num_classes}, radius={self.radius:g}" + _told(self.basis)


@register("maxsep")
class MaxSeparationHead(LayerHead):
    """A classifier with maximum class separation; it goes where the last nn.Linear was.

    logits = radius * P^T (weight x + bias), with weight (C-1, in_features) trained and P fixed.

    Args:
        in_features: Width of the features that the network gives.
        num_classes: C, at least 2.
        radius: Length of the class vectors; the paper takes 0.1 for its long-tailed ResNets and 1 elsewhere.
        bias: Whether the trained layer has a bias.
        basis: The coordinates of P. `recursive` are the paper's. `householder` is the same simplex turned: the same
            functions, the same training by SGD, and less work in the streamed loss (`fused_cross_entropy`); the
            product itself is slower in it. `maxsep.change_basis` takes a trained head from one to the other.
        device: Where the parameters are made.
        dtype: Of the parameters.

    Pitfall: it is not an nn.Linear, on purpose: a quantiser or adapter that treated it as one would lose P.
    Fold it first (`maxsep.fold`).

    >>> head = MaxSeparationHead(64, 10)
    >>> head(torch.randn(2, 64)).shape, head.features(torch.randn(2, 64)).shape
    (torch.Size([2, 10]), torch.Size([2, 9]))
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        radius: float = 1.0,
        bias: bool = True,
        *,
        basis: Basis = "recursive",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, radius, bias, device=device, dtype=dtype)
        self._basis = check_basis(basis)

    def features(self, x: Tensor) -> Tensor:
        """Return the C-1 numbers that the matrix turns into logits."""
        return self.layer(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        return separate_linear(self._checked(x), self.weight, self.bias, self.radius, self.basis)

    def class_vectors(self) -> Tensor:
        """Return P^T, (C, C-1): the fixed unit vectors that `features` is compared with. Dense: C^2 numbers."""
        return simplex(self.num_classes, basis=self.basis, dtype=self.weight.dtype, device=self.weight.device).T

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return radius * P^T weight and radius * P^T bias, in O(C) per column."""
        weight = separate(self.weight.T, self.radius, basis=self.basis).T.contiguous()
        return weight, None if self.bias is None else separate(self.bias, self.radius, basis=self.basis)

    @classmethod
    @torch.no_grad()
    def from_linear(cls, linear: nn.Linear, radius: float = 1.0, *, basis: Basis = "recursive") -> MaxSeparationHead:
        """Take a trained nn.Linear over without changing a probability.

        weight = (k/C)/radius * P W: the exact inverse on the plane of zero-sum logits; the mean logit, which softmax
        does not see, is dropped.

        >>> linear, x = nn.Linear(8, 5), torch.randn(3, 8)
        >>> head = MaxSeparationHead.from_linear(linear)
        >>> torch.allclose(head(x).softmax(-1), linear(x).softmax(-1), atol=1e-6)
        True
        """
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"from_linear takes an nn.Linear, got {type(linear).__name__}. Pass the layer itself.")
        weight = linear.weight
        head = cls(
            linear.in_features,
            linear.out_features,
            radius,
            bias=linear.bias is not None,
            basis=basis,
            device=weight.device,
            dtype=weight.dtype,
        )
        scale = (head.num_classes - 1) / head.num_classes / head.radius
        head.weight.copy_(_unseparate(weight.T, scale, basis).T)
        if head.bias is not None:
            head.bias.copy_(_unseparate(linear.bias, scale, basis))
        head.train(linear.training)
        head.weight.requires_grad_(weight.requires_grad)
        if head.bias is not None:
            head.bias.requires_grad_(linear.bias.requires_grad)
        return head

    def extra_repr(self) -> str:
        """Say the sizes, the radius and the basis if it is not the paper's."""
        return super().extra_repr() + _told(self.basis)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        given = state_dict.get(prefix + "weight")
        plain = prefix + "_extra_state" not in state_dict
        if plain and given is not None and given.shape == (self.num_classes, self.in_features):
            raise ValueError(
                f"'{prefix}weight' of shape {tuple(given.shape)} is a plain linear layer's; this head keeps "
                f"{tuple(self.weight.shape)}. Load it into an nn.Linear and convert with MaxSeparationHead.from_linear."
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _unseparate(logits: Tensor, scale: float, basis: Basis) -> Tensor:
    wide = widened(logits)
    # P ignores a common shift, but a large one would cost the differences their last digits.
    return adjoint(wide - wide.mean(-1, keepdim=True), scale, basis).to(logits.dtype)


def _told(basis: Basis) -> str:
    return "" if basis == "recursive" else f", basis={basis!r}"
