"""F.linear to C-1 outputs in the shapes that a GPU wants.

C-1 is hardly ever round. Kernels then cannot load wide words, for which rows have to start at multiples of 16 bytes,
and the fast products of tensor cores want sizes, not strides alone, that are multiples of 16 bytes. So where tensor
cores multiply, the weight is copied in front of zeros, up to a multiple of 8 rows, and the outputs get columns that
mean nothing: what reads them is told how many there are, and gives them a gradient of zero. Where they do not, or the
copy would be large, only the rows of the outputs get a rounded-up length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.ops.modes import is_autocasting, is_transformed
from maxsep.ops.triton_scan import padded_empty, takes

UNIT = 8
"""Outputs are padded to a multiple of this: 16 bytes of a 16-bit type."""
COPIED_BYTES = 64 << 20
"""The largest weight that is copied for the sake of its shape alone; one that autocast converts is copied anyway."""


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return F.linear(x, weight, bias), followed by up to 7 columns of padding if tensor cores make it.

    x is (..., D), weight (k, D); the last dimension of the result less k is the padding. In any case the rows of the
    result start at multiples of 16 bytes.

    >>> padded_linear(torch.zeros(2, 4), torch.zeros(9, 4), None).stride()
    (12, 1)
    """
    dtype = torch.get_autocast_dtype(x.device.type) if is_autocasting(x.device.type) else None
    x = x if dtype is None else x.to(dtype)
    if _is_padded(x, weight):
        weight, bias = padded_op(weight, dtype), None if bias is None else padded_op(bias, dtype)
    elif dtype is not None:
        weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    if weight.shape[0] * x.element_size() % 16 == 0:
        return F.linear(x, weight, bias)
    result: Tensor = linear_op(x, weight, bias)
    return result


def _is_padded(x: Tensor, weight: Tensor) -> bool:
    if weight.shape[0] * x.element_size() % 16 == 0 or not (takes(x) and takes(weight)) or is_transformed():
        return False
    copied_anyway = weight.dtype != x.dtype
    small = weight.numel() * x.element_size() <= COPIED_BYTES
    return (x.element_size() == 2 or _allows_tf32()) and (copied_anyway or small)


def _allows_tf32() -> bool:
    # The older allow_tf32 warns where it is true, and fails where the settings below it were used.
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


# What torch.compiler.assume_constant_result does, without importing the compiler: it cannot trace the question.
_allows_tf32._dynamo_marked_constant = True  # type: ignore[attr-defined]


@torch.library.custom_op("maxsep::padded", mutates_args=())
def padded_op(values: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return values (k, ...) in a dtype, their own if None, followed by zeros up to a multiple of 8 rows."""
    out, k = _padded_like(values, dtype), values.shape[0]
    out[:k].copy_(values)
    out[k:].zero_()
    return out


def _padded_like(values: Tensor, dtype: torch.dtype | None) -> Tensor:
    k, *rest = values.shape
    return values.new_empty((k + UNIT - 1) // UNIT * UNIT, *rest, dtype=dtype or values.dtype)


def _remember_values(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.k, ctx.dtype = inputs[0].shape[0], inputs[0].dtype


def _padded_backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
    return g[: ctx.k].to(ctx.dtype), None


@torch.library.custom_op("maxsep::padded_linear", mutates_args=())
def linear_op(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Write the product into rows of the padded length."""
    out = _linear_like(x, weight, bias)
    rows, outputs = x.reshape(-1, x.shape[-1]), out.view(-1, out.shape[-1])
    if bias is None:
        torch.mm(rows, weight.T, out=outputs)
    else:
        torch.addmm(bias, rows, weight.T, out=outputs)
    return out


def _linear_like(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return padded_empty(x, (*x.shape[:-1], weight.shape[0]), x.dtype)


def _remember_factors(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _linear_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    return linear_gradients(g, x, weight, ctx.needs_input_grad)


padded_op.register_fake(_padded_like)
padded_op.register_autograd(_padded_backward, setup_context=_remember_values)
linear_op.register_fake(_linear_like)
linear_op.register_autograd(_linear_backward, setup_context=_remember_factors)


def linear_gradients(g: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """Return the gradients of F.linear with respect to x, weight and bias, those that are wanted.

    >>> [g.tolist() for g in linear_gradients(torch.ones(1, 1), torch.eye(2)[:1], torch.ones(1, 2), (True,) * 3)]
    [[[1.0, 1.0]], [[1.0, 0.0]], [1.0]]
    """
    rows = g.flatten(0, -2) if g.dim() > 1 else g[None]
    return (
        g @ weight if wanted[0] else None,
        rows.T @ x.reshape(-1, x.shape[-1]) if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    )
