"""Matrix and cross-entropy of a row in one program: logits live in registers, never in memory.

Per sample with target t, class weights w, smoothing e and logits o = radius P^T z + offset:

    loss = (1-e) w_t (lse - o_t) + e/C sum_c w_c (lse - o_c)
    g_c  = A softmax(o)_c - (1-e) w_t [c = t] - e/C w_c,    A = (1-e) w_t + e/C sum_c w_c.

g sums to zero whatever the options are, so what comes after class i is minus what came up to it, and the gradient is
made in the order of the classes: gz_i = n r_i g_i + r_i sum_{j<=i} g_j. See `rows` for n, r and the units.
"""

import triton
import triton.language as tl

from maxsep.ops.kernels.rows import coefficients


@triton.jit
def _logits(z, column, offset, row_mask, carry, i, k, a, end, HAS_OFFSET: tl.constexpr):
    """Return a tile of logits, -inf beyond the last class, and the carry for the next tile."""
    n, r = coefficients(i, k, a)
    y = tl.load(z + i.to(tl.int64)[None, :] * column, mask=row_mask & (i < end)[None, :]).to(tl.float32)
    y = tl.where(i[None, :] < k, y, 0.0) * r[None, :]
    o = y * (n + 1)[None, :] - (tl.cumsum(y, axis=1) + carry[:, None])
    if HAS_OFFSET:
        o += tl.load(offset + i, mask=i <= k, other=0.0)[None, :]
    return tl.where(i[None, :] <= k, o, float("-inf")), carry + tl.sum(y, axis=1)


@triton.jit
def _weight_of(weight, target, counts, HAS_WEIGHT: tl.constexpr):
    if HAS_WEIGHT:
        return tl.load(weight + target, mask=counts, other=0.0)
    return counts.to(tl.float32)


@triton.jit
def _weight_of_all(weights, k, HAS_WEIGHT: tl.constexpr):
    if HAS_WEIGHT:
        return tl.load(weights)
    return k + 1.0


@triton.jit(do_not_specialize=["rows", "k", "end", "ignore"])
def forward(
    z, target, weight, weights, offset, loss, lse, rows, k, a, z_row, z_column, end, smoothing, ignore,
    ALIGN: tl.constexpr, END_ALIGN: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_OFFSET: tl.constexpr,
    SMOOTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    z += (row * z_row * ALIGN)[:, None]
    t = tl.load(target + row, mask=inside, other=0)
    counts = (t != ignore) & (t >= 0) & (t <= k)
    carry = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    own = tl.zeros([ROWS], tl.float32)
    all_of_them = tl.zeros([ROWS], tl.float32)
    for start in range(0, k + 1, BLOCK):
        i = start + tl.arange(0, BLOCK)
        o, carry = _logits(z, z_column, offset, inside[:, None], carry, i, k, a, end * END_ALIGN, HAS_OFFSET)
        higher = tl.maximum(top, tl.max(o, axis=1))
        level = tl.where(higher == float("-inf"), 0.0, higher)  # an offset may rule out all classes of a tile
        mass = mass * tl.exp(top - level) + tl.sum(tl.exp(o - level[:, None]), axis=1)
        top = higher
        own += tl.sum(tl.where(i[None, :] == t[:, None], o, 0.0), axis=1)
        if SMOOTH:
            w = tl.where(i <= k, 1.0, 0.0)
            if HAS_WEIGHT:
                w = tl.load(weight + i, mask=i <= k, other=0.0)
            all_of_them += tl.sum(w[None, :] * tl.where(i[None, :] <= k, o, 0.0), axis=1)
    log_sum = top + tl.log(mass)
    value = (1 - smoothing) * _weight_of(weight, t, counts, HAS_WEIGHT) * (log_sum - own)
    if SMOOTH:
        value += smoothing / (k + 1) * (_weight_of_all(weights, k, HAS_WEIGHT) * log_sum - all_of_them)
    value = tl.where(counts, value, tl.where(t == ignore, 0.0, float("nan")))  # no such class: not a number
    tl.store(loss + row, value, mask=inside)
    tl.store(lse + row, log_sum, mask=inside)


@triton.jit(do_not_specialize=["rows", "k", "ignore"])
def total(
    loss, target, weight, result, factor, rows, k, ignore,
    MEAN: tl.constexpr, HAS_WEIGHT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the reduced loss and what the gradient of every row is multiplied with."""
    value = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.float32)
    for start in range(0, rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        value += tl.load(loss + row, mask=row < rows, other=0.0)
        if MEAN:
            t = tl.load(target + row, mask=row < rows, other=ignore)
            count += _weight_of(weight, t, (t != ignore) & (t >= 0) & (t <= k), HAS_WEIGHT)
    scale = 1.0
    if MEAN:
        scale = 1.0 / tl.sum(count)
    tl.store(result, tl.sum(value) * scale)
    tl.store(factor, scale)


@triton.jit(do_not_specialize=["rows", "k", "end", "ignore", "out_end"])
def backward(
    z, target, weight, weights, offset, lse, scale, upstream, out, rows, k, a, z_row, z_column, end, smoothing, ignore,
    out_row, out_end,
    ALIGN: tl.constexpr, END_ALIGN: tl.constexpr, OUT_ALIGN: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_OFFSET: tl.constexpr, SMOOTH: tl.constexpr, PER_ROW: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    z += (row * z_row * ALIGN)[:, None]
    out += (row * out_row * OUT_ALIGN)[:, None]
    t = tl.load(target + row, mask=inside, other=0)
    counts = (t != ignore) & (t >= 0) & (t <= k)
    log_sum = tl.load(lse + row, mask=inside, other=0.0)
    if PER_ROW:
        factor = tl.load(upstream + row, mask=inside, other=0.0)
    else:
        factor = (tl.load(upstream) * tl.load(scale)).to(tl.float32) + tl.zeros([ROWS], tl.float32)
    factor = tl.where(counts, factor, tl.where(t == ignore, 0.0, float("nan")))
    hit = (1 - smoothing) * _weight_of(weight, t, counts, HAS_WEIGHT)
    softmax_part = hit
    if SMOOTH:
        softmax_part += smoothing / (k + 1) * _weight_of_all(weights, k, HAS_WEIGHT)
    carry = tl.zeros([ROWS], tl.float32)
    before = tl.zeros([ROWS], tl.float32)
    for start in range(0, k + 1, BLOCK):
        i = start + tl.arange(0, BLOCK)
        o, carry = _logits(z, z_column, offset, inside[:, None], carry, i, k, a, end * END_ALIGN, HAS_OFFSET)
        g = softmax_part[:, None] * tl.exp(o - log_sum[:, None]) - tl.where(i[None, :] == t[:, None], hit[:, None], 0.0)
        if SMOOTH:
            w = tl.where(i <= k, 1.0, 0.0)
            if HAS_WEIGHT:
                w = tl.load(weight + i, mask=i <= k, other=0.0)
            g -= smoothing / (k + 1) * w[None, :]
        n, r = coefficients(i, k, a)
        gz = r[None, :] * (n[None, :] * g + tl.cumsum(g, axis=1) + before[:, None]) * factor[:, None]
        gz = tl.where(i[None, :] < k, gz, 0.0)  # padding that is written along
        before += tl.sum(g, axis=1)
        out_mask = inside[:, None] & (i < out_end * OUT_ALIGN)[None, :]
        tl.store(out + i[None, :], gz.to(out.dtype.element_ty), mask=out_mask)
