"""The steps of `torch_form` by Triton kernels: float32 sums, one read and one write of a chunk each."""

from __future__ import annotations

import functools

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from maxsep.ops.fused.state import RowState
from maxsep.ops.kernels import chunks, products
from maxsep.ops.triton_scan import is_interpreting, scale_of

PAD = 8
"""Rows of logits start at multiples of 16 bytes, as the copy engine of a GPU wants it."""
FORWARD_TILE = {"ROWS": 128, "COLS": 128, "INNER": 64, "num_warps": 8, "num_stages": 3}
BACKWARD_TILE = {"ROWS": 128, "COLS": 256, "INNER": 64, "FLAT": True, "num_warps": 8, "num_stages": 3}
"""For an H200: the forward tile was the fastest of seven there; the backward one has not been measured in this form
(benchmarks/fused_tune.py does it)."""
COLS = 64
ROW_GROUPS = 32
"""Partial sums of the gradient over samples, at most."""


def block_carries(weight: Tensor, radius: float, grain: int, wide: torch.dtype) -> Tensor:
    """Return sum_{i < b grain} r_i W_i for every block b of classes, (blocks, width)."""
    assert wide == torch.float32
    rows = len(weight)
    return _scanned(weight, rows + 1, rows, scale_of(radius, rows), grain, weighted=True)


def fold(weight: Tensor, carries: Tensor, radius: float, grain: int, start: int, stop: int, out: Tensor) -> None:
    """Write rows [start, stop) of radius * P^T weight; start is a multiple of grain."""
    rows, width = weight.shape
    grid = (triton.cdiv(stop - start, grain), triton.cdiv(width, COLS))
    factor = scale_of(radius, rows)
    chunks.fold_rows[grid](
        weight, carries, out, start, stop, rows, width, rows, factor, GRAIN=grain, COLS=COLS, num_warps=8
    )


def adjoint_(gradient: Tensor, radius: float, wide: torch.dtype) -> None:
    """Replace the rows of dW' (C, width) by those of dW, of which the last means nothing."""
    assert wide == torch.float32
    rows, width = gradient.shape
    grain = 256
    carries = _scanned(gradient, rows, rows - 1, 1.0, grain, weighted=False)
    grid = (triton.cdiv(rows, grain), triton.cdiv(width, COLS))
    factor = scale_of(radius, rows - 1)
    chunks.adjoint_rows[grid](gradient, carries, rows, width, rows - 1, factor, GRAIN=grain, COLS=COLS, num_warps=8)


def accumulate(
    logits: Tensor, offset: Tensor | None, weight: Tensor | None, target: Tensor, start: int, state: RowState
) -> None:
    """Take a chunk of logits, (B, c), into the running maximum, sum of exponentials, target logit and sum."""
    batch, size = logits.shape
    chunks.accumulate_rows[(batch,)](
        logits, offset, weight, target, state.most, state.sum, state.target, state.total, start, size, logits.stride(0),
        OFFSET=offset is not None, WEIGHT=weight is not None, TOTAL=state.total is not None,
        SIZE=min(4096, triton.next_power_of_2(size)), num_warps=8,
    )  # fmt: skip


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
    rows, cols = 16, 256
    tiles = 1 if columns is None else triton.cdiv(batch, rows * ROW_GROUPS)
    grid = (triton.cdiv(size, cols), triton.cdiv(batch, rows * tiles))
    partial = None if columns is None else columns.new_empty(grid[1], size)
    chunks.gradient_rows[grid](
        logits, offset, weight, target, lse, a, u, v, partial, start, size, batch, logits.stride(0),
        OFFSET=offset is not None, WEIGHT=weight is not None, SMOOTH=v is not None, COLUMNS=columns is not None,
        TILES=tiles, ROWS=rows, COLS=cols, num_warps=4,
    )  # fmt: skip
    if columns is not None and partial is not None:
        torch.sum(partial, 0, out=columns)
    return logits


def joins(x: Tensor, weight: Tensor) -> bool:
    """Say whether the product and what follows it can be one kernel: half precision, and a copy engine to feed it."""
    if any(tensor.data_ptr() % 16 or x.shape[1] * tensor.element_size() % 16 for tensor in (x, weight)):
        return False
    if is_interpreting():
        return True
    half = x.dtype in (torch.float16, torch.bfloat16)
    return half and torch.cuda.get_device_capability(x.device)[0] >= 9


def parts(x: Tensor) -> int:
    """Return into how many parts of classes `accumulate_product` splits its work, so that no processor is idle."""
    row_tiles: int = triton.cdiv(len(x), FORWARD_TILE["ROWS"])
    return max(1, _programs(x, FORWARD_TILE) // row_tiles)


def accumulate_product(
    x: Tensor,
    folded: Tensor,
    offset: Tensor | None,
    weight: Tensor | None,
    target: Tensor,
    start: int,
    state: RowState,
) -> None:
    """Take the logits of a chunk of classes, x folded^T, into the state without writing them."""
    batch, width = x.shape
    splits, tile = len(state.most), FORWARD_TILE
    products.accumulate_product[(triton.cdiv(batch, tile["ROWS"]) * splits,)](
        TensorDescriptor.from_tensor(x, [tile["ROWS"], tile["INNER"]]),
        TensorDescriptor.from_tensor(folded, [tile["COLS"], tile["INNER"]]),
        offset, weight, target, state.most, state.sum, state.target, state.total, start, len(folded), batch, splits,
        OFFSET=offset is not None, WEIGHT=weight is not None, TOTAL=state.total is not None, WIDTH=width, **tile,
    )  # fmt: skip


def gradient_product(
    x: Tensor,
    folded: Tensor,
    out: Tensor,
    offset: Tensor | None,
    weight: Tensor | None,
    target: Tensor,
    start: int,
    factors: tuple[Tensor, Tensor, Tensor, Tensor | None],
    columns: Tensor | None,
) -> None:
    """Write the gradient at a chunk of logits, x folded^T, and its sums over samples into `columns`."""
    lse, a, u, v = factors
    (batch, width), size, tile = x.shape, len(folded), BACKWARD_TILE
    row_tiles = triton.cdiv(batch, tile["ROWS"])
    programs = min(_programs(x, tile), row_tiles * triton.cdiv(size, tile["COLS"]))
    partial = None if columns is None else columns.new_empty(row_tiles, size)
    products.gradient_product[(programs,)](
        TensorDescriptor.from_tensor(x, [tile["ROWS"], tile["INNER"]]),
        TensorDescriptor.from_tensor(folded, [tile["COLS"], tile["INNER"]]),
        TensorDescriptor.from_tensor(out, [tile["ROWS"], tile["COLS"]]),
        offset, weight, target, lse, a, u, v, partial, start, size, batch, programs,
        OFFSET=offset is not None, WEIGHT=weight is not None, SMOOTH=v is not None, COLUMNS=columns is not None,
        WIDTH=width, **tile,
    )  # fmt: skip
    if columns is not None and partial is not None:
        torch.sum(partial, 0, out=columns)


def _programs(x: Tensor, tile: dict[str, int]) -> int:
    """Return how many programs of a tile run at once: two on a processor if their accumulators fit."""
    return _processors(x.device) * (2 if tile["ROWS"] * tile["COLS"] <= 128 * 128 else 1)


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def _scanned(source: Tensor, rows: int, k: int, factor: float, grain: int, *, weighted: bool) -> Tensor:
    """Return the sums of all blocks before each block of rows, weighted by r, or of all after it, unweighted."""
    width = source.shape[1]
    blocks = triton.cdiv(rows, grain)
    sums = torch.empty(blocks, width, dtype=torch.float32, device=source.device)
    grid = (blocks, triton.cdiv(width, COLS))
    chunks.block_sums[grid](
        source, sums, len(source), width, k, factor, WEIGHTED=weighted, GRAIN=grain, COLS=COLS, num_warps=8
    )
    chunks.scan_blocks[(triton.cdiv(width, 16),)](
        sums, blocks, width, REVERSE=not weighted, ROWS=64, COLS=16, num_warps=4
    )
    return sums
