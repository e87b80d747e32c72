"""P_H^T and P_H of the Householder basis along the second dimension of a matrix of any strides, by one sum a row.

    forward   o_i = a (x_i - c S),  o_k = -a d S,    S = sum_{i<k} x_i
    adjoint   x_i = a (g_i - T),                     T = c sum_{i<k} g_i + d g_k

A row that fits in the registers is read once (WHOLE). A longer one is read twice, since nothing can be written before
everything has been summed; the second time backwards, because the end of the row is still in the cache. For few long
rows several programs share a row: `partial_sums` (in `rows`) first gives every chunk its sum. Sums are made in float32,
always in the same order.
"""

import triton
import triton.language as tl


@triton.jit
def _write(out, v, mask, total, mean, i, k, a, d, LAST: tl.constexpr, ADJOINT: tl.constexpr):
    o = a * (v - mean[:, None])
    if LAST:  # the last class of a result, or the padding of a gradient
        o = tl.where(i[None, :] < k, o, 0.0 if ADJOINT else (-a * d * total)[:, None])
    tl.store(out, o.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["k", "x_end", "out_end"])
def reflect(
    x, out, partial, rows, k, a, c, d, x_row, x_column, x_end, out_row, out_column, out_end, span, chunks,
    X_ALIGN: tl.constexpr, END_ALIGN: tl.constexpr, OUT_ALIGN: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, WHOLE: tl.constexpr, ADJOINT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    chunk = tl.program_id(1)
    if ADJOINT:
        last = x + row * x_row * X_ALIGN + k.to(tl.int64) * x_column
        tail = tl.load(last, mask=inside, other=0.0).to(tl.float32) * d
    x += (row * x_row * X_ALIGN)[:, None]
    out += (row * out_row * OUT_ALIGN)[:, None]
    first = chunk * span
    full = 0 if WHOLE else first + (tl.minimum(first + span, k) - first) // BLOCK * BLOCK
    row_mask = None if ROWS == 1 else inside[:, None]
    i = full + tl.arange(0, BLOCK)
    wide = i.to(tl.int64)[None, :]
    mask = inside[:, None] & (i < x_end * END_ALIGN)[None, :]
    out_mask = inside[:, None] & (i < out_end * OUT_ALIGN)[None, :]
    if CHUNKS > 1:
        other = tl.arange(0, CHUNKS)
        place = partial + row[:, None] * chunks + other[None, :]
        total = tl.sum(tl.load(place, mask=inside[:, None] & (other < chunks)[None, :], other=0.0), axis=1)
        mask &= chunk == chunks - 1
        out_mask &= chunk == chunks - 1
        v = tl.load(x + wide * x_column, mask=mask, other=0.0).to(tl.float32)
    else:
        v = tl.load(x + wide * x_column, mask=mask, other=0.0).to(tl.float32)
        sums = tl.where(i[None, :] < k, v, 0.0)  # padding may have been read along
        if not WHOLE:
            for start in range(0, full, BLOCK):
                j = (start + tl.arange(0, BLOCK)).to(tl.int64)[None, :]
                sums += tl.load(x + j * x_column, mask=row_mask).to(tl.float32)
        total = tl.sum(sums, axis=1)
    mean = total * c
    if ADJOINT:
        mean += tail
    _write(out + wide * out_column, v, out_mask, total, mean, i, k, a, d, True, ADJOINT)
    if not WHOLE:
        for done in range(0, full - first, BLOCK):
            i_full = full - BLOCK - done + tl.arange(0, BLOCK)
            j = i_full.to(tl.int64)[None, :]
            u = tl.load(x + j * x_column, mask=row_mask).to(tl.float32)
            _write(out + j * out_column, u, row_mask, total, mean, i_full, k, a, d, False, ADJOINT)
