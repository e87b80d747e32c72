"""How a kernel goes along the rows of a matrix: which programs take what, and in words of which width it is read.

What follows from sizes and strides alone is made once for all launches (`Plan`); whoever calls caches it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from maxsep.ops.launching import launch

PROGRAMS = 1024
"""About as many programs as an H200 runs at once, 8 on each of 132 multiprocessors; with less than half as many rows,
several programs share a row. The part "few rows" of benchmarks/head_gpu.py times that."""


class Tile(NamedTuple):
    """How much of the matrix a program holds at once, and how many warps work on it."""

    rows: int
    block: int
    warps: int
    stages: int = 1


class Layout(NamedTuple):
    """Where a matrix and the one to be written lie in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    behind: int
    """What the matrix has to `spare`."""
    itemsize: int
    out_shape: tuple[int, ...]
    out_strides: tuple[int, ...]

    @property
    def is_column_major(self) -> bool:
        """Whether it is read transposed."""
        return self.strides[0] == 1 and self.strides[1] > 1


class Plan(NamedTuple):
    """What a launch is told besides the tensors, once for all calls with the same layout."""

    grid: tuple[int, int]
    source: tuple[int, int, int]
    """Row stride, column stride and end of what is read."""
    target: tuple[int, int, int]
    """The same of what is written."""
    shares: tuple[int, int]
    """How many classes a program takes, and how many programs share a row."""
    sums: dict[str, int]
    """Constants of `partial_sums`."""
    options: dict[str, int]
    """These, and further ones of the product itself."""

    def sums_of_shares(self, x: Tensor, width: int, k: int, factor: float, *, weighted: bool) -> Tensor:
        """Return the sum of every program's share of a row, (rows, programs); x itself where none is shared."""
        if self.shares[1] == 1:
            return x
        from maxsep.ops.kernels.rows import partial_sums

        partial = x.new_empty(x.shape[0], self.shares[1], dtype=torch.float32)
        numbers = (x.shape[0], width, k, factor, *self.source, *self.shares)
        launch(partial_sums, self.grid, (x, partial), numbers, WEIGHTED=weighted, **self.sums)
        return partial


def layout_of(x: Tensor, out: Tensor) -> Layout:
    """Describe two matrices.

    >>> layout_of(torch.empty(2, 3), torch.empty(2, 4)).strides
    (3, 1)
    """
    return Layout(x.shape, x.stride(), spare(x), x.element_size(), out.shape, out.stride())


def plan_rows(layout: Layout, k: int, tile: Tile, *, whole: bool = False) -> Plan:
    """Spread C = k+1 classes of every row over programs of a tile; `whole` rows are not shared.

    >>> plan_rows(layout_of(torch.empty(2048, 9), torch.empty(2048, 10)), 9, Tile(1, 16, 4)).grid
    (2048, 1)
    """
    row_programs = -(-layout.shape[0] // tile.rows)
    chunks, span = (1, k + 1) if whole else split(row_programs, k + 1, tile.block)
    x_row, x_align, x_end, end_align = reading(layout.shape, layout.strides, layout.behind)
    out_row, out_align, out_end = writing(layout.out_shape, layout.out_strides)
    sums = {"X_ALIGN": x_align, "END_ALIGN": end_align, "ROWS": tile.rows, "BLOCK": tile.block, "num_warps": tile.warps}
    return Plan(
        grid=(row_programs, chunks),
        source=(x_row, layout.strides[1], x_end),
        target=(out_row, layout.out_strides[1], out_end),
        shares=(span, chunks),
        sums=sums,
        options=sums | {"OUT_ALIGN": out_align, "CHUNKS": power_of_two(chunks) if chunks > 1 else 1},
    )


def power_of_two(number: int) -> int:
    """Return the smallest power of two from 16 on that is not below a number."""
    return 1 << max(4, (number - 1).bit_length())


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
