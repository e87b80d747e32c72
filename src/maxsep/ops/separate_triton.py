"""Triton operators for `separate` and its adjoint: any shape and strides, 16- and 32-bit, sums in float32.

Each is the other's gradient, so both are differentiable any number of times. Compilers and tracers see an operator,
`maxsep::separate`; eager calls avoid the dispatcher, whose host time would exceed the kernel's.
"""

import importlib.util
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maxsep.ops.launch import launch
from maxsep.ops.tracing import is_exporting, is_plain_eager, is_transformed

IS_INSTALLED = importlib.util.find_spec("triton") is not None
MAX_CLASSES = 2**30  # the kernel counts classes in 32 bits
HALF_OR_SINGLE = (torch.float32, torch.bfloat16, torch.float16)


def has_triton_kernel(x: Tensor) -> bool:
    """Return whether the kernel serves a tensor: 16 or 32 bits on CUDA, not exported."""
    is_served = IS_INSTALLED and x.is_cuda and x.dtype in HALF_OR_SINGLE and x.shape[-1] < MAX_CLASSES
    return is_served and not is_transformed() and not is_exporting()


def separate_triton(x: Tensor, radius: float, dtype: torch.dtype, is_adjoint: bool = False) -> Tensor:
    """Apply radius * P^T to x (..., C-1), or radius * P to x (..., C) if `is_adjoint`; the result is in `dtype`."""
    if torch.is_grad_enabled() and x.requires_grad:
        result: Tensor = _SeparateTriton.apply(x, radius, dtype, is_adjoint)  # type: ignore[no-untyped-call]
        return result
    return _forward(x, radius, dtype, is_adjoint)


def _forward(x: Tensor, radius: float, dtype: torch.dtype, is_adjoint: bool) -> Tensor:
    if is_plain_eager(x) and not torch._C._functorch.is_legacy_batchedtensor(x):
        return _launch(x, radius, dtype, is_adjoint)
    result: Tensor = _separate_op(x, radius, dtype, is_adjoint)
    return result


class _SeparateTriton(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, radius: float, dtype: torch.dtype, is_adjoint: bool) -> Tensor:
        ctx.radius, ctx.dtype, ctx.is_adjoint = radius, x.dtype, is_adjoint
        return _forward(x, radius, dtype, is_adjoint)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return separate_triton(g, ctx.radius, ctx.dtype, not ctx.is_adjoint), None, None, None


def _launch(x: Tensor, radius: float, dtype: torch.dtype, is_adjoint: bool) -> Tensor:
    out: Tensor = _empty_result(x, radius, dtype, is_adjoint)
    if not out.numel():
        return out
    from maxsep.ops.separate_kernel import partial_sums, separate_rows

    matrix = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    target = out if out.dim() == 2 else out.view(-1, out.shape[-1])
    k = min(x.shape[-1], out.shape[-1])
    scale = radius * math.sqrt((k + 1) / k)
    tile = choose_tile(len(matrix), k + 1, x.element_size(), matrix.stride(0) == 1 and matrix.stride(1) > 1)
    row_programs = -(-len(matrix) // tile.ROWS)
    splits, span = split_classes(row_programs, k + 1, tile)
    grid = (row_programs, splits)
    numbers = (len(matrix), k, scale, *matrix.stride(), *target.stride(), span, splits)
    constants = {"ADJOINT": is_adjoint, "ROWS": tile.ROWS, "BLOCK": tile.BLOCK, "num_warps": tile.num_warps}
    carries = matrix
    if splits > 1:
        carries = matrix.new_empty(len(matrix), splits + 1, dtype=torch.float32)
        launch(partial_sums, grid, x.device, matrix, carries, *numbers, **constants)
        carries = carries.cumsum(1)
    launch(separate_rows, grid, x.device, matrix, target, carries, *numbers, STAGES=tile.STAGES, **constants)
    return out


_separate_op = torch.library.custom_op("maxsep::separate", _launch, mutates_args=())


@_separate_op.register_fake
def _empty_result(x: Tensor, radius: float, dtype: torch.dtype, is_adjoint: bool) -> Tensor:
    """Return an uninitialised result, transposed if x is: a transposed weight is folded into a transposed one."""
    size = x.shape[-1] - 1 if is_adjoint else x.shape[-1] + 1
    if x.dim() == 2 and x.stride(0) == 1 and x.stride(1) > 1:
        return x.new_empty_strided((x.shape[0], size), (1, x.shape[0]), dtype=dtype)
    return x.new_empty(*x.shape[:-1], size, dtype=dtype)


class Tile(NamedTuple):
    """How much of the matrix a program holds at once: ROWS rows by BLOCK classes."""

    ROWS: int
    BLOCK: int
    num_warps: int
    STAGES: int
    programs: int  # that fill a GPU; with less than half as many rows, several programs share a row


def choose_tile(rows: int, num_classes: int, itemsize: int, transposed: bool) -> Tile:
    """Return the tile for a matrix; measured on an H200 by benchmarks/head_gpu.py."""
    if transposed:  # a thread then scans classes and neighbouring threads read neighbouring features
        return Tile(64, 32, 1, 3, 4096)
    block = min(1024, max(16, 1 << (num_classes - 1).bit_length()))
    stages = 3 if itemsize == 2 and num_classes > 4096 else 1  # small elements need more loads in flight
    return Tile(max(1, min(1 << (rows - 1).bit_length(), 1024 // block)), block, 4, stages, 1024)


def split_classes(row_programs: int, num_classes: int, tile: Tile) -> tuple[int, int]:
    """Return how many programs share a row and how many classes each takes, a multiple of the block."""
    splits = 1
    if 2 * row_programs < tile.programs:
        splits = min(-(-tile.programs // row_programs), -(-num_classes // (4 * tile.BLOCK)))
    span = -(-num_classes // splits // tile.BLOCK) * tile.BLOCK
    return -(-num_classes // span), span
