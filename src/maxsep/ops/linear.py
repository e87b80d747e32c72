"""x -> radius * P^T (W x + b): the trained layer and the matrix together, in one buffer where that pays.

A CPU hands the memory of large tensors back as soon as they are freed and has to clear it anew for the next one, which
costs more than the arithmetic of the scan. So for a large batch the layer writes its C-1 outputs to where the logits
will be, and the running sum is made in place, block by block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.ops.dispatch import separate
from maxsep.ops.scan import BLOCK, _Adjoint, scaled_coefficients


def separate_linear(x: Tensor, weight: Tensor, bias: Tensor | None, radius: float) -> Tensor:
    """Apply a linear layer to C-1 outputs and then the matrix; x (..., D), weight (C-1, D), result (..., C).

    >>> x, weight = torch.randn(2, 4), torch.randn(2, 4)
    >>> torch.allclose(separate_linear(x, weight, None, 0.5), separate(x @ weight.T, 0.5))
    True
    """
    if _in_one_buffer(x, weight, bias):
        s, r = scaled_coefficients(weight.shape[0] + 1, radius, x)
        result: Tensor = _SeparateLinear.apply(x, weight, bias, s, r)  # type: ignore[no-untyped-call]
        return result
    return separate(F.linear(x, weight, bias), radius)


def _in_one_buffer(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if torch.compiler.is_compiling() or not all(type(t) in _PLAIN for t in (x, weight, bias) if t is not None):
        return False
    large = x.numel() // x.shape[-1] * weight.shape[0] > BLOCK if x.numel() else False
    same = x.dtype == weight.dtype and x.dtype in (torch.float32, torch.float64)
    return large and same and x.device.type == weight.device.type == "cpu" and not _is_transformed()


_PLAIN = (Tensor, torch.nn.Parameter)


def _is_transformed() -> bool:
    # Autocast, forward-mode derivatives and functorch have rules of their own; the two single steps know them all.
    return (
        torch.is_autocast_enabled("cpu")
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


class _SeparateLinear(torch.autograd.Function):
    """Differentiable any number of times: the backward pass is made of differentiable operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, s: Tensor, r: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, s, r)
        rows = x.reshape(-1, x.shape[-1])
        out = x.new_empty(len(rows), len(weight) + 1)
        outputs = out[:, 1:]
        if bias is None:
            torch.mm(rows, weight.T, out=outputs)
        else:
            torch.addmm(bias, rows, weight.T, out=outputs)
        for part in torch.split(out, max(1, BLOCK // out.shape[1])):
            own = part[:, 1:] * s
            part[:, 1:].mul_(-r).cumsum_(-1)
            part[:, 0] = 0
            part[:, :-1] += own
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, s, r = ctx.saved_tensors
        z: Tensor = _Adjoint.apply(g, s, r)  # type: ignore[no-untyped-call]
        rows = z.flatten(0, -2) if z.dim() > 1 else z[None]
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        return (
            z @ weight if wants_x else None,
            rows.T @ x.reshape(-1, x.shape[-1]) if wants_weight else None,
            rows.sum(0) if wants_bias else None,
            None,
            None,
        )
