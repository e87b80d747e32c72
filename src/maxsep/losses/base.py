"""What every loss here is: exact constants per class, a value per sample, and their mean or sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from maxsep.checks import Reduction, check_reduction
from maxsep.losses.checks import IGNORED, check_batch, check_class_counts

__all__ = ["ClassCountLoss", "ClassLoss"]


class ClassLoss(nn.Module):
    """A loss of a batch of class indices, with constants that no cast, move or copy can change.

    The constants are buffers in full precision, so `.to(device)` takes them along, but `.half()` does not round them
    and `.to_empty()` does not lose them. They are no part of the state dict: the arguments of the loss give them.
    A loss that was not moved works too; it copies its constants to the device of the logits at every call.

    What holds for every subclass:

    - Half-precision input is computed in float32, and the loss is float32: its value does not fit in half precision.
    - `reduction` is torch's: "mean" (weighted, if classes have weights), "sum", or "none" for a loss of every sample.
    - A label of -100 leaves its sample out; a batch with no other labels has loss 0 and gradient 0.
    - A label that is no class raises in CPU tensors. On other devices, and in compiled code, the loss is then NaN: the
      check would make the host wait for the device, and no check would end in a device assertion.

    A subclass sets `num_classes` and `width`, registers constants with `_keep` and defines `_values`.
    """

    num_classes: int
    width: int
    """Columns of the input: the number of classes, for a loss of logits."""
    _input = "logits"
    _meaning = "one column for every class of class_counts"

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction = check_reduction(reduction)
        self._exact: dict[str, Tensor] = {}

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits (B, C) and class indices (B,): a scalar, or (B,) without reduction."""
        check_batch(logits, target, self.width, self.num_classes, self._meaning, self._input, self.reduction == "mean")
        x = logits.to(_wide(logits.dtype))
        is_class = (target >= 0) & (target < self.num_classes)
        index = torch.where(is_class, target, 0)
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        weight = torch.where(is_class, self._weights(x, index), zero)
        values = torch.where(is_class, self._values(x, index), torch.where(target == IGNORED, zero, torch.nan))
        if self.reduction == "none":
            return weight * values
        summed = (weight * values).sum()
        if self.reduction == "sum":
            return summed
        total = weight.sum()
        return summed / torch.where(total > 0, total, 1)

    def _values(self, x: Tensor, index: Tensor) -> Tensor:
        """Return the loss of every sample, (B,), in the dtype of x."""
        raise NotImplementedError(f"{type(self).__name__} must define _values().")

    def _weights(self, x: Tensor, index: Tensor) -> Tensor:
        """Return how much every sample counts in the mean, (B,) or a scalar, in the dtype of x."""
        return torch.ones((), dtype=x.dtype, device=x.device)

    def _keep(self, name: str, value: Tensor) -> None:
        """Make a CPU tensor a constant of this loss, or replace it: in place, so that a captured graph sees it."""
        self._exact[name] = value
        if name in self._buffers:
            with torch.no_grad():
                self.get_buffer(name).copy_(value)
        else:
            self.register_buffer(name, _placed(value, torch.empty(0).device), persistent=False)

    def _constant(self, name: str, like: Tensor) -> Tensor:
        """Return a constant on the device and in the dtype of `like`."""
        constant: Tensor = getattr(self, name)
        return constant.to(device=like.device, dtype=like.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `fn` may cast or empty what it moves: ask it only for the device, and place the exact values there.
        moved = {}
        for name, exact in self._exact.items():
            old = self._buffers.pop(name)
            assert old is not None
            device = fn(torch.empty(0, device=old.device)).device
            moved[name] = old if device == old.device else _placed(exact, device)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's is not annotated
        self._buffers.update(moved)
        return self


class ClassCountLoss(ClassLoss):
    """A loss of logits whose constants follow from the number of training samples of every class."""

    def __init__(self, class_counts: object, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.class_counts = check_class_counts(class_counts)
        self.num_classes = self.width = len(self.class_counts)

    def extra_repr(self) -> str:
        """Say the number of classes, and the reduction if it is not the mean."""
        return f"num_classes={self.num_classes}" + ("" if self.reduction == "mean" else f", reduction={self.reduction}")


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _placed(exact: Tensor, device: torch.device) -> Tensor:
    # Apple's GPUs know no float64
    return exact.to(device=device, dtype=torch.float32 if device.type == "mps" else exact.dtype)
