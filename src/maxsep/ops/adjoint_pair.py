"""A product with a matrix along the last dimension and that with its transpose as torch operators of kernels.

Each is the other's gradient, so both are differentiable any number of times; compilers keep them whole, and eager code
takes the short way (`eager`). The C-1 outputs that go in, and their gradient, may have padding behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maxsep.ops.eager import with_derivative


class AdjointPair(NamedTuple):
    """The operators, and the functions that call them or take the short way; all with (x, radius, dtype, padding)."""

    op: Any
    adjoint_op: Any
    rows: Callable[..., Tensor]
    adjoint_rows: Callable[..., Tensor]


def adjoint_pair(name: str, launch: Callable[[Tensor, Tensor, int, float, bool], None]) -> AdjointPair:
    """Make the operators `maxsep::name` and `maxsep::name_adjoint` and their derivatives.

    Args:
        name: Of the first; x (..., C-1 + padding) to (..., C).
        launch: Called with input, uninitialised output, k = C-1, the radius, and whether the adjoint is wanted.
    """

    def forward(x: Tensor, radius: float, dtype: torch.dtype, padding: int = 0) -> Tensor:
        out = separate_like(x, radius, dtype, padding)
        if out.numel():
            launch(x, out, out.shape[-1] - 1, radius, False)
        return out

    def adjoint(g: Tensor, radius: float, dtype: torch.dtype, padding: int = 0) -> Tensor:
        out = adjoint_like(g, radius, dtype, padding)
        if out.numel():
            launch(g, out, g.shape[-1] - 1, radius, True)
        return out

    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return pair.adjoint_rows(g, ctx.radius, ctx.dtype, ctx.padding), None, None, None

    def adjoint_backward(ctx: Any, x: Tensor) -> tuple[Tensor | None, ...]:
        return pair.rows(x, ctx.radius, ctx.dtype, ctx.padding), None, None, None

    op = _operator(name, forward, separate_like)
    adjoint_op = _operator(f"{name}_adjoint", adjoint, adjoint_like)
    rows = with_derivative(op, forward, backward, _remember)
    pair = AdjointPair(op, adjoint_op, rows, with_derivative(adjoint_op, adjoint, adjoint_backward, _remember))
    return pair


def separate_like(x: Tensor, radius: float, dtype: torch.dtype, padding: int = 0) -> Tensor:
    """Return an uninitialised result for x (..., C-1 + padding), laid out as x is.

    >>> separate_like(torch.empty(2, 8), 1.0, torch.float32, 3).shape
    torch.Size([2, 6])
    """
    num_classes = x.shape[-1] - padding + 1
    if _is_column_major(x):
        return x.new_empty_strided((x.shape[0], num_classes), (1, x.shape[0]), dtype=dtype)
    return x.new_empty(*x.shape[:-1], num_classes, dtype=dtype)


def adjoint_like(g: Tensor, radius: float, dtype: torch.dtype, padding: int = 0) -> Tensor:
    """Return an uninitialised gradient for g (..., C), with rows that start at multiples of 16 bytes.

    >>> adjoint_like(torch.empty(2, 6), 1.0, torch.float32, 3).shape
    torch.Size([2, 8])
    """
    width = g.shape[-1] - 1 + padding
    if _is_column_major(g):
        return g.new_empty_strided((g.shape[0], width), (1, g.shape[0]), dtype=dtype)
    return padded_empty(g, (*g.shape[:-1], width), dtype)


def padded_empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor whose rows start at multiples of 16 bytes, so that kernels may load wide words.

    >>> padded_empty(torch.empty(0), (2, 9), torch.float32).stride()
    (12, 1)
    """
    *leading, width = shape
    unit = 16 // dtype.itemsize
    length = (width + unit - 1) // unit * unit
    out = like.new_empty(*leading, length, dtype=dtype)
    return out if length == width else out[..., :width]


def _operator(name: str, implementation: Callable[..., Tensor], like: Callable[..., Tensor]) -> Any:
    implementation.__name__ = name  # also that of the autograd node
    op = torch.library.custom_op(f"maxsep::{name}", implementation, mutates_args=())

    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, *rest: Any) -> tuple[Tensor, int]:
        return op(x.movedim(in_dims[0] or 0, 0), *rest), 0

    op.register_fake(like)
    op.register_vmap(vmap)
    return op


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.radius, _, ctx.padding = inputs
    ctx.dtype = x.dtype


def _is_column_major(x: Tensor) -> bool:
    # A transposed weight: the result is wanted transposed as well, and as no view, so that it can be changed in place.
    return x.dim() == 2 and x.stride(0) == 1 and x.stride(1) > 1
