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

from maxsep.ops.adjoint_pair import padded_empty
from maxsep.ops.eager import with_derivative
from maxsep.ops.launching import launch
from maxsep.ops.modes import is_autocasting, is_transformed
from maxsep.ops.triton_scan import IS_INSTALLED, is_interpreting, on_device_of, takes

UNIT = 8
"""Outputs are padded to a multiple of this: 16 bytes of a 16-bit type."""
COPIED_BYTES = 64 << 20
"""The largest weight that is copied for the sake of its shape alone; one that autocast converts is copied anyway."""

BLOCK = 2048
"""Numbers that a program copies: 16 for every thread, which has all its loads under way at once."""


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return F.linear(x, weight, bias), followed by up to 7 columns of padding if tensor cores make it.

    x is (..., D), weight (k, D); the last dimension of the result less k is the padding. In any case the rows of the
    result start at multiples of 16 bytes.

    >>> padded_linear(torch.zeros(2, 4), torch.zeros(9, 4), None).stride()
    (12, 1)
    """
    dtype = product_dtype(x)
    x = x if dtype is None else x.to(dtype)
    if is_padded(x, weight):
        weight, padded_bias = padded_layer(weight, bias, dtype)
        bias = None if bias is None else padded_bias
    elif dtype is not None:
        weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    if weight.shape[0] * x.element_size() % 16 == 0:
        return F.linear(x, weight, bias)
    result: Tensor = linear_into_rows(x, weight, bias)
    return result


def product_dtype(x: Tensor) -> torch.dtype | None:
    """Return what autocast converts the factors of a product to, None if it is off.

    >>> product_dtype(torch.zeros(1)) is None
    True
    """
    return torch.get_autocast_dtype(x.device.type) if is_autocasting(x.device.type) else None


def is_padded(x: Tensor, weight: Tensor) -> bool:
    """Return whether tensor cores are to multiply x, in the precision of the product, with a weight that is padded."""
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


def padded(weight: Tensor, bias: Tensor | None, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Return weight (k, D) and bias (k,) in a dtype, their own if None, before zeros up to a multiple of 8 rows.

    Without a bias the second result is empty.
    """
    outputs = _padded_like(weight, bias, dtype)
    if _in_one_launch(weight, bias):
        _launch(weight, bias, *outputs)
        return outputs
    for values, out in zip((weight, bias), outputs, strict=True):
        if values is not None:
            out[: len(values)].copy_(values)
            out[len(values) :].zero_()
    return outputs


def _padded_like(weight: Tensor, bias: Tensor | None, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    k, width = weight.shape
    rows = (k + UNIT - 1) // UNIT * UNIT
    out = weight.new_empty(rows, width, dtype=dtype or weight.dtype)
    return out, out.new_empty(0) if bias is None else bias.new_empty(rows, dtype=dtype or bias.dtype)


def _in_one_launch(weight: Tensor, bias: Tensor | None) -> bool:
    if not (weight.is_contiguous() and (bias is None or bias.is_contiguous()) and weight.numel()):
        return False
    return takes(weight) or (IS_INSTALLED and is_interpreting() and weight.dtype != torch.float64)


def _launch(weight: Tensor, bias: Tensor | None, weight_out: Tensor, bias_out: Tensor) -> None:
    from maxsep.ops.kernels import padding as kernels

    out_size = weight_out.numel()
    blocks = -(-out_size // BLOCK)
    programs = blocks if bias is None else blocks - (-bias_out.shape[0] // BLOCK)
    with on_device_of(weight):
        launch(
            kernels.pad, (programs,), (weight, bias, weight_out, bias_out),
            (weight.numel(), out_size, weight.shape[0], bias_out.shape[0], blocks),
            HAS_BIAS=bias is not None, BLOCK=BLOCK,
        )  # fmt: skip


def _remember_layer(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    weight, bias, _ = inputs
    ctx.k, ctx.dtypes = weight.shape[0], (weight.dtype, None if bias is None else bias.dtype)
    ctx.set_materialize_grads(False)


def _padded_backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    found = (
        None if g is None or dtype is None else g[: ctx.k].to(dtype)
        for g, dtype in zip(gradients, ctx.dtypes, strict=True)
    )
    return *found, None


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
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


padded_op = torch.library.custom_op("maxsep::padded", padded, mutates_args=())
padded_op.register_fake(_padded_like)
padded_layer = with_derivative(padded_op, padded, _padded_backward, _remember_layer)
linear_op = torch.library.custom_op("maxsep::padded_linear", _linear, mutates_args=())
linear_op.register_fake(_linear_like)
linear_into_rows = with_derivative(linear_op, _linear, _linear_backward, _remember_factors)


def linear_gradients(g: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """Return the gradients of F.linear with respect to x, weight and bias, those that are wanted.

    >>> [g.tolist() for g in linear_gradients(torch.ones(1, 1), torch.eye(2)[:1], torch.ones(1, 2), (True,) * 3)]
    [[[1.0, 1.0]], [[1.0, 0.0]], [1.0]]
    """
    rows, samples = (v if v.dim() == 2 else v.reshape(-1, v.shape[-1]) for v in (g, x))
    return (
        g @ weight if wanted[0] else None,
        rows.T @ samples if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    )
