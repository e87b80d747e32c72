"""What a pass over the classes remembers of every sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class RowState:
    """Of the logits z seen so far, (B,) each: their maximum, sum of exponentials, target logit and weighted sum.

    >>> RowState.empty(2, torch.zeros(1), with_total=False).sum
    tensor([0., 0.])
    """

    most: Tensor
    sum: Tensor
    """Of exp(z - most)."""
    target: Tensor
    total: Tensor | None
    """sum_j w_j z_j, for label smoothing."""

    @classmethod
    def empty(cls, batch: int, like: Tensor, *, with_total: bool) -> RowState:
        """Return the state before the first class, in the dtype and on the device of `like`."""
        zeros = like.new_zeros(3, batch)
        return cls(like.new_full((batch,), -torch.inf), zeros[0], zeros[1], zeros[2] if with_total else None)

    def log_sum_exp(self) -> Tensor:
        """Return log sum_j exp(z_j)."""
        return self.most + self.sum.log()
