"""Augmentation as one compiled program: what is drawn stays as it is, what is computed from it is fused."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Drawing(Protocol):
    """An augmentation whose random part and whose work can be called apart, as all of `maxsep.lab.data` can."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Draw and apply."""

    def draw(self, images: Tensor, generator: torch.Generator) -> Any:
        """Draw the parameters of a batch."""

    def apply(self, images: Tensor, draw: Any, /) -> Tensor:
        """Apply drawn parameters."""


class CompiledAugmentation:
    """Run an augmentation of hundreds of small operations as a few kernels.

    A small network's step is made of one to four hundred kernels, and an operation on images of some sixty more.
    The random numbers are those of the ordinary call, in the same order, and the pixels are the same: the program may
    not contract products and sums, which would round some bytes otherwise.

    Args:
        augment: The ordinary augmentation.
        batch_size: Smaller batches, of which an epoch has one, run the ordinary way: a program of their own would take
            longer than it saves.
        backend: Of torch.compile.
    """

    def __init__(self, augment: Drawing, batch_size: int, backend: str = "inductor") -> None:
        self.augment = augment
        self.batch_size = batch_size
        exact: dict[str, Any] | None = {"emulate_precision_casts": True} if backend == "inductor" else None
        self._apply = torch.compile(augment.apply, dynamic=False, fullgraph=True, backend=backend, options=exact)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment uint8 images (B, C, H, W) with random numbers from a generator on the same device."""
        if len(images) < self.batch_size:
            return self.augment(images, generator)
        result: Tensor = self._apply(images, self.augment.draw(images, generator))
        return result
