"""x -> radius * P^T x and its adjoint by one kernel each: torch operators that launch `maxsep.ops.kernels.rows`.

`separate_rows` and `adjoint_rows` are the operators, or the short way to the same code (`adjoint_pair`). Sums are made
in float32 in a fixed order: the same input gives the same bits. Any strides are read as they are; only leading
dimensions that cannot be seen as one are copied first. The C-1 outputs may have padding behind them, up to a multiple
of 8: it does not count, and its gradient is zero.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maxsep.ops.adjoint_pair import adjoint_pair

IS_INSTALLED = importlib.util.find_spec("triton") is not None
PROGRAMS = 1024
"""About as many programs as an H200 runs at once, 8 on each of 132 multiprocessors; with less than half as many rows,
several programs share a row. The part "few rows" of benchmarks/head_gpu.py times that."""
MOST_CLASSES = 2**30
"""The kernels count classes in 32 bits."""


def check_triton(x: Tensor) -> None:
    """Raise where there is no Triton, or x is not on a CUDA device."""
    if not IS_INSTALLED:
        raise RuntimeError(
            "impl='triton' needs the package triton, which is not installed. Install it "
            "(pip install 'maxsep[kernels]') or leave impl out: every form gives the same values."
        )
    if x.device.type != "cuda" and not is_interpreting():
        raise RuntimeError(
            f"impl='triton' is for CUDA tensors, x is on '{x.device}'. "
            "Leave impl out: every form gives the same values."
        )


def takes(x: Tensor) -> bool:
    """Return whether the kernel is there for a tensor: on CUDA, of 16 or 32 bits, and not exported."""
    return (
        IS_INSTALLED
        and x.is_cuda
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and x.shape[-1] < MOST_CLASSES
        and not torch.compiler.is_exporting()
    )


class Tile(NamedTuple):
    """How much of the matrix a program holds at once, and how many warps work on it."""

    rows: int
    block: int
    warps: int
    stages: int = 1


def choose_tile(rows: int, num_classes: int, itemsize: int, column_major: bool) -> Tile:
    """Return how much of the matrix a program holds at once.

    Compiled for an H100 or H200 these tiles take about 64 registers per thread, up to 70 where loads are staged, so
    that 7 or 8 programs fit on each multiprocessor and about 1,000 rows on the device. On an H200, with 1,024 rows of
    100,000 classes, the percentages of a copy's bandwidth, forward and backward, were (the first is the choice;
    `benchmarks/head_gpu.py --parts sweep`):

        bfloat16   1 x 1024, 4 warps, 3 stages   83.8, 84.7      float32   1 x 1024, 4 warps, 1 stage    80.0, 85.7
                   1 x 2048, 8 warps, 3 stages   76.5, 75.9                1 x 1024, 4 warps, 3 stages   71.5, 81.6
                   1 x 1024, 4 warps, 1 stage    68.8, 68.3

    A transposed matrix and several short rows per program were not compared.
    """
    if column_major:
        return Tile(32, 32, 4)
    block = min(1024, power_of_two(num_classes))
    stages = 3 if itemsize == 2 and num_classes > 4096 else 1  # small elements need more loads under way
    return Tile(max(1, min(power_of_two(rows), 1024 // block)), block, 4, stages)


def scale_of(radius: float, k: int) -> float:
    """Return a = radius sqrt(C/k), which all coefficients share."""
    return radius * math.sqrt((k + 1) / k)


def power_of_two(number: int) -> int:
    """Return the smallest power of two from 16 on that is not below a number."""
    return 1 << max(4, (number - 1).bit_length())


def launch(x: Tensor, out: Tensor, k: int, radius: float, adjoint: bool) -> None:
    """Write the product of x to `out`, each of two dimensions or such that the leading ones are seen as one."""
    from maxsep.ops.kernels import rows as kernels

    x, out = as_matrix(x), as_matrix(out)
    plan = launch_plan(x.shape, x.stride(), spare(x), x.element_size(), out.shape, out.stride(), k, radius)
    with on_device_of(x):
        partial = x
        if plan.chunks > 1:
            partial = x.new_empty(x.shape[0], plan.chunks, dtype=torch.float32)
            width = k + 1 if adjoint else k
            kernels.partial_sums[plan.grid](
                x, partial, x.shape[0], width, *plan.source, *plan.shares, WEIGHTED=not adjoint, **plan.sums
            )
        kernel = kernels.adjoint if adjoint else kernels.forward
        kernel[plan.grid](x, out, partial, x.shape[0], *plan.source, *plan.target, *plan.shares, **plan.options)


class _Plan(NamedTuple):
    """What a launch is told besides the tensors, once for all calls with the same sizes."""

    grid: tuple[int, int]
    chunks: int
    source: tuple[Any, ...]
    target: tuple[int, ...]
    shares: tuple[int, int]
    sums: dict[str, int]
    options: dict[str, int]


@functools.lru_cache(maxsize=512)
def launch_plan(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    behind: int,
    itemsize: int,
    out_shape: tuple[int, ...],
    out_strides: tuple[int, ...],
    k: int,
    radius: float,
) -> _Plan:
    """Return what is the same in every launch for such matrices; whoever changes tiles has to clear this cache."""
    rows, _ = shape
    tile = choose_tile(rows, k + 1, itemsize, strides[0] == 1 and strides[1] > 1)
    row_programs = -(-rows // tile.rows)
    chunks, span = split(row_programs, k + 1, tile.block)
    x_row, x_align, x_end, end_align = reading(shape, strides, behind)
    out_row, out_align, out_end = writing(out_shape, out_strides)
    sums = {"X_ALIGN": x_align, "END_ALIGN": end_align, "ROWS": tile.rows, "BLOCK": tile.block, "num_warps": tile.warps}
    options = {"OUT_ALIGN": out_align, "CHUNKS": power_of_two(chunks) if chunks > 1 else 1, "STAGES": tile.stages}
    return _Plan(
        grid=(row_programs, chunks),
        chunks=chunks,
        source=(k, scale_of(radius, k), x_row, strides[1], x_end),
        target=(out_row, out_strides[1], out_end),
        shares=(span, chunks),
        sums=sums,
        options=sums | options,
    )


def as_matrix(x: Tensor) -> Tensor:
    """See all leading dimensions as one."""
    if x.dim() == 2:
        return x
    return x[None] if x.dim() == 1 else x.flatten(0, -2)


def split(row_programs: int, num_classes: int, block: int) -> tuple[int, int]:
    """Return how many programs share a row and how many classes each takes, a multiple of the block."""
    chunks = 1 if 2 * row_programs >= PROGRAMS else min(-(-PROGRAMS // row_programs), -(-num_classes // (4 * block)))
    span = -(-num_classes // chunks // block) * block
    return -(-num_classes // span), span


def spare(x: Tensor) -> int:
    """Return how many numbers, up to 15, the memory of a matrix has behind its last one."""
    (rows, width), stride = x.shape, x.stride(0)
    if stride == width and rows > 1:  # then nothing is read along
        return 0
    room = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    return min(15, int(room - (rows - 1) * stride - width))


def reading(shape: tuple[int, ...], strides: tuple[int, ...], behind: int) -> tuple[int, int, int, int]:
    """Return the row stride and the end of what may be read of a row, each as a number of units and the unit.

    The units are powers of two that the compiler sees: they allow words of up to 16 bytes. `behind` is what the
    matrix has to `spare`.
    """
    rows, width = shape
    stride = strides[0] if rows > 1 else 0
    unit = math.gcd(stride, 16) if strides[1] == 1 else 1
    end = -(-width // unit) * unit
    whole = end - width <= behind  # the padding of the last row may not be ours
    return stride // unit, unit, end // unit if whole else width, unit if whole else 1


def writing(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int, int]:
    """Return row stride and end likewise; a tensor of ours has its padding."""
    if strides[1] != 1 or shape[0] == 1:
        return strides[0], 1, shape[1]
    unit = math.gcd(strides[0], 16)
    return strides[0] // unit, unit, strides[0] // unit


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Make a tensor's device the one that kernels are launched on."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return _HERE
    return torch.cuda.device(x.device)


_HERE: AbstractContextManager[object] = nullcontext()


def is_interpreting() -> bool:
    """Return whether Triton is asked to interpret its programs, which then run on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


separate_op, adjoint_op, separate_rows, adjoint_rows = adjoint_pair("separate", launch)
