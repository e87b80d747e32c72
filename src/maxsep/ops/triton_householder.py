"""x -> radius * P_H^T x and its adjoint by one kernel: torch operators that launch `maxsep.ops.kernels.householder`.

As those of `triton_scan` in every respect: each is the other's gradient, any strides are read as they are, sums are
made in float32 in a fixed order, and up to 7 columns of padding behind the C-1 outputs do not count and have a gradient
of zero. Rows of up to 32,768 classes are read once, longer ones twice.
"""

from __future__ import annotations

import functools

from torch import Tensor

from maxsep.ops.adjoint_pair import adjoint_pair
from maxsep.ops.launching import launch as launch_kernel
from maxsep.ops.row_plan import Layout, Plan, Tile, as_matrix, layout_of, plan_rows, power_of_two
from maxsep.ops.triton_scan import on_device_of
from maxsep.simplex import reflection

LONGEST = 32_768
"""Rows of so many classes fit in the registers of 16 warps."""


def launch(x: Tensor, out: Tensor, k: int, radius: float, adjoint: bool) -> None:
    """Write the product of x to `out`, each of two dimensions or such that the leading ones are seen as one."""
    from maxsep.ops.kernels.householder import reflect

    x, out, (a, c, d) = as_matrix(x), as_matrix(out), reflection(k + 1)
    plan, whole = householder_plan(layout_of(x, out), k)
    with on_device_of(x):
        partial = plan.sums_of_shares(x, k, k, 1.0, weighted=False)
        numbers = (x.shape[0], k, radius * a, c, d, *plan.source, *plan.target, *plan.shares)
        launch_kernel(reflect, plan.grid, (x, out, partial), numbers, ADJOINT=adjoint, WHOLE=whole, **plan.options)


@functools.lru_cache(maxsize=512)
def householder_plan(layout: Layout, k: int) -> tuple[Plan, bool]:
    """Return what is the same in every launch for such matrices; whoever changes tiles has to clear this cache."""
    tile, whole = choose_tile(layout.shape[0], k + 1, layout.is_column_major)
    return plan_rows(layout, k, tile, whole=whole), whole


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
