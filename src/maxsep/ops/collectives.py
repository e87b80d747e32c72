"""What ranks tell each other, as steps of a differentiable computation, and nothing else is sent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

Group = Any
"""A process group of torch.distributed, or None for the one of all processes."""


def gathered(tensor: Tensor, group: Group = None) -> Tensor:
    """Return the equally shaped tensors of all ranks, stacked in the order of ranks: one collective call.

    Ranks do not tell each other their shapes, which would be one call more. Where shapes differ, gloo ends the process
    with the smaller one and fails on others, who are told here what may be the matter; NCCL says nothing.
    """
    ranks = distributed.get_world_size(group)
    out = tensor.new_empty(ranks * tensor.numel())
    # torch 2.13 renamed the call and deprecated the old name
    call = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    try:
        call(out, tensor.contiguous().view(-1), group=group)
    except RuntimeError as error:
        raise RuntimeError(
            f"rank {distributed.get_rank(group)} of {ranks} could not gather tensors of shape {tuple(tensor.shape)}: "
            f"{error}\nEvery rank must pass as many samples as the others: drop an incomplete last batch "
            "(drop_last=True), or fill it with samples whose target is ignore_index; ClassParallelHead(validate=True) "
            "tells all ranks which had others. If they did, see why another rank ended."
        ) from error
    return out.view(ranks, *tensor.shape)


def scattered_sum(tensor: Tensor, group: Group = None) -> Tensor:
    """Return this rank's part of the sum over ranks, cut along the first dimension: one collective call."""
    ranks = distributed.get_world_size(group)
    out = tensor.new_empty(tensor.shape[0] // ranks, *tensor.shape[1:])
    call = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
    call(out.view(-1), tensor.contiguous().view(-1), group=group)
    return out


class Replicate(torch.autograd.Function):
    """x, the same on all ranks, goes on unchanged; the gradients, each rank's own part, are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        """Return x."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the sum of the gradients over ranks."""
        total = gradient.clone(memory_format=torch.contiguous_format)  # others may hold what we were given
        distributed.all_reduce(total, group=ctx.group)
        return total, None


class GatherSamples(torch.autograd.Function):
    """Each rank's part of a batch becomes the whole batch; gradients are summed and cut into the parts again.

    They are multiplied by the number of ranks: DDP takes the mean over ranks of what flows on to the network.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        """Return the samples of all ranks, in the order of ranks."""
        ctx.group = group
        return gathered(x, group).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of this rank's samples."""
        return scattered_sum(gradient, ctx.group) * distributed.get_world_size(ctx.group), None


class OwnSamples(torch.autograd.Function):
    """The whole batch becomes this rank's part again; all ranks learn the gradient of each other's part.

    It is divided by the number of ranks: what is minimised is the mean of the losses of all ranks, as under DDP.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group) -> Tensor:
        """Return this rank's part of values."""
        ctx.group = group
        return values.chunk(distributed.get_world_size(group))[distributed.get_rank(group)].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradients of all ranks' samples."""
        return gathered(gradient, ctx.group).flatten(0, 1) / distributed.get_world_size(ctx.group), None
