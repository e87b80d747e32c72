"""The steps of `torch_form` by Triton kernels: float32 sums, one read and one write of a chunk each."""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from maxsep.ops.fused import kernels
from maxsep.ops.fused.state import RowState

COLS = 64
ROW_GROUPS = 8
"""Partial sums of the gradient over samples, kept per class until the end: few, for the memory's sake."""


def block_carries(weight: Tensor, radius: float, grain: int, wide: torch.dtype) -> Tensor:
    """Return sum_{i < b grain} r_i W_i for every block b of classes, (blocks, width)."""
    assert wide == torch.float32
    rows = len(weight)
    return _scanned(weight, rows + 1, rows, _factor(rows + 1, radius), grain, weighted=True)


def fold(weight: Tensor, carries: Tensor, radius: float, grain: int, start: int, stop: int, out: Tensor) -> None:
    """Write rows [start, stop) of radius * P^T weight; start is a multiple of grain."""
    rows, width = weight.shape
    grid = (triton.cdiv(stop - start, grain), triton.cdiv(width, COLS))
    factor = _factor(rows + 1, radius)
    kernels.fold_rows[grid](
        weight, carries, out, start, stop, rows, width, rows, factor, GRAIN=grain, COLS=COLS, num_warps=8
    )


def adjoint_(gradient: Tensor, radius: float, wide: torch.dtype) -> None:
    """Replace the rows of dW' (C, width) by those of dW, of which the last means nothing."""
    assert wide == torch.float32
    rows, width = gradient.shape
    grain = 256
    carries = _scanned(gradient, rows, rows - 1, 1.0, grain, weighted=False)
    grid = (triton.cdiv(rows, grain), triton.cdiv(width, COLS))
    factor = _factor(rows, radius)
    kernels.adjoint_rows[grid](gradient, carries, rows, width, rows - 1, factor, GRAIN=grain, COLS=COLS, num_warps=8)


def accumulate(
    logits: Tensor, offset: Tensor | None, weight: Tensor | None, target: Tensor, start: int, state: RowState
) -> None:
    """Take a chunk of logits, (B, c), into the running maximum, sum of exponentials, target logit and sum."""
    batch, size = logits.shape
    kernels.accumulate_rows[(batch,)](
        logits, offset, weight, target, state.most, state.sum, state.target, state.total, start, size,
        OFFSET=offset is not None, WEIGHT=weight is not None, TOTAL=state.total is not None,
        SIZE=min(4096, triton.next_power_of_2(size)), num_warps=8,
    )  # fmt: skip


def column_sums(num_classes: int, batch: int, like: Tensor) -> Tensor:
    """Return room for the partial sums of the gradient over samples, (groups of rows, num_classes)."""
    return like.new_empty(ROW_GROUPS, num_classes)


def gradient_(
    logits: Tensor,
    offset: Tensor | None,
    weight: Tensor | None,
    target: Tensor,
    start: int,
    factors: tuple[Tensor, Tensor, Tensor, Tensor | None],
    columns: Tensor | None,
) -> Tensor:
    """Put the gradient in the place of a chunk of logits, and its sums over samples into `columns`."""
    lse, a, u, v = factors
    batch, size = logits.shape
    if columns is None:
        rows, cols, tiles = 16, 256, 1
    else:
        rows, cols = 16, 128
        tiles = triton.cdiv(batch, rows * ROW_GROUPS)
    grid = (triton.cdiv(size, cols), triton.cdiv(batch, rows) if columns is None else ROW_GROUPS)
    kernels.gradient_rows[grid](
        logits, offset, weight, target, lse, a, u, v, columns, start, size, batch,
        0 if columns is None else columns.stride(0), OFFSET=offset is not None, WEIGHT=weight is not None,
        SMOOTH=v is not None, COLUMNS=columns is not None, TILES=tiles, ROWS=rows, COLS=cols, num_warps=4,
    )  # fmt: skip
    return logits


def _scanned(source: Tensor, rows: int, k: int, factor: float, grain: int, *, weighted: bool) -> Tensor:
    """Return the sums of all blocks before each block of rows, weighted by r, or of all after it, unweighted."""
    width = source.shape[1]
    blocks = triton.cdiv(rows, grain)
    sums = torch.empty(blocks, width, dtype=torch.float32, device=source.device)
    grid = (blocks, triton.cdiv(width, COLS))
    kernels.block_sums[grid](
        source, sums, len(source), width, k, factor, WEIGHTED=weighted, GRAIN=grain, COLS=COLS, num_warps=8
    )
    kernels.scan_blocks[(triton.cdiv(width, 16),)](
        sums, blocks, width, REVERSE=not weighted, ROWS=64, COLS=16, num_warps=4
    )
    return sums


def _factor(num_classes: int, radius: float) -> float:
    return radius * math.sqrt(num_classes / (num_classes - 1))
