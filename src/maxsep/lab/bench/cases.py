"""What is measured: each operation in the form of this package, with the dense matrix, and as a plain nn.Linear has it.

Every form says how much memory it needs before anything is allocated, and makes its tensors only when it is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead, separate, simplex
from maxsep.losses import fused_cross_entropy
from maxsep.simplex import coefficients

__all__ = ["OPERATIONS", "PLAIN", "Form", "Sizes"]

MAXSEP, FUSED, DENSE, PLAIN = "maxsep", "fused", "dense", "plain"
FLOAT = 4
"""Bytes of a float32, in which everything is measured."""
MATRIX = 2
"""How many matrices the dense form holds at its peak: while it is built, one more than the result."""


@dataclass(frozen=True)
class Sizes:
    """How large a measurement is."""

    classes: int
    batch: int
    features: int
    device: torch.device

    def samples(self, width: int, *, trained: bool = True) -> Tensor:
        """Return random samples, (batch, width)."""
        return torch.randn(self.batch, width, device=self.device, requires_grad=trained)

    def labels(self) -> Tensor:
        """Return random labels, (batch,)."""
        return torch.randint(self.classes, (self.batch,), device=self.device)

    def linear(self, outputs: int) -> nn.Linear:
        """Return a plain layer."""
        return nn.Linear(self.features, outputs, device=self.device)

    @property
    def logits(self) -> int:
        """Bytes of all logits."""
        return FLOAT * self.batch * self.classes

    @property
    def weights(self) -> int:
        """Bytes of the layer."""
        return FLOAT * self.classes * self.features

    @property
    def matrix(self) -> int:
        """Bytes of the dense matrix."""
        return FLOAT * self.classes * (self.classes - 1)


@dataclass(frozen=True)
class Form:
    """One way to do an operation: its name, the bytes it needs, and how to get something that can be called."""

    name: str
    needs: int
    prepare: Callable[[], Callable[[], object]]


def _construction(sizes: Sizes) -> list[Form]:
    """What is made once: two vectors, the matrix, or a layer with its random numbers."""
    return [
        Form(MAXSEP, 64 * sizes.classes, lambda: lambda: coefficients(sizes.classes, device=sizes.device)),
        Form(DENSE, MATRIX * sizes.matrix, lambda: lambda: simplex(sizes.classes, device=sizes.device)),
        Form(PLAIN, sizes.weights, lambda: lambda: sizes.linear(sizes.classes)),
    ]


def _product(sizes: Sizes) -> list[Form]:
    """C-1 outputs to C logits, forward and backward; beside it the plain layer from the features to the logits."""

    def step(logits: Callable[[Tensor], Tensor], width: int, parameters: Iterable[Tensor] = ()) -> Callable[[], object]:
        x, g = sizes.samples(width), sizes.samples(sizes.classes, trained=False)
        return lambda: torch.autograd.grad(logits(x), [x, *parameters], g)

    def dense() -> Callable[[], object]:
        matrix = simplex(sizes.classes, device=sizes.device)
        return step(lambda x: x @ matrix, sizes.classes - 1)

    def plain() -> Callable[[], object]:
        layer = sizes.linear(sizes.classes)
        return step(layer, sizes.features, list(layer.parameters()))

    return [
        Form(MAXSEP, 5 * sizes.logits, lambda: step(separate, sizes.classes - 1)),
        Form(DENSE, MATRIX * sizes.matrix + 4 * sizes.logits, dense),
        Form(PLAIN, 2 * sizes.weights + 3 * sizes.logits, plain),
    ]


def _training(sizes: Sizes, layer: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], object]:
    x, y = sizes.samples(sizes.features), sizes.labels()
    wanted = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(loss(x, y), wanted)


def _head(sizes: Sizes) -> list[Form]:
    """Features to the cross-entropy, forward and backward, all gradients; fused, the logits are never held."""

    def ours() -> Callable[[], object]:
        head = MaxSeparationHead(sizes.features, sizes.classes, device=sizes.device)
        return _training(sizes, head, lambda x, y: F.cross_entropy(head(x), y))

    def fused() -> Callable[[], object]:
        head = MaxSeparationHead(sizes.features, sizes.classes, device=sizes.device)
        return _training(sizes, head, lambda x, y: fused_cross_entropy(head, x, y))

    def dense() -> Callable[[], object]:
        layer, matrix = sizes.linear(sizes.classes - 1), simplex(sizes.classes, device=sizes.device)
        return _training(sizes, layer, lambda x, y: F.cross_entropy(layer(x) @ matrix, y))

    def plain() -> Callable[[], object]:
        layer = sizes.linear(sizes.classes)
        return _training(sizes, layer, lambda x, y: F.cross_entropy(layer(x), y))

    return [
        Form(MAXSEP, 2 * sizes.weights + 5 * sizes.logits, ours),
        Form(FUSED, 2 * sizes.weights, fused),
        Form(DENSE, MATRIX * sizes.matrix + 2 * sizes.weights + 5 * sizes.logits, dense),
        Form(PLAIN, 2 * sizes.weights + 4 * sizes.logits, plain),
    ]


OPERATIONS: dict[str, Callable[[Sizes], list[Form]]] = {
    "construction": _construction,
    "product": _product,
    "head": _head,
}
"""The last form of each is the plain nn.Linear that the others are divided by."""
