"""Collective calls of torch.distributed inside autograd: what is summed, averaged or gathered, forward and backward."""

from typing import Any

import torch
from torch import Tensor, distributed

Group = Any  # a process group of torch.distributed, or None for the default one


class _SumGradients(torch.autograd.Function):
    """x, the same on all ranks, unchanged; its gradients, a part from each rank, are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)  # autograd may share what it passes
        distributed.all_reduce(total, group=ctx.group)
        return total, None


class _MeanGradients(_SumGradients):
    """Rows of a weight, the same on all ranks of a group, unchanged; their gradients are averaged."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _SumGradients.backward(ctx, gradient)[0] / distributed.get_world_size(ctx.group), None


class _GatherSamples(torch.autograd.Function):
    """The samples of all ranks; gradients are summed, cut again and multiplied by the ranks, whose mean DDP takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return all_gather(x, group).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ranks = distributed.get_world_size(ctx.group)
        part = gradient.new_empty(gradient.shape[0] // ranks, *gradient.shape[1:])
        call = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
        call(part.view(-1), gradient.contiguous().view(-1), group=ctx.group)
        return part * ranks, None


class _OwnSamples(torch.autograd.Function):
    """This rank's part of the samples; gradients are gathered and averaged, as those of losses under DDP are."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return values.chunk(distributed.get_world_size(group))[distributed.get_rank(group)].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return all_gather(gradient, ctx.group).flatten(0, 1) / distributed.get_world_size(ctx.group), None


sum_gradients: Any = _SumGradients.apply
mean_gradients: Any = _MeanGradients.apply
gather_samples: Any = _GatherSamples.apply
own_samples: Any = _OwnSamples.apply


def all_gather(tensor: Tensor, group: Group) -> Tensor:
    """Stack the equally shaped tensors of all ranks in their order: one collective call."""
    ranks = distributed.get_world_size(group)
    out = tensor.new_empty(ranks * tensor.numel())
    # torch 2.13 renamed the call and deprecated the old name
    call = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    call(out, tensor.contiguous().view(-1), group=group)
    return out.view(ranks, *tensor.shape)
