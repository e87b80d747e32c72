"""The steps of the streamed loss; `ops/fused/triton_form.py` launches them, `torch_form.py` says what they compute.

Matrices are contiguous, rows are classes or samples. See `rows` for the coefficients: s = n r. Running sums go down the
rows of a block in small tiles with the carry in registers: one warp scans such a tile without shared memory, and the
next tiles are on their way meanwhile.
"""

import triton
import triton.language as tl

from maxsep.ops.kernels.rows import coefficients


@triton.jit
def block_sums(
    source, sums, rows, width, k, factor,
    WEIGHTED: tl.constexpr, GRAIN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sum GRAIN rows at a time, times r if weighted: sums[b] = sum_{i in block b} (r_i) source_i."""
    block = tl.program_id(0)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    source += block.to(tl.int64) * GRAIN * width
    total = tl.zeros([ROWS, COLS], tl.float32)
    for first in tl.range(0, GRAIN, ROWS, num_stages=STAGES):
        i = first + tl.arange(0, ROWS)
        row = block * GRAIN + i
        keep = (row < rows)[:, None] & (col < width)[None, :]
        value = tl.load(source + (i[:, None] * width + col[None, :]), mask=keep, other=0.0).to(tl.float32)
        if WEIGHTED:
            value *= coefficients(row, k, factor)[1][:, None]
        total += value
    tl.store(sums + block.to(tl.int64) * width + col, tl.sum(total, 0), mask=col < width)


@triton.jit
def scan_blocks(
    sums, blocks, width, REVERSE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr
):
    """Replace each block's sum by the sum of all blocks before it, or after it if reversed."""
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    carry = tl.zeros([COLS], tl.float32)
    for first in tl.range(0, blocks, ROWS, num_stages=STAGES):
        position = first + tl.arange(0, ROWS)
        row = position
        if REVERSE:
            row = blocks - 1 - position
        keep = (position < blocks)[:, None] & (col < width)[None, :]
        place = sums + row.to(tl.int64)[:, None] * width + col[None, :]
        value = tl.load(place, mask=keep, other=0.0)
        tl.store(place, carry[None, :] + tl.cumsum(value, 0) - value, mask=keep)
        carry += tl.sum(value, 0)


@triton.jit
def fold_rows(
    weight, carries, out, start, stop, rows, width, out_row, k, factor,
    GRAIN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write W'_j = s_j W_j - carry - sum_{i<j in block} r_i W_i for the rows [start, stop), a block each."""
    top = tl.program_id(0) * GRAIN
    block = ((start + top) // GRAIN).to(tl.int64)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = (col < width)[None, :]
    carry = tl.load(carries + block * width + col, mask=col < width, other=0.0)
    weight += (start + top).to(tl.int64) * width
    out += top.to(tl.int64) * out_row
    for first in tl.range(0, GRAIN, ROWS, num_stages=STAGES):
        i = first + tl.arange(0, ROWS)
        row = start + top + i
        place = i[:, None] * width + col[None, :]
        value = tl.load(weight + place, mask=(row < rows)[:, None] & inside, other=0.0).to(tl.float32)
        n, r = coefficients(row, k, factor)
        weighted = value * r[:, None]
        folded = weighted * (n + 1)[:, None] - (carry[None, :] + tl.cumsum(weighted, 0))
        place = i[:, None] * out_row + col[None, :]
        tl.store(out + place, folded.to(out.dtype.element_ty), mask=(row < stop)[:, None] & inside)
        carry += tl.sum(weighted, 0)


@triton.jit
def adjoint_rows(
    gradient, carries, rows, width, k, factor,
    GRAIN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write dW_i = s_i dW'_i - r_i (carry + sum_{j>i in block} dW'_j), in place, last rows first."""
    block = tl.program_id(0)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    gradient += block.to(tl.int64) * GRAIN * width
    later = tl.load(carries + block.to(tl.int64) * width + col, mask=col < width, other=0.0)
    for done in tl.range(0, GRAIN, ROWS, num_stages=STAGES):
        i = GRAIN - ROWS - done + tl.arange(0, ROWS)
        row = block * GRAIN + i
        keep = (row < rows)[:, None] & (col < width)[None, :]
        place = gradient + (i[:, None] * width + col[None, :])
        value = tl.load(place, mask=keep, other=0.0).to(tl.float32)
        n, r = coefficients(row, k, factor)
        later += tl.sum(value, 0)
        # what is left of this tile and all later ones; a scan from below would cost ten times the shuffles
        after = later[None, :] - tl.cumsum(value, 0)
        tl.store(place, (r[:, None] * (value * n[:, None] - after)).to(gradient.dtype.element_ty), mask=keep)


@triton.jit
def accumulate_rows(
    logits, offset, weight, target, most, sums, target_logit, total, start, size, stride,
    OFFSET: tl.constexpr, WEIGHT: tl.constexpr, TOTAL: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Online log-sum-exp of one row of a chunk, its target logit if it is here, and its (weighted) sum."""
    row = tl.program_id(0).to(tl.int64)
    m = tl.load(most + row)
    mass = tl.load(sums + row)
    index = tl.load(target + row) - start
    summed = 0.0
    for first in range(0, size, SIZE):
        col = first + tl.arange(0, SIZE)
        z = tl.load(logits + row * stride + col, mask=col < size, other=-float("inf")).to(tl.float32)
        if OFFSET:
            z += tl.load(offset + col, mask=col < size, other=0.0)
        new = tl.maximum(m, tl.max(z, 0))
        reference = tl.where(new == -float("inf"), 0.0, new)
        mass = mass * tl.exp(m - reference) + tl.sum(tl.exp(z - reference), 0)
        m = new
        if TOTAL:
            counted = tl.where(col < size, z, 0.0)
            if WEIGHT:
                counted *= tl.load(weight + col, mask=col < size, other=0.0)
            summed += tl.sum(counted, 0)
    tl.store(most + row, m)
    tl.store(sums + row, mass)
    if TOTAL:
        tl.store(total + row, tl.load(total + row) + summed)
    if (index >= 0) & (index < size):
        z = tl.load(logits + row * stride + index).to(tl.float32)
        if OFFSET:
            z += tl.load(offset + index)
        tl.store(target_logit + row, z)


@triton.jit
def numbers_of_classes(offset, weight, number, inside, OFFSET: tl.constexpr, WEIGHT: tl.constexpr):
    """Return what is added to the logits of classes, and their weights: 0 and 1 where there are none."""
    added = tl.zeros(number.shape, tl.float32)
    if OFFSET:
        added = tl.load(offset + number, mask=inside, other=0.0)
    share = tl.full(number.shape, 1.0, tl.float32)
    if WEIGHT:
        share = tl.load(weight + number, mask=inside, other=0.0)
    return added, share


@triton.jit
def gradient_rows(
    logits, offset, weight, target, lse, a, u, v, shift, partial, start, size, batch, stride,
    OFFSET: tl.constexpr, WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, SHIFT: tl.constexpr, COLUMNS: tl.constexpr,
    TILES: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write g = a exp(z - lse) - u [j = y] - v w_j, plus shift, in place of z, and sums of g over a program's rows."""
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    inside = col < size
    added, share = numbers_of_classes(offset, weight, col, inside, OFFSET, WEIGHT)
    summed = tl.zeros([COLS], tl.float32)
    for tile in range(TILES):
        row = (tl.program_id(1) * TILES + tile) * ROWS + tl.arange(0, ROWS)
        there = row < batch
        keep = there[:, None] & inside[None, :]
        place = logits + row.to(tl.int64)[:, None] * stride + col[None, :]
        z = tl.load(place, mask=keep, other=0.0).to(tl.float32)
        if OFFSET:
            z += added[None, :]
        reference = tl.load(lse + row, mask=there, other=0.0)
        g = tl.exp(z - reference[:, None]) * tl.load(a + row, mask=there, other=0.0)[:, None]
        index = tl.load(target + row, mask=there, other=-1) - start
        g -= tl.where(index[:, None] == col[None, :], tl.load(u + row, mask=there, other=0.0)[:, None], 0.0)
        if SMOOTH:
            g -= tl.load(v + row, mask=there, other=0.0)[:, None] * share[None, :]
        if COLUMNS:
            summed += tl.sum(tl.where(keep, g, 0.0), 0)
        if SHIFT:
            g += tl.load(shift + row, mask=there, other=0.0)[:, None]
        tl.store(place, g.to(logits.dtype.element_ty), mask=keep)
    if COLUMNS:
        tl.store(partial + tl.program_id(1).to(tl.int64) * size + col, summed, mask=inside)
