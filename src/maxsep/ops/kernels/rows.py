"""P^T and P along the second dimension of a matrix of any strides, by a scan that reads and writes everything once.

With n = k - i the classes to the right of the diagonal and r_i = a / sqrt(n (n+1)), where a carries the radius,

    forward   o_i = n r_i x_i - sum_{j<i} r_j x_j = (n+1) y_i - sum_{j<=i} y_j,    y_i = r_i x_i
    adjoint   x_i = r_i (n g_i - sum_{j>i} g_j)   = r_i ((n+1) g_i - sum_{j>=i} g_j).

Coefficients are computed, not read: two floats per element would cost more than the data does in bfloat16. In float32
n is exact up to 2^24 and n (n+1) does not overflow; beyond, its rounding is that of any other product.

The adjoint goes through the tiles from the right. Where at least a tile of classes is left, the sum of later ones may
be what the tile holds less what came before, since r_i is smaller than the rounding it costs is large; near the end of
the row that would cancel, and the last two tiles are summed backwards, which costs ten times the shuffles.

A row is a sequence of full tiles, which need no mask and so are loaded 16 bytes at a time, and one last tile. For few
long rows several programs share a row: `partial_sums` first gives every chunk its sum, and each program adds up those
before (forward) or after (adjoint) its own, always in the same order.
"""

import triton
import triton.language as tl


@triton.jit
def coefficients(i, k, a):
    n = tl.maximum(k - i, 1).to(tl.float32)  # the last class has no coefficient; its x is zero
    return n, a * tl.rsqrt(n * n + n)


@triton.jit
def _forward_tile(x, out, x_mask, out_mask, carry, i, k, a, LAST: tl.constexpr):
    n, r = coefficients(i, k, a)
    y = tl.load(x, mask=x_mask).to(tl.float32)
    if LAST:
        y = tl.where(i[None, :] < k, y, 0.0)  # padding that was read along
    y *= r[None, :]
    o = y * (n + 1)[None, :] - (tl.cumsum(y, axis=1) + carry[:, None])
    tl.store(out, o.to(out.dtype.element_ty), mask=out_mask)
    return carry + tl.sum(y, axis=1)


@triton.jit
def _adjoint_tile(g, out, g_mask, out_mask, carry, i, k, a, LAST: tl.constexpr, REVERSE: tl.constexpr):
    n, r = coefficients(i, k, a)
    v = tl.load(g, mask=g_mask).to(tl.float32)
    if LAST:
        v = tl.where(i[None, :] <= k, v, 0.0)
    total = carry + tl.sum(v, axis=1)
    if REVERSE:
        x = (n + 1)[None, :] * v - (tl.cumsum(v, axis=1, reverse=True) + carry[:, None])
    else:
        x = n[None, :] * v + (tl.cumsum(v, axis=1) - total[:, None])
    x *= r[None, :]
    if LAST:
        x = tl.where(i[None, :] < k, x, 0.0)  # padding that is written along
    tl.store(out, x.to(out.dtype.element_ty), mask=out_mask)
    return total


@triton.jit
def _carry(partial, row, inside, chunk, chunks, REVERSE: tl.constexpr, CHUNKS: tl.constexpr):
    other = tl.arange(0, CHUNKS)
    wanted = (other > chunk) & (other < chunks) if REVERSE else other < chunk
    place = partial + row[:, None] * chunks + other[None, :]
    return tl.sum(tl.load(place, mask=inside[:, None] & wanted[None, :], other=0.0), axis=1)


@triton.jit(do_not_specialize=["width", "k", "x_end"])
def partial_sums(
    x, partial, rows, width, k, a, x_row, x_column, x_end, span, chunks,
    X_ALIGN: tl.constexpr, END_ALIGN: tl.constexpr, WEIGHTED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    chunk = tl.program_id(1)
    x += (row * x_row * X_ALIGN)[:, None]
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(chunk * span, tl.minimum((chunk + 1) * span, width), BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = inside[:, None] & (i < x_end * END_ALIGN)[None, :]
        v = tl.load(x + i.to(tl.int64)[None, :] * x_column, mask=mask, other=0.0).to(tl.float32)
        v = tl.where(i[None, :] < width, v, 0.0)
        if WEIGHTED:
            v *= coefficients(i, k, a)[1][None, :]
        total += v
    tl.store(partial + row * chunks + chunk, tl.sum(total, axis=1), mask=inside)


@triton.jit(do_not_specialize=["k", "x_end", "out_end"])
def forward(
    x, out, partial, rows, k, a, x_row, x_column, x_end, out_row, out_column, out_end, span, chunks,
    X_ALIGN: tl.constexpr, END_ALIGN: tl.constexpr, OUT_ALIGN: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    chunk = tl.program_id(1)
    x += (row * x_row * X_ALIGN)[:, None]
    out += (row * out_row * OUT_ALIGN)[:, None]
    carry = tl.zeros([ROWS], tl.float32)
    if CHUNKS > 1:
        carry = _carry(partial, row, inside, chunk, chunks, False, CHUNKS)
    first = chunk * span
    full = first + (tl.minimum(first + span, k) - first) // BLOCK * BLOCK
    row_mask = None if ROWS == 1 else inside[:, None]
    for start in tl.range(first, full, BLOCK, num_stages=STAGES):
        i = start + tl.arange(0, BLOCK)
        wide = i.to(tl.int64)[None, :]
        carry = _forward_tile(x + wide * x_column, out + wide * out_column, row_mask, row_mask, carry, i, k, a, False)
    if chunk == chunks - 1:
        i = full + tl.arange(0, BLOCK)
        wide = i.to(tl.int64)[None, :]
        x_mask = inside[:, None] & (i < x_end * END_ALIGN)[None, :]
        out_mask = inside[:, None] & (i < out_end * OUT_ALIGN)[None, :]
        _forward_tile(x + wide * x_column, out + wide * out_column, x_mask, out_mask, carry, i, k, a, True)


@triton.jit(do_not_specialize=["k", "g_end", "out_end"])
def adjoint(
    g, out, partial, rows, k, a, g_row, g_column, g_end, out_row, out_column, out_end, span, chunks,
    X_ALIGN: tl.constexpr, END_ALIGN: tl.constexpr, OUT_ALIGN: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    chunk = tl.program_id(1)
    g += (row * g_row * X_ALIGN)[:, None]
    out += (row * out_row * OUT_ALIGN)[:, None]
    carry = tl.zeros([ROWS], tl.float32)
    if CHUNKS > 1:
        carry = _carry(partial, row, inside, chunk, chunks, True, CHUNKS)
    first = chunk * span
    full = first + (tl.minimum(first + span, k) - first) // BLOCK * BLOCK
    if chunk == chunks - 1:
        i = full + tl.arange(0, BLOCK)
        wide = i.to(tl.int64)[None, :]
        g_mask = inside[:, None] & (i < g_end * END_ALIGN)[None, :]
        out_mask = inside[:, None] & (i < out_end * OUT_ALIGN)[None, :]
        carry = _adjoint_tile(
            g + wide * g_column, out + wide * out_column, g_mask, out_mask, carry, i, k, a, True, True
        )
    row_mask = None if ROWS == 1 else inside[:, None]
    if full > first:
        full -= BLOCK
        i = full + tl.arange(0, BLOCK)
        wide = i.to(tl.int64)[None, :]
        carry = _adjoint_tile(
            g + wide * g_column, out + wide * out_column, row_mask, row_mask, carry, i, k, a, False, True
        )
    for done in tl.range(0, full - first, BLOCK, num_stages=STAGES):
        i = full - BLOCK - done + tl.arange(0, BLOCK)
        wide = i.to(tl.int64)[None, :]
        carry = _adjoint_tile(
            g + wide * g_column, out + wide * out_column, row_mask, row_mask, carry, i, k, a, False, False
        )
