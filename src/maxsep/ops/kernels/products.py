r"""Products whose tiles of logits never leave the multiprocessor: log-sum-exp or gradient as their epilogue.

Tiles come through tensor descriptors (the copy engine of Hopper and later). A program keeps one block of samples and
goes through every splits-th tile of classes; the loop over tiles and the loop over features are one flattened loop, so
that the next tile is on its way while this one's exponentials are taken. Two programs share a multiprocessor: the
epilogue of one hides behind the products of the other.

The logits are scale x w^T + offset. With an offset the factor is part of the multiply-add that adds it, otherwise of
the one in the exponential; gradients have it from the factors of their rows. It is no operation of its own.

Exponentials are powers of two, whose factor log2(e) is part of one multiply-add. Looking for the target only in tiles
that hold one, and masking only the last tile, were tried: on an H200 they change neither time by more than 2 %.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["start", "size", "batch", "splits"])
def accumulate_product(
    x, w, offset, weight, target, most, sums, target_logit, total, scale, start, size, batch, splits,
    OFFSET: tl.constexpr, WEIGHT: tl.constexpr, TOTAL: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Online log-sum-exp of ROWS rows of logits over every splits-th tile of classes, into a state of its own.

    What the state holds before the first class is not read.
    """
    first = tl.program_id(0) // splits * ROWS
    split = tl.program_id(0) % splits
    row = first + tl.arange(0, ROWS)
    there = row < batch
    place = split.to(tl.int64) * batch + row
    index = (tl.load(target + row, mask=there, other=-1) - start).to(tl.int32)
    seen = there & (start > 0)
    m = tl.load(most + place, mask=seen, other=-float("inf"))
    mass = tl.load(sums + place, mask=seen, other=0.0)
    own = tl.load(target_logit + place, mask=seen, other=0.0)
    summed = tl.zeros([ROWS], tl.float32)
    unit = 1.0 if OFFSET else scale  # what z lacks of a logit
    for tile in tl.range(split, tl.cdiv(size, COLS), splits, flatten=True):
        z = tl.zeros([ROWS, COLS], tl.float32)
        for inner in range(0, WIDTH, INNER):
            z = tl.dot(x.load([first, inner]), w.load([tile * COLS, inner]).T, z)
        col = tile * COLS + tl.arange(0, COLS)
        inside = col < size
        if OFFSET:
            z = z * scale + tl.load(offset + col, mask=inside, other=0.0)[None, :]
        if TOTAL:
            share = inside.to(tl.float32)
            if WEIGHT:
                share = tl.load(weight + col, mask=inside, other=0.0)
            summed += unit * tl.sum(z * share[None, :], 1)
        own += unit * tl.sum(tl.where(index[:, None] == col[None, :], z, 0.0), 1)
        z = tl.where(inside[None, :], z, -float("inf"))
        new = tl.maximum(m, unit * tl.max(z, 1))
        reference = tl.where(new == -float("inf"), 0.0, new) * LOG2_E
        mass = mass * tl.exp2(m * LOG2_E - reference) + tl.sum(tl.exp2(z * (unit * LOG2_E) - reference[:, None]), 1)
        m = new
    tl.store(most + place, m, mask=there)
    tl.store(sums + place, mass, mask=there)
    tl.store(target_logit + place, own, mask=there)
    if TOTAL:
        tl.store(total + place, tl.load(total + place, mask=seen, other=0.0) + summed, mask=there)


@triton.jit(do_not_specialize=["start", "size", "batch", "splits"])
def gradient_product(
    x, w, out, offset, weight, target, lse, a, u, v, shift, partial, scale, start, size, batch, splits,
    OFFSET: tl.constexpr, WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, SHIFT: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Write scale (a exp(z - lse) - u [j = y] - v w_j + shift), the gradient at x w^T, and unshifted sums of rows."""
    block = tl.program_id(0) // splits
    first = block * ROWS
    row = first + tl.arange(0, ROWS)
    there = row < batch
    index = (tl.load(target + row, mask=there, other=-1) - start).to(tl.int32)
    # samples beyond the batch have no gradient, whatever the offset
    reference = tl.load(lse + row, mask=there, other=float("inf")) * LOG2_E
    factor = tl.load(a + row, mask=there, other=0.0) * scale
    pull = tl.load(u + row, mask=there, other=0.0) * scale
    if SMOOTH:
        smoothed = tl.load(v + row, mask=there, other=0.0) * scale
    if SHIFT:
        moved = tl.load(shift + row, mask=there, other=0.0) * scale
    unit = 1.0 if OFFSET else scale  # what z lacks of a logit
    for tile in tl.range(tl.program_id(0) % splits, tl.cdiv(size, COLS), splits, flatten=True):
        z = tl.zeros([ROWS, COLS], tl.float32)
        for inner in range(0, WIDTH, INNER):
            z = tl.dot(x.load([first, inner]), w.load([tile * COLS, inner]).T, z)
        col = tile * COLS + tl.arange(0, COLS)
        inside = col < size
        if OFFSET:
            z = z * scale + tl.load(offset + col, mask=inside, other=0.0)[None, :]
        g = tl.exp2(z * (unit * LOG2_E) - reference[:, None]) * factor[:, None]
        g -= tl.where(index[:, None] == col[None, :], pull[:, None], 0.0)
        if SMOOTH:
            share = tl.full([COLS], 1.0, tl.float32)
            if WEIGHT:
                share = tl.load(weight + col, mask=inside, other=0.0)
            g -= smoothed[:, None] * share[None, :]
        if COLUMNS:  # before the shift, beside which the gradient of a rare class would be lost
            tl.store(partial + block.to(tl.int64) * size + col, tl.sum(g, 0), mask=inside)
        if SHIFT:
            g += moved[:, None]
        # in two halves, whose copy on the way out is small enough for a second program
        left, right = tl.split(tl.permute(tl.reshape(g, [ROWS, 2, COLS // 2]), [0, 2, 1]))
        out.store([first, tile * COLS], left.to(out.dtype))
        out.store([first, tile * COLS + COLS // 2], right.to(out.dtype))
