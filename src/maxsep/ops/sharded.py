r"""radius * P^T z and its cross-entropy with the classes spread over ranks: one exchange of three numbers per sample.

Rank q owns the classes start..stop-1 and the rows of z that belong to them; the last class has no row. A scan of its
own rows gives its logits up to a constant and one number beyond them,

    o_j = s_j z_j - sum_{start<=i<j} r_i z_i,    t_q = - sum_{start<=i<stop} r_i z_i

(s and r carry the radius), and what the ranks before it have summed only shifts them: logit_j = o_j + carry_q with
carry_q = sum_{p<q} t_p. So (t_q, logsumexp of its o, o of the target) from every rank give all ranks the loss, and
with it the probability of each rank's classes. The gradient of z needs the sum of the logits' gradients over all later
classes; over those of later ranks it follows from these probabilities, so the backward pass exchanges nothing.

With class weights w and label smoothing e a sample's loss is (1-e) w_y (lse - o_y) + e/C (sum w lse - sum_j w_j o_j).
All logits sum to zero, so the last sum is needed with weights only: a fourth number, where both are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from maxsep.ops.cache import cached_coefficients
from maxsep.ops.collectives import Group, gathered
from maxsep.ops.dispatch import widened
from maxsep.ops.scan import _adjoint, _forward

__all__ = ["Shard", "sharded_cross_entropy", "sharded_logits", "sharded_topk"]


@dataclass(frozen=True)
class Shard:
    """Which classes a rank owns: shares of equal size, up to one class, in the order of ranks.

    >>> shard = Shard(num_classes=10, rank=1, ranks=3)
    >>> shard.start, shard.stop, Shard(10, 2, 3).rows  # the last class has no row
    (3, 6, (6, 9))
    """

    num_classes: int
    rank: int
    ranks: int

    @property
    def start(self) -> int:
        """The first class of this rank."""
        return self.rank * self.num_classes // self.ranks

    @property
    def stop(self) -> int:
        """One beyond the last class of this rank; it may own none."""
        return (self.rank + 1) * self.num_classes // self.ranks

    @property
    def num_columns(self) -> int:
        """How many classes, and so logits, it owns."""
        return self.stop - self.start

    @property
    def rows(self) -> tuple[int, int]:
        """The rows of the trained layer that it owns: start and stop."""
        return self.start, min(self.stop, self.num_classes - 1)

    def others(self) -> list[Shard]:
        """Return the shards of all ranks, this one's among them, in their order."""
        return [Shard(self.num_classes, rank, self.ranks) for rank in range(self.ranks)]

    def owner(self, target: Tensor) -> Tensor:
        """Return the rank of each class: the largest q with q C <= (target + 1) ranks - 1.

        >>> Shard(10, 0, 3).owner(torch.tensor([0, 2, 3, 9]))
        tensor([0, 0, 1, 2])
        """
        return ((target + 1) * self.ranks - 1).div(self.num_classes, rounding_mode="floor")

    def scaled_coefficients(self, radius: float, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return s and r of the rows of this rank, times the radius."""
        s, r = cached_coefficients(self.num_classes, like.dtype, like.device, self.rows)
        return s * radius, r * radius


def sharded_cross_entropy(
    z: Tensor,
    target: Tensor,
    shard: Shard,
    radius: float,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    group: Group = None,
) -> Tensor:
    """Return the cross-entropy of every sample, (B,) and the same on all ranks, in float32 or float64.

    One all-gather of three numbers per sample and rank in the forward pass (four with class weights and smoothing),
    nothing in the backward pass, where every rank must start from the same gradient.

    Args:
        z: (B, rows of this rank), the outputs of this rank's part of the layer, for the same samples on all ranks.
        target: (B,), class indices from 0 to C-1.
        shard: Which classes this rank owns.
        radius: Length of the class vectors.
        label_smoothing: In [0, 1].
        weight: Of all classes, (C,), the same on all ranks, in the precision of the result; a constant.
        group: The ranks that share the classes.
    """
    wide = widened(z)
    s, r = shard.scaled_coefficients(radius, wide)
    values: Tensor = _CrossEntropy.apply(wide, target, s, r, shard, label_smoothing, weight, group)  # type: ignore[no-untyped-call]
    return values


def sharded_logits(z: Tensor, shard: Shard, radius: float, group: Group = None) -> Tensor:
    """Return all logits, (B, C), on every rank, from each rank's (B, rows): one all-gather of all of them."""
    wide = widened(z)
    s, r = shard.scaled_coefficients(radius, wide)
    logits: Tensor = _Logits.apply(wide, s, r, shard, group)  # type: ignore[no-untyped-call]
    return logits


@torch.no_grad()
def sharded_topk(z: Tensor, k: int, shard: Shard, radius: float, group: Group = None) -> tuple[Tensor, Tensor]:
    """Return the k largest logits, (B, k), and their classes on every rank: one all-gather of 2k+1 numbers a sample.

    They travel as float64, which holds both a float32 and any class index exactly.
    """
    wide = widened(z)
    local = _forward(wide, *shard.scaled_coefficients(radius, wide))
    own = min(k, shard.num_columns)
    values, columns = local[:, : shard.num_columns].topk(own, dim=1)
    sent = local.new_full((len(local), 2 * k + 1), -torch.inf, dtype=torch.float64)
    sent[:, 0] = local[:, -1]
    sent[:, 1 : own + 1] = values
    sent[:, k + 1 : k + own + 1] = columns + shard.start
    told = gathered(sent, group)
    best = told[:, :, 1 : k + 1] + _carries(told[:, :, 0])[:, :, None]
    best, places = best.movedim(0, 1).flatten(1).topk(k, dim=1)
    classes = told[:, :, k + 1 :].movedim(0, 1).flatten(1).gather(1, places)
    return best.to(wide.dtype), classes.long()


def _carries(sums: Tensor) -> Tensor:
    """Return what the ranks before each rank have summed; sums (ranks, B)."""
    return torch.cat([torch.zeros_like(sums[:1]), sums[:-1].cumsum(0)])


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        target: Tensor,
        s: Tensor,
        r: Tensor,
        shard: Shard,
        smoothing: float,
        weight: Tensor | None,
        group: Group,
    ) -> Tensor:
        local = _forward(z, s, r)  # (B, rows + 1)
        told = gathered(_summary(local, target, shard, weight if smoothing else None), group)  # (ranks, 3 or 4, B)
        carries = _carries(told[:, 0])
        masses = told[:, 1] + carries
        total = masses.logsumexp(0)
        chosen = (told[:, 2] + carries).gather(0, shard.owner(target)[None])[0]
        later = (masses[shard.rank + 1 :] - total).exp().sum(0)
        hit = (1 - smoothing) * (torch.ones_like(total) if weight is None else weight[target])
        ctx.save_for_backward(local, target, s, r, carries[shard.rank] - total, later, hit, weight)
        ctx.shard, ctx.each = shard, smoothing / shard.num_classes
        values: Tensor = hit * (total - chosen)
        if not smoothing:
            return values
        if weight is None:
            return values + smoothing * total
        sums = torch.stack([weight[other.start : other.stop].sum() for other in shard.others()])
        weighted = weight.sum() * total - (told[:, 3] + carries * sums[:, None]).sum(0)
        return values + weighted * (smoothing / shard.num_classes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        local, target, s, r, shift, later, hit, weight = ctx.saved_tensors
        shard, each = ctx.shard, ctx.each
        own, after, every = 1.0, shard.num_classes - shard.stop, shard.num_classes
        if weight is not None:
            own, after, every = weight[shard.start : shard.stop], weight[shard.stop :].sum(), weight.sum()
        mass = hit + each * every  # what the softmax is multiplied with
        g = (local + shift[:, None]).exp_().mul_(mass[:, None])
        if shard.num_columns:
            g[:, : shard.num_columns] -= each * own
            inside, column = _own_column(target, shard)
            g.scatter_add_(1, column, -(hit * inside)[:, None])
        if shard.stop < shard.num_classes:  # in place of a last class of our own: the sum over all later ranks'
            g[:, -1] = mass * later - hit * (target >= shard.stop) - each * after
        return _adjoint(g.mul_(gradient[:, None]), s, r), *[None] * 7


def _summary(local: Tensor, target: Tensor, shard: Shard, weight: Tensor | None) -> Tensor:
    """Return (3, B): the sum that later ranks need, the log of the sum of exponentials, the target's logit or 0.

    With weights (4, B): also the weighted sum of the logits.
    """
    own, zeros = local[:, : shard.num_columns], torch.zeros_like(local[:, -1])
    told = [local[:, -1], torch.full_like(zeros, -torch.inf), zeros]
    if shard.num_columns:
        inside, column = _own_column(target, shard)
        told[1:] = own.logsumexp(1), torch.where(inside, own.gather(1, column)[:, 0], 0.0)
    return torch.stack(told if weight is None else [*told, own @ weight[shard.start : shard.stop]])


def _own_column(target: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """Return whether each target is a class of this rank, (B,), and its column, (B, 1); any column if not."""
    inside = (target >= shard.start) & (target < shard.stop)
    return inside, (target - shard.start).clamp(0, shard.num_columns - 1)[:, None]


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, s: Tensor, r: Tensor, shard: Shard, group: Group) -> Tensor:
        local = _forward(z, s, r)
        ctx.save_for_backward(s, r)
        ctx.shard = shard
        widest = max(other.num_columns for other in shard.others())
        sent = local.new_zeros(len(local), widest + 1)  # equal shapes, as the collective wants
        sent[:, 0] = local[:, -1]
        sent[:, 1 : shard.num_columns + 1] = local[:, : shard.num_columns]
        told = gathered(sent, group)
        shifted = told[:, :, 1:] + _carries(told[:, :, 0])[:, :, None]
        return torch.cat([shifted[other.rank, :, : other.num_columns] for other in shard.others()], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        start, stop = ctx.shard.rows
        later = gradient[:, stop:].sum(1, keepdim=True)
        return _adjoint(torch.cat([gradient[:, start:stop], later], 1), *ctx.saved_tensors), *[None] * 4
