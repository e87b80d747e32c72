"""What the streamed loss does for every sample beside its chunks: a few numbers each, in one launch instead of many.

`ops/fused/torch_form.py` and `householder.py` say what they compute. A program takes ROWS samples.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["batch", "parts"])
def merge_parts(
    most, sums, target_logit, total, last, target, share, nll, lse, summed, k, batch, parts,
    LAST: tl.constexpr, TOTAL: tl.constexpr, WEIGHT: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Merge what `parts` programs have seen, and class k if it has logits of its own: nll, log-sum-exp, weighted sum.

    PARTS of them are on their way at once: a small batch was split among hundreds.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < batch
    m = tl.full([ROWS], -float("inf"), tl.float32)
    if LAST:
        z = tl.load(last + row, mask=there, other=0.0)
        m = z
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        keep = (part < parts)[:, None] & there[None, :]
        place = part[:, None] * batch + row[None, :]  # parts are few where a batch is large
        m = tl.maximum(m, tl.max(tl.load(most + place, mask=keep, other=-float("inf")), 0))
    # the difference of two infinities is none: with every logit at -inf, any finite reference will do
    reference = tl.where(m == -float("inf"), 0.0, m)
    mass = tl.zeros([ROWS], tl.float32)
    own = tl.zeros([ROWS], tl.float32)
    weighed = tl.zeros([ROWS], tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        keep = (part < parts)[:, None] & there[None, :]
        place = part[:, None] * batch + row[None, :]
        seen = tl.load(most + place, mask=keep, other=-float("inf"))
        mass += tl.sum(tl.load(sums + place, mask=keep, other=0.0) * tl.exp(seen - reference[None, :]), 0)
        own += tl.sum(tl.load(target_logit + place, mask=keep, other=0.0), 0)
        if TOTAL:
            weighed += tl.sum(tl.load(total + place, mask=keep, other=0.0), 0)
    if LAST:
        mass += tl.exp(z - reference)
        own = tl.where(tl.load(target + row, mask=there, other=-1) == k, z, own)
        if TOTAL:
            weighed += z * tl.load(share + k) if WEIGHT else z
    whole = reference + tl.log(tl.where(there, mass, 1.0))
    tl.store(nll + row, whole - own, mask=there)
    tl.store(lse + row, whole, mask=there)
    if TOTAL:
        tl.store(summed + row, weighed, mask=there)


@triton.jit(do_not_specialize=["batch"])
def last_logits(
    x, summed, offset, out, factor, k, batch, width,
    OFFSET: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write the logits of the class without a row: factor x . summed, plus its offset."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < batch
    product = tl.zeros([ROWS, COLS], tl.float32)
    for first in range(0, width, COLS):
        col = first + tl.arange(0, COLS)
        place = row.to(tl.int64)[:, None] * width + col[None, :]
        value = tl.load(x + place, mask=there[:, None] & (col < width)[None, :], other=0.0).to(tl.float32)
        product += value * tl.load(summed + col, mask=col < width, other=0.0)[None, :]
    z = tl.sum(product, 1) * factor
    if OFFSET:
        z += tl.load(offset + k)
    tl.store(out + row, z, mask=there)


@triton.jit(do_not_specialize=["batch"])
def last_gradients(
    last, lse, a, u, v, share, target, gradient, shift, reach, k, batch,
    SMOOTH: tl.constexpr, WEIGHT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the gradient at the logits of class k, and reach times it: what it adds to that of every other."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < batch
    z = tl.load(last + row, mask=there, other=0.0)
    g = tl.load(a + row, mask=there, other=0.0) * tl.exp(z - tl.load(lse + row, mask=there, other=0.0))
    is_target = tl.load(target + row, mask=there, other=-1) == k
    g -= tl.where(is_target, tl.load(u + row, mask=there, other=0.0), 0.0)
    if SMOOTH:
        own = tl.load(v + row, mask=there, other=0.0)
        g -= own * tl.load(share + k) if WEIGHT else own
    tl.store(gradient + row, g, mask=there)
    tl.store(shift + row, g * reach, mask=there)


@triton.jit(do_not_specialize=["k", "ignored", "batch"])
def reduce_rows(
    nll, smooth, target, weight, loss, share, smoothing, k, ignored, batch,
    MEAN: tl.constexpr, SMOOTH: tl.constexpr, WEIGHT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the mean or the sum over samples, and what the gradient of each is multiplied with."""
    summed = tl.zeros([ROWS], tl.float32)
    counted = tl.zeros([ROWS], tl.float32)
    for first in range(0, batch, ROWS):
        row = first + tl.arange(0, ROWS)
        there = row < batch
        counts, known, own = _counts(target, weight, row, there, k, ignored, WEIGHT)
        value = tl.load(nll + row, mask=there, other=0.0) * own
        if SMOOTH:
            value = (1 - smoothing) * value + smoothing * tl.load(smooth + row, mask=there, other=0.0)
        summed += tl.where(counts, tl.where(known, value, float("nan")), 0.0)
        counted += tl.where(counts, own, 0.0)
    factor = 1.0
    if MEAN:
        total = tl.sum(counted)
        factor = tl.where(total == 0, 0.0, 1.0 / tl.where(total == 0, 1.0, total))
        tl.store(loss, tl.where(total == 0, float("nan"), tl.sum(summed) * factor))
    else:
        tl.store(loss, tl.sum(summed))
    tl.store(share, factor)


@triton.jit(do_not_specialize=["k", "ignored", "batch"])
def spread_rows(
    upstream, share, target, weight, u, v, smoothing, k, ignored, batch,
    SMOOTH: tl.constexpr, WEIGHT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of nll and of what smoothing adds, nothing for samples that do not count."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < batch
    counts, known, own = _counts(target, weight, row, there, k, ignored, WEIGHT)
    g = tl.where(counts & known, tl.load(upstream) * tl.load(share), 0.0)
    if SMOOTH:
        tl.store(v + row, g * smoothing, mask=there)
        g *= 1 - smoothing
    tl.store(u + row, g * own, mask=there)


@triton.jit
def _counts(target, weight, row, there, k, ignored, WEIGHT: tl.constexpr):
    """Return whether samples count, whether their labels are classes, and the weights of these classes."""
    label = tl.load(target + row, mask=there, other=0)
    known = (label >= 0) & (label <= k)
    own = tl.full(row.shape, 1.0, tl.float32)
    if WEIGHT:
        own = tl.load(weight + label, mask=there & known, other=0.0)
    return there & (label != ignored), known, own
