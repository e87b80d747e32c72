"""The steps of `torch_form` by Triton kernels: float32 sums, one read and one write of a chunk each."""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from maxsep.ops.fused.chunks import GRAIN
from maxsep.ops.fused.householder import LastClass
from maxsep.ops.fused.joined import accumulating, differentiating, form_of_tail, joins, parts, processors
from maxsep.ops.fused.state import RowState
from maxsep.ops.fused.tile_form import CLASSES
from maxsep.ops.kernels import chunks, samples
from maxsep.ops.launching import launch, launcher
from maxsep.ops.triton_scan import is_interpreting, scale_of

__all__ = [
    "PAD", "accumulate", "accumulating", "adjoint_", "block_carries", "classes_at_once", "differentiating", "fold",
    "gradient_", "joins", "last_gradients", "last_logits", "merged", "parts", "sum_of_rows", "weight_gradients",
]  # fmt: skip

PAD = 8
"""Rows of logits start at multiples of 16 bytes, as the copy engine of a GPU wants it."""
STREAM = {"ROWS": 32, "COLS": 64, "STAGES": 3, "num_warps": 1}
"""Tiles that running sums go down the classes in: one warp scans one, and some are always on their way. For an H200:
1,000,448 classes of 512 features take 308 us for the sums of blocks, 601 for the fold and 917 for the adjoint; tiles of
16 x 32 take 447, 1,053 and 1,507 (benchmarks/fused_tune.py)."""
NARROW = {"ROWS": 64, "COLS": 16, "STAGES": 3, "num_warps": 1}
AT_ONCE = {"ROWS": 256, "COLS": 16, "STAGES": 1, "num_warps": 4}
"""Tiles of a fold whose blocks are too few for the processors: more programs, and for very few classes a whole block at
once, so that nothing is waited for twice. On an H200, 512 features: 1,024 classes take 3.6 us so, 4,096 take 6.4 in
narrow tiles, and 98,304 take 61 in those of STREAM and more in others (benchmarks/fused_tune.py)."""
SCAN = {"ROWS": 512, "COLS": 4, "STAGES": 1, "num_warps": 8}
"""For an H200: the sums of 391 blocks of 512 features take 3 us, those of 3,907 take 16; tiles of 64 x 16 on one warp
take 8 and 62."""
MOST_WIDTH = 512
"""Features of which the gradients of 64 classes fit into the registers of a processor of Hopper, and its samples into
the shared memory; later kinds have less of one or the other, and take half."""
SAMPLES = 32
"""Samples that a program takes where a sample has a few numbers only."""
ROW_GROUPS = 32
"""Partial sums of the gradient over samples, at most."""
MOST_GROUPS = 65_535
"""Programs that CUDA takes in the second dimension of a launch."""


def block_carries(weight: Tensor, radius: float, grain: int, wide: torch.dtype) -> Tensor:
    """Return sum_{i < b grain} r_i W_i for every block b of classes, (blocks, width)."""
    assert wide == torch.float32
    rows = len(weight)
    return _scanned(weight, rows + 1, rows, scale_of(radius, rows), grain, weighted=True)


def fold(weight: Tensor, carries: Tensor, radius: float, grain: int, start: int, stop: int, out: Tensor) -> None:
    """Write rows [start, stop) of radius * P^T weight; start is a multiple of grain, rows of `out` may lie apart."""
    rows, width = weight.shape
    tile = fold_tile(stop - start, grain, width, processors(weight.device))
    launch(
        chunks.fold_rows, _grid(stop - start, grain, width, tile), (weight, carries, out),
        (start, stop, rows, width, out.stride(0), rows, scale_of(radius, rows)), GRAIN=grain, **tile,
    )  # fmt: skip


def adjoint_(gradient: Tensor, radius: float, wide: torch.dtype) -> None:
    """Replace the rows of dW' (C, width) by those of dW, of which the last means nothing."""
    assert wide == torch.float32
    rows, width = gradient.shape
    grain = 256
    carries = _scanned(gradient, rows, rows - 1, 1.0, grain, weighted=False)
    launch(
        chunks.adjoint_rows, _grid(rows, grain, width), (gradient, carries),
        (rows, width, rows - 1, scale_of(radius, rows - 1)), GRAIN=grain, **STREAM,
    )  # fmt: skip


def sum_of_rows(weight: Tensor, wide: torch.dtype) -> Tensor:
    """Return sum_i W_i, (D,)."""
    assert wide == torch.float32
    return _block_sums(weight, len(weight), 0, 1.0, GRAIN, weighted=False).sum(0)


def last_logits(x: Tensor, summed: Tensor, factor: float, offset: Tensor | None) -> Tensor:
    """Return the logits of the class without a row, (B,), for features x, (B, D), and the sum of all rows, (D,)."""
    batch, width = x.shape
    logits = summed.new_empty(batch)
    launch(
        samples.last_logits, (-(-batch // 16),), (x, summed, offset, logits),
        (factor, 0 if offset is None else len(offset) - 1, batch, width),
        OFFSET=offset is not None, ROWS=16, COLS=64, num_warps=4,
    )  # fmt: skip
    return logits


def last_gradients(last: LastClass, lse: Tensor, a: Tensor, u: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gradient at the logits of the class without a row, and what it adds to all others, (B,) each."""
    batch = len(lse)
    g, shift = torch.empty_like(lse), torch.empty_like(lse)  # each aligned, whatever the batch
    launch(
        samples.last_gradients, (-(-batch // SAMPLES),),
        (last.logits, lse, a, u, v, last.class_weight, last.target, g, shift),
        (last.reach, last.num_classes - 1, batch),
        SMOOTH=v is not None, WEIGHT=last.class_weight is not None, ROWS=SAMPLES, num_warps=1,
    )  # fmt: skip
    return g, shift


def merged(state: RowState, last: LastClass | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return nll, log-sum-exp and weighted sum of all classes, (B,) each."""
    parts, batch = state.most.shape
    has_total = state.total is not None
    # what an operator returns must not share memory
    nll, lse = state.most.new_empty(batch), state.most.new_empty(batch)
    summed = state.most.new_empty(batch) if has_total else None
    logits, k, target, share = None, 0, None, None
    if last is not None:
        logits, k, target, share = last.logits, last.num_classes - 1, last.target, last.class_weight
    launch(
        samples.merge_parts, (-(-batch // SAMPLES),),
        (state.most, state.sum, state.target, state.total, logits, target, share, nll, lse, summed),
        (k, batch, parts),
        LAST=last is not None, TOTAL=has_total, WEIGHT=share is not None, PARTS=16, ROWS=SAMPLES, num_warps=1,
    )  # fmt: skip
    return nll, lse, summed


def accumulate(
    logits: Tensor, offset: Tensor | None, weight: Tensor | None, target: Tensor, start: int, state: RowState
) -> None:
    """Take a chunk of logits, (B, c), into the running maximum, sum of exponentials, target logit and sum."""
    batch, size = logits.shape
    launch(
        chunks.accumulate_rows, (batch,),
        (logits, offset, weight, target, state.most, state.sum, state.target, state.total),
        (start, size, logits.stride(0)),
        OFFSET=offset is not None, WEIGHT=weight is not None, TOTAL=state.total is not None,
        SIZE=min(4096, triton.next_power_of_2(size)), num_warps=8,
    )  # fmt: skip


def gradient_(
    logits: Tensor,
    offset: Tensor | None,
    weight: Tensor | None,
    target: Tensor,
    start: int,
    factors: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None],
    columns: Tensor | None,
) -> Tensor:
    """Put the gradient in the place of a chunk of logits, and its sums over samples, unshifted, into `columns`."""
    lse, a, u, v, shift = factors
    batch, size = logits.shape
    rows, cols = 16, 256
    tiles = triton.cdiv(batch, rows * (MOST_GROUPS if columns is None else ROW_GROUPS))
    grid = (triton.cdiv(size, cols), triton.cdiv(batch, rows * tiles))
    partial = None if columns is None else columns.new_empty(grid[1], size)
    launch(
        chunks.gradient_rows, grid, (logits, offset, weight, target, lse, a, u, v, shift, partial),
        (start, size, batch, logits.stride(0)),
        OFFSET=offset is not None, WEIGHT=weight is not None, SMOOTH=v is not None, SHIFT=shift is not None,
        COLUMNS=columns is not None, TILES=tiles, ROWS=rows, COLS=cols, num_warps=4,
    )  # fmt: skip
    if columns is not None and partial is not None:
        torch.sum(partial, 0, out=columns)
    return logits


def classes_at_once(x: Tensor) -> int:
    """Return how many classes `weight_gradients` takes at once, or 0 where rows are too long for a processor."""
    is_hopper = is_interpreting() or torch.cuda.get_device_capability(x.device)[0] == 9
    most = MOST_WIDTH if is_hopper else MOST_WIDTH // 2
    return CLASSES * processors(x.device) if x.shape[1] <= most else 0


def weight_gradients(
    x: Tensor,
    folded: Tensor,
    out: Tensor,
    target: Tensor,
    factors: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None],
    scale: float,
    offset: Tensor | None,
    weight: Tensor | None,
    start: int,
    columns: Tensor | None,
) -> None:
    """Write the gradient at `folded` to `out`, which may lie there, and sums of that at the logits into `columns`."""
    (batch, width), form, (_, _, _, v, shift) = x.shape, form_of_tail(x), factors
    options = dict(
        OFFSET=offset is not None, WEIGHT=weight is not None, SMOOTH=v is not None, SHIFT=shift is not None,
        COLUMNS=columns is not None, **form.tail_options(width),
    )  # fmt: skip
    described, pointers, numbers = form.tail_factors(x, folded, options)
    launcher(form.weight_gradients, x.device, options)(
        (-(-len(folded) // form.CLASSES),),
        described,
        (*pointers, out, offset, weight, target, *factors, columns),
        (scale, *numbers, start, len(folded), batch),
    )


def fold_tile(rows: int, grain: int, width: int, processors: int) -> dict[str, int]:
    """Return the tile that rows are folded in, which is no larger than a block of them.

    >>> [fold_tile(rows, 256, 512, 132)["COLS"] for rows in (2_048, 4_096, 16_384)]
    [16, 16, 64]
    """
    programs = math.prod(_grid(rows, grain, width))
    tile = STREAM
    if programs <= 2 * processors:
        tile = NARROW if 2 * programs > processors else AT_ONCE
    return tile | {"ROWS": min(grain, tile["ROWS"])}


def _grid(rows: int, grain: int, width: int, tile: dict[str, int] = STREAM) -> tuple[int, int]:
    return -(-rows // grain), -(-width // tile["COLS"])


def _scanned(source: Tensor, rows: int, k: int, factor: float, grain: int, *, weighted: bool) -> Tensor:
    """Return the sums of all blocks before each block of rows, weighted by r, or of all after it, unweighted."""
    sums = _block_sums(source, rows, k, factor, grain, weighted=weighted)
    blocks, width = sums.shape
    launch(chunks.scan_blocks, (-(-width // SCAN["COLS"]),), (sums,), (blocks, width), REVERSE=not weighted, **SCAN)
    return sums


def _block_sums(source: Tensor, rows: int, k: int, factor: float, grain: int, *, weighted: bool) -> Tensor:
    """Return the sum of each block of rows, weighted by r if asked for, (blocks, width)."""
    width = source.shape[1]
    grid = _grid(rows, grain, width)
    sums = torch.empty(grid[0], width, dtype=torch.float32, device=source.device)
    numbers = (len(source), width, k, factor)
    launch(chunks.block_sums, grid, (source, sums), numbers, WEIGHTED=weighted, GRAIN=grain, **STREAM)
    return sums
