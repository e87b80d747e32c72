"""What a pass over the classes remembers of every sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class RowState:
    """Of the logits z seen so far, (parts, B) each: maximum, sum of exponentials, target logit and weighted sum.

    The parts are of classes: what several programs have seen is merged at the end.

    >>> RowState.empty(1, 2, torch.zeros(1), with_total=False).sum
    tensor([[0., 0.]])
    """

    most: Tensor
    sum: Tensor
    """Of exp(z - most)."""
    target: Tensor
    total: Tensor | None
    """sum_j w_j z_j, for label smoothing."""

    @classmethod
    def room(cls, parts: int, batch: int, like: Tensor, *, with_total: bool) -> RowState:
        """Return room for a state, in the dtype and on the device of `like`."""
        most, mass, target = (like.new_empty(parts, batch) for _ in range(3))  # each aligned, whatever the batch
        return cls(most, mass, target, torch.empty_like(most) if with_total else None)

    @classmethod
    def empty(cls, parts: int, batch: int, like: Tensor, *, with_total: bool) -> RowState:
        """Return the state before the first class, in the dtype and on the device of `like`."""
        zeros = like.new_zeros(3, parts, batch)
        return cls(like.new_full((parts, batch), -torch.inf), zeros[0], zeros[1], zeros[2] if with_total else None)

    def merged(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return log sum_j exp(z_j), the target logit and the weighted sum, (B,) each."""
        lse = (self.most + self.sum.log()).logsumexp(0)
        return lse, self.target.sum(0), None if self.total is None else self.total.sum(0)
