"""x -> radius * P_H^T x and its adjoint by one kernel: torch operators that launch `maxsep.ops.kernels.householder`.

As those of `triton_scan` in every respect: each is the other's gradient, any strides are read as they are, sums are
made in float32 in a fixed order, and up to 7 columns of padding behind the C-1 outputs do not count and have a gradient
of zero. Rows of up to 32,768 classes are read once, longer ones twice.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maxsep.ops.adjoint_pair import adjoint_pair
from maxsep.ops.triton_scan import (
    Tile,
    as_matrix,
    on_device_of,
    power_of_two,
    reading,
    spare,
    split,
    writing,
)
from maxsep.simplex import reflection

LONGEST = 32_768
"""Rows of so many classes fit in the registers of 16 warps."""


def launch(x: Tensor, out: Tensor, k: int, radius: float, adjoint: bool) -> None:
    """Write the product of x to `out`, each of two dimensions or such that the leading ones are seen as one."""
    from maxsep.ops.kernels.householder import reflect
    from maxsep.ops.kernels.rows import partial_sums

    x, out = as_matrix(x), as_matrix(out)
    plan = householder_plan(x.shape, x.stride(), spare(x), out.shape, out.stride(), k, radius)
    with on_device_of(x):
        partial = x
        if plan.shares[1] > 1:
            partial = x.new_empty(x.shape[0], plan.shares[1], dtype=torch.float32)
            partial_sums[plan.grid](
                x, partial, x.shape[0], k, k, 1.0, *plan.source, *plan.shares, WEIGHTED=False, **plan.sums
            )
        reflect[plan.grid](
            x, out, partial, x.shape[0], k, *plan.numbers, *plan.source, *plan.target, *plan.shares,
            ADJOINT=adjoint, **plan.options,
        )  # fmt: skip


class _Plan(NamedTuple):
    """What a launch is told besides the tensors, once for all calls with the same sizes."""

    grid: tuple[int, int]
    numbers: tuple[float, float, float]
    source: tuple[int, ...]
    target: tuple[int, ...]
    shares: tuple[int, int]
    sums: dict[str, int]
    options: dict[str, Any]


@functools.lru_cache(maxsize=512)
def householder_plan(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    behind: int,
    out_shape: tuple[int, ...],
    out_strides: tuple[int, ...],
    k: int,
    radius: float,
) -> _Plan:
    """Return what is the same in every launch for such matrices; whoever changes tiles has to clear this cache."""
    rows, _ = shape
    tile, whole = choose_tile(rows, k + 1, strides[0] == 1 and strides[1] > 1)
    row_programs = -(-rows // tile.rows)
    chunks, span = (1, k + 1) if whole else split(row_programs, k + 1, tile.block)
    x_row, x_align, x_end, end_align = reading(shape, strides, behind)
    out_row, out_align, out_end = writing(out_shape, out_strides)
    a, c, d = reflection(k + 1)
    sums = {"X_ALIGN": x_align, "END_ALIGN": end_align, "ROWS": tile.rows, "BLOCK": tile.block, "num_warps": tile.warps}
    options = {"OUT_ALIGN": out_align, "CHUNKS": power_of_two(chunks) if chunks > 1 else 1, "WHOLE": whole}
    return _Plan(
        grid=(row_programs, chunks),
        numbers=(radius * a, c, d),
        source=(x_row, strides[1], x_end),
        target=(out_row, out_strides[1], out_end),
        shares=(span, chunks),
        sums=sums,
        options=sums | options,
    )


def choose_tile(rows: int, num_classes: int, column_major: bool) -> tuple[Tile, bool]:
    """Return how much of the matrix a program holds at once, and whether that is whole rows.

    The tiles of long and of whole rows are those that `benchmarks/head_gpu.py --parts householder` has timed; a
    transposed matrix and several short rows per program were not compared.
    """
    if column_major:
        return Tile(32, 32, 4), False
    if num_classes > LONGEST:
        return Tile(1, 4096, 8), False
    block = power_of_two(num_classes)
    return Tile(max(1, min(power_of_two(rows), 1024 // block)), block, max(1, min(16, block // 1024))), True


householder_op, householder_adjoint_op, householder_rows, householder_adjoint_rows = adjoint_pair("householder", launch)
