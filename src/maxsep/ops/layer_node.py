"""A layer with padded outputs and what follows it, as one node of the autograd graph.

In eager mode every node that is written in Python costs the host about as much as a launch. So where a layer is padded
and derivatives are wanted, padding, product and the map behind them share a node. Its second derivatives, and all calls
that a compiler or a transform looks at, take the functions that it is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.ops import padding
from maxsep.ops.modes import is_traced, is_watched


class Step(NamedTuple):
    """A map of padded outputs z: as one differentiable function, and as the two halves of its derivative.

    function(z, padding, *arguments) -> result
    forward(z, padding, *arguments) -> result, what the backward half wants to have kept
    backward(g, kept, dtype of z, padding, *arguments) -> gradient of z
    """

    function: Callable[..., Tensor]
    forward: Callable[..., tuple[Tensor, tuple[Tensor | None, ...]]]
    backward: Callable[..., Tensor]


def linear_then(step: Step, x: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
    """Return what a step makes of `padded_linear(x, weight, bias)`.

    >>> double = Step(lambda z, padding: 2 * z, lambda z, padding: (2 * z, ()), lambda g, *_: 2 * g)
    >>> linear_then(double, torch.ones(1, 2), torch.ones(1, 2), None)
    tensor([[4.]])
    """
    dtype = padding.product_dtype(x)
    x = x if dtype is None else x.to(dtype)
    if is_traced() or not torch.is_grad_enabled() or not _is_one_node(x, weight, bias, arguments):
        z = padding.padded_linear(x, weight, bias)
        return step.function(z, z.shape[-1] - weight.shape[0], *arguments)
    result: Tensor = _Node.apply(x, weight, bias, dtype, step, arguments)  # type: ignore[no-untyped-call]
    return result


def _is_one_node(x: Tensor, weight: Tensor, bias: Tensor | None, arguments: tuple[Any, ...]) -> bool:
    wanted = x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    tensors = [value for value in (x, weight, bias, *arguments) if isinstance(value, Tensor)]
    return wanted and not is_watched(tensors) and padding.is_padded(x, weight)


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype | None, step: Step, arguments: Any
    ) -> Tensor:
        wide, wide_bias = padding.padded(weight, bias, dtype)
        z = F.linear(x, wide, None if bias is None else wide_bias)
        result, kept = step.forward(z, z.shape[-1] - weight.shape[0], *arguments)
        ctx.save_for_backward(x, weight, bias, wide, *kept)
        ctx.dtype, ctx.step, ctx.arguments = dtype, step, arguments
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, wide, *kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_differentiable_gradients(ctx, g, x, weight, bias), None, None, None
        k = weight.shape[0]
        gz = ctx.step.backward(g, kept, x.dtype, wide.shape[0] - k, *ctx.arguments)
        gx, gw, gb = padding.linear_gradients(gz, x, wide, ctx.needs_input_grad)
        gw = None if gw is None else gw[:k].to(weight.dtype)
        return gx, gw, None if gb is None else gb[:k].to(bias.dtype), None, None, None


def _differentiable_gradients(
    ctx: Any, g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> list[Tensor | None]:
    wide, wide_bias = padding.padded_layer(weight, bias, ctx.dtype)
    z = F.linear(x, wide, None if bias is None else wide_bias)
    result = ctx.step.function(z, wide.shape[0] - weight.shape[0], *ctx.arguments)
    # asked anew: a layer may have been frozen since its forward pass
    sources = [tensor for tensor in (x, weight, bias) if tensor is not None and tensor.requires_grad]
    found = iter(torch.autograd.grad(result, sources, g, create_graph=True))
    return [next(found) if tensor is not None and tensor.requires_grad else None for tensor in (x, weight, bias)]
