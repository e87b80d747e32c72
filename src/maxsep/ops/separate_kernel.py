"""The Triton kernel of `separate` and its adjoint: a scan along the second dimension of a matrix of any strides.

With n = k - i the classes to the right of the diagonal and r_i = a / sqrt(n (n+1)), where a carries the radius,

    separate   o_i = n r_i x_i - sum_{j<i} r_j x_j = (n+1) y_i - sum_{j<=i} y_j,    y_i = r_i x_i
    adjoint    x_i = r_i (n g_i - sum_{j>i} g_j)   = r_i ((n+1) g_i - sum_{j>=i} g_j).

Coefficients are computed, not loaded: two floats per element would cost more than the data does in bfloat16. In float32
n is exact up to 2^24, and n (n+1) does not overflow.

The adjoint visits the blocks from the right. In most blocks the sum of later classes is the block's total minus the
prefix, because r_i is small there; in the last two blocks that would cancel, and a true reverse scan is used.
For few long rows several programs share a row: `partial_sums` gives the sum of every program's span, and the caller
turns them into carries by a cumulative sum.
"""

import triton
import triton.language as tl


@triton.jit
def coefficients(i, k, a):
    """Return n and r of class i; the last class has no coefficient, and its x is zero."""
    n = tl.maximum(k - i, 1).to(tl.float32)
    return n, a * tl.rsqrt(n * n + n)


@triton.jit
def separate_block(x, carry, i, k, a):
    """Return the logits of a block of outputs x (ROWS, BLOCK), and the carry for the next block."""
    n, r = coefficients(i, k, a)
    y = x * r[None, :]
    return y * (n + 1)[None, :] - (tl.cumsum(y, axis=1) + carry[:, None]), carry + tl.sum(y, axis=1)


@triton.jit
def adjoint_block(g, carry, i, k, a, REVERSE: tl.constexpr):
    """Return radius * P g of a block of gradients g (ROWS, BLOCK), and the carry for the block before it."""
    n, r = coefficients(i, k, a)
    total = carry + tl.sum(g, axis=1)
    if REVERSE:
        x = (n + 1)[None, :] * g - (tl.cumsum(g, axis=1, reverse=True) + carry[:, None])
    else:
        x = n[None, :] * g + (tl.cumsum(g, axis=1) - total[:, None])
    return x * r[None, :], total


@triton.jit(do_not_specialize=["k", "splits"])
def partial_sums(
    x, carries, rows, k, a, x_row, x_col, out_row, out_col, span, splits,
    ADJOINT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the sum of each program's span behind the slot of the program, in the order of the scan."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    width = k + 1 if ADJOINT else k
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(split * span, tl.minimum((split + 1) * span, width), BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = (row < rows)[:, None] & (i < width)[None, :]
        v = tl.load(x + row[:, None] * x_row + i.to(tl.int64)[None, :] * x_col, mask=mask, other=0.0).to(tl.float32)
        if not ADJOINT:
            v *= coefficients(i, k, a)[1][None, :]
        total += v
    slot = splits - 1 - split if ADJOINT else split
    place = carries + row * (splits + 1) + slot
    tl.store(place + 1, tl.sum(total, axis=1), mask=row < rows)
    if slot == 0:
        tl.store(place, tl.zeros([ROWS], tl.float32), mask=row < rows)


@triton.jit
def _block(
    x, out, carry, row, rows, start, k, a, strides,
    ADJOINT: tl.constexpr, LAST: tl.constexpr, REVERSE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Transform one block; only the last one masks classes, so that all others load wide words."""
    x_row, x_col, out_row, out_col = strides
    i = start + tl.arange(0, BLOCK)
    wide = i.to(tl.int64)[None, :]
    x_mask = None if ROWS == 1 else (row < rows)[:, None]
    out_mask = x_mask
    if LAST:
        x_mask = (row < rows)[:, None] & ((i <= k) if ADJOINT else (i < k))[None, :]
        out_mask = (row < rows)[:, None] & ((i < k) if ADJOINT else (i <= k))[None, :]
    v = tl.load(x + row[:, None] * x_row + wide * x_col, mask=x_mask, other=0.0 if LAST or ROWS > 1 else None)
    if ADJOINT:
        result, carry = adjoint_block(v.to(tl.float32), carry, i, k, a, REVERSE)
    else:
        result, carry = separate_block(v.to(tl.float32), carry, i, k, a)
    tl.store(out + row[:, None] * out_row + wide * out_col, result.to(out.dtype.element_ty), mask=out_mask)
    return carry


@triton.jit(do_not_specialize=["k", "splits"])
def separate_rows(
    x, out, carries, rows, k, a, x_row, x_col, out_row, out_col, span, splits,
    ADJOINT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Transform ROWS rows, or the program's span of their classes."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    strides = (x_row, x_col, out_row, out_col)
    carry = tl.zeros([ROWS], tl.float32)
    if splits > 1:
        slot = splits - 1 - split if ADJOINT else split
        carry = tl.load(carries + row * (splits + 1) + slot, mask=row < rows, other=0.0).to(tl.float32)
    first = split * span
    full = first + (tl.minimum(first + span, k) - first) // BLOCK * BLOCK  # end of the unmasked blocks
    if ADJOINT:
        if split == splits - 1:
            carry = _block(x, out, carry, row, rows, full, k, a, strides, True, True, True, ROWS, BLOCK)
        if full > first:
            full -= BLOCK
            carry = _block(x, out, carry, row, rows, full, k, a, strides, True, False, True, ROWS, BLOCK)
        for done in tl.range(0, full - first, BLOCK, num_stages=STAGES):
            start = full - BLOCK - done
            carry = _block(x, out, carry, row, rows, start, k, a, strides, True, False, False, ROWS, BLOCK)
    else:
        for start in tl.range(first, full, BLOCK, num_stages=STAGES):
            carry = _block(x, out, carry, row, rows, start, k, a, strides, False, False, False, ROWS, BLOCK)
        if split == splits - 1:
            _block(x, out, carry, row, rows, full, k, a, strides, False, True, False, ROWS, BLOCK)
