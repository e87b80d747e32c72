r"""The products of `products.py` for Hopper, by hand: one program for each processor, and a role for each of its warps.

One warp moves: it sends slices of W' (128 classes x 64 features) through a ring in shared memory. Two groups of four
warps multiply: each has 64 of the 128 samples of a block, and both go through the same slices, so that a slice is read
from the L2 cache once for 128 samples, and x once for all its tiles. The groups take turns of TURN slices, a whole tile
if the ring has room for it: the exponentials of one hide behind the products of the other.

The first HELD slices of the samples' features stay in registers, and have come through the ring (`x`); the others stay
in shared memory, in halves for the groups (`halves`). The more are held, the longer is the ring.

On an H200, 4,096 samples of 512 features and 14,336 classes: 775 TFLOP/s with the log-sum-exp, 733 with the gradient,
beside 638 and 572 of `products.py` and 641 of cuBLAS without either (results/product_forms_gpu.json). In a
run of which no record was kept it was 624 and 629 without turns, 690 and 688 with turns of four slices, and at most 681
and 562 with all samples in shared memory. Numbers of classes cost time: the log-sum-exp with an offset has 641.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

LOG2_E = gl.constexpr(1.4426950408889634)
HALF = gl.constexpr(64)  # samples of a group: as many as one instruction multiplies
ROWS = gl.constexpr(128)
COLS = gl.constexpr(128)
SLICE = gl.constexpr(64)  # features in a row of shared memory: 128 bytes, the widest swizzle
GROUP_REGISTERS = gl.constexpr(240)
MOVER_REGISTERS = gl.constexpr(24)


@gluon.jit(do_not_specialize=["start", "size", "batch", "splits"])
def accumulate_product(
    x, halves, w, offset, weight, target, most, sums, target_logit, total, scale, start, size, batch, splits,
    OFFSET: gl.constexpr, WEIGHT: gl.constexpr, TOTAL: gl.constexpr,
    WIDTH: gl.constexpr, STAGES: gl.constexpr, HELD: gl.constexpr, TURN: gl.constexpr,
):  # fmt: skip
    """Online log-sum-exp of 128 rows of logits over every splits-th tile of classes, into a state of its own.

    What the state holds before the first class is not read.
    """
    ring, kept, turns = _shared_memory(halves, w, WIDTH, STAGES, HELD)
    state = (most, sums, target_logit, total)
    given = (ring, kept, turns, offset, weight, target, state, scale, start, size, batch, splits)
    gl.warp_specialize(
        [
            (_accumulate, (0, given, OFFSET, WEIGHT, TOTAL, WIDTH, HELD, TURN)),
            (_accumulate, (1, given, OFFSET, WEIGHT, TOTAL, WIDTH, HELD, TURN)),
            (_move, (x, halves, w, ring, kept, size, splits, WIDTH, HELD)),
        ],
        [4, 1],
        [GROUP_REGISTERS, MOVER_REGISTERS],
    )


@gluon.jit(do_not_specialize=["start", "size", "batch", "splits"])
def gradient_product(
    x, halves, w, out, offset, weight, target, lse, a, u, v, shift, partial, scale, start, size, batch, splits,
    OFFSET: gl.constexpr, WEIGHT: gl.constexpr, SMOOTH: gl.constexpr, SHIFT: gl.constexpr, COLUMNS: gl.constexpr,
    WIDTH: gl.constexpr, STAGES: gl.constexpr, HELD: gl.constexpr, TURN: gl.constexpr,
):  # fmt: skip
    """Write scale (a exp(z - lse) - u [j = y] - v w_j + shift), the gradient at x w^T, and unshifted sums of rows.

    The sums are of the 64 rows of a group each.
    """
    ring, kept, turns = _shared_memory(halves, w, WIDTH, STAGES, HELD)
    results = gl.allocate_shared_memory(out.dtype, [2, HALF, COLS], out.layout)
    factors = (lse, a, u, v, shift)
    given = (
        ring, kept, turns, results, out, offset, weight, target, factors, partial, scale, start, size, batch, splits,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_differentiate, (0, given, OFFSET, WEIGHT, SMOOTH, SHIFT, COLUMNS, WIDTH, HELD, TURN)),
            (_differentiate, (1, given, OFFSET, WEIGHT, SMOOTH, SHIFT, COLUMNS, WIDTH, HELD, TURN)),
            (_move, (x, halves, w, ring, kept, size, splits, WIDTH, HELD)),
        ],
        [4, 1],
        [GROUP_REGISTERS, MOVER_REGISTERS],
    )


@gluon.jit
def _accumulate(
    GROUP: gl.constexpr, given, OFFSET: gl.constexpr, WEIGHT: gl.constexpr, TOTAL: gl.constexpr,
    WIDTH: gl.constexpr, HELD: gl.constexpr, TURN: gl.constexpr,
):  # fmt: skip
    """Take the logits of 64 samples into their state, tile by tile."""
    ring, kept, turns, offset, weight, target, state, scale, start, size, batch, splits = given
    most, sums, target_logit, total = state
    LAYOUT: gl.constexpr = _accumulators()
    by_row: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    column = gl.arange(0, COLS, layout=gl.SliceLayout(0, LAYOUT))
    unit = 1.0 if OFFSET else scale  # what z lacks of a logit
    split = gl.program_id(0) % splits
    row = gl.program_id(0) // splits * ROWS + GROUP * HALF + gl.arange(0, HALF, layout=by_row)
    there = row < batch
    place = split.to(gl.int64) * batch + row
    index = (gl.load(target + row, mask=there, other=-1) - start).to(gl.int32)
    seen = there & (start > 0)
    m = gl.load(most + place, mask=seen, other=-float("inf"))
    mass = gl.load(sums + place, mask=seen, other=0.0)
    own = gl.load(target_logit + place, mask=seen, other=0.0)
    summed = gl.zeros([HALF], gl.float32, layout=by_row)
    samples, slot = _samples(GROUP, ring, kept, WIDTH, HELD)
    turn = 0
    for at in range(split * COLS, size, splits * COLS):
        z, slot, turn = _product(GROUP, samples, ring, turns, slot, turn, TURN)
        if OFFSET:
            z = z * scale + _of_classes(offset, at, column, size)[None, :]
        if TOTAL:  # classes beyond the last are rows of zeros, and their logits zero
            share = z
            if WEIGHT:
                share = z * _of_classes(weight, at, column, size)[None, :]
            summed += unit * gl.sum(share, 1)
        own += unit * gl.sum(gl.where(_is_target(index - at, column), z, 0.0), 1)
        if at + COLS > size:
            z = gl.where(_before(size - at, column)[None, :], z, -float("inf"))
        new = gl.maximum(m, unit * gl.max(z, 1))
        reference = gl.where(new == -float("inf"), 0.0, new) * LOG2_E
        mass = mass * gl.exp2(m * LOG2_E - reference)
        mass += gl.sum(gl.exp2(z * (unit * LOG2_E) - reference[:, None]), 1)
        m = new
    gl.store(most + place, m, mask=there)
    gl.store(sums + place, mass, mask=there)
    gl.store(target_logit + place, own, mask=there)
    if TOTAL:
        gl.store(total + place, gl.load(total + place, mask=seen, other=0.0) + summed, mask=there)


@gluon.jit
def _differentiate(
    GROUP: gl.constexpr, given,
    OFFSET: gl.constexpr, WEIGHT: gl.constexpr, SMOOTH: gl.constexpr, SHIFT: gl.constexpr, COLUMNS: gl.constexpr,
    WIDTH: gl.constexpr, HELD: gl.constexpr, TURN: gl.constexpr,
):  # fmt: skip
    """Write the gradient at the logits of 64 samples, tile by tile: one is on its way out while the next is made."""
    ring, kept, turns, results, out, offset, weight, target, factors, partial, scale, start, size, batch, splits = given
    lse, a, u, v, shift = factors
    LAYOUT: gl.constexpr = _accumulators()
    column = gl.arange(0, COLS, layout=gl.SliceLayout(0, LAYOUT))
    unit = 1.0 if OFFSET else scale  # what z lacks of a logit
    result = results.index(GROUP)
    block = gl.program_id(0) // splits
    first = block * ROWS + GROUP * HALF
    row = first + gl.arange(0, HALF, layout=gl.SliceLayout(1, LAYOUT))
    there = row < batch
    index = (gl.load(target + row, mask=there, other=-1) - start).to(gl.int32)
    # samples beyond the batch have no gradient, whatever the offset
    reference = gl.load(lse + row, mask=there, other=float("inf")) * LOG2_E
    factor = gl.load(a + row, mask=there, other=0.0) * scale
    pull = gl.load(u + row, mask=there, other=0.0) * scale
    if SMOOTH:
        smoothed = gl.load(v + row, mask=there, other=0.0) * scale
    if SHIFT:
        moved = gl.load(shift + row, mask=there, other=0.0) * scale
    samples, slot = _samples(GROUP, ring, kept, WIDTH, HELD)
    turn = 0
    for at in range(gl.program_id(0) % splits * COLS, size, splits * COLS):
        if OFFSET:  # on its way while the product is taken
            added = _of_classes(offset, at, column, size)
        z, slot, turn = _product(GROUP, samples, ring, turns, slot, turn, TURN)
        if OFFSET:
            z = z * scale + added[None, :]
        g = gl.exp2(z * (unit * LOG2_E) - reference[:, None]) * factor[:, None]
        g -= gl.where(_is_target(index - at, column), pull[:, None], 0.0)
        if SMOOTH:
            g -= _shares(smoothed, weight, at, column, size, WEIGHT)
        if COLUMNS:  # before the shift, beside which the gradient of a rare class would be lost
            line = partial + (block * 2 + GROUP).to(gl.int64) * size + at
            gl.store(line + column % 8 + column // 8 * 8, gl.sum(g, 0), mask=_before(size - at, column))
        if SHIFT:
            g += moved[:, None]
        tma.store_wait(pendings=0)  # until the tile before has been read
        result.store(g.to(out.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out, [first, at], result)
    tma.store_wait(pendings=0)


@gluon.jit
def _move(x, halves, w, ring, kept, size, splits, WIDTH: gl.constexpr, HELD: gl.constexpr):
    """Send the samples of a program and its tiles of classes, slice by slice."""
    first = gl.program_id(0) // splits * ROWS
    at = gl.program_id(0) % splits * COLS
    slot = 0
    for k in gl.static_range(HELD):
        slot = _send(x, [first, k * SLICE], ring, slot, 0)
    if HELD < WIDTH // SLICE and at < size:
        for k in gl.static_range(WIDTH // SLICE):
            slot = _send_both(halves, first, w, at, k, ring, kept, slot, HELD)
        at += splits * COLS
    for after in range(at, size, splits * COLS):
        for k in gl.static_range(WIDTH // SLICE):
            slot = _send(w, [after, k * SLICE], ring, slot, 0)


@gluon.jit
def _send(source, place, ring, slot, MORE: gl.constexpr):
    """Send a slice through the ring, with a barrier that waits for MORE bytes too, and return the slot after it."""
    slices, full, empty = ring
    STAGES: gl.constexpr = slices.shape[0]
    stage = slot % STAGES
    mbarrier.wait(empty.index(stage), (slot // STAGES & 1) ^ 1)
    mbarrier.expect(full.index(stage), source.block_type.nbytes + MORE)
    tma.async_copy_global_to_shared(source, place, full.index(stage), slices.index(stage))
    return slot + 1


@gluon.jit
def _send_both(halves, first, w, at, K: gl.constexpr, ring, kept, slot, HELD: gl.constexpr):
    """Send slice K of the first tile, and with it that of the samples, unless it is held, to where they stay.

    So products start with the first slice of all. Its barrier counts the bytes of both.
    """
    stage = slot % ring[0].shape[0]
    if K < HELD:
        slot = _send(w, [at, K * SLICE], ring, slot, 0)
    else:
        slot = _send(w, [at, K * SLICE], ring, slot, 2 * halves.block_type.nbytes)
        for group in gl.static_range(2):
            place = kept.index(2 * (K - HELD) + group)
            tma.async_copy_global_to_shared(halves, [first + group * HALF, K * SLICE], ring[1].index(stage), place)
    return slot


@gluon.jit
def _samples(GROUP: gl.constexpr, ring, kept, WIDTH: gl.constexpr, HELD: gl.constexpr):
    """Return the samples of a group, a factor of products for each slice of features, and the slot after those held.

    Those that are not held are there when the first slices of classes are.
    """
    slices, full, empty = ring
    operand: gl.constexpr = gl.DotOperandLayout(0, _accumulators(), 2)
    samples = ()
    slot = 0
    for k in gl.static_range(WIDTH // SLICE):
        if k < HELD:
            stage = slot % slices.shape[0]
            mbarrier.wait(full.index(stage), slot // slices.shape[0] & 1)
            samples += (slices.index(stage).slice(GROUP * HALF, HALF).load(operand),)
            fence_async_shared()  # before the copy engine writes there again
            mbarrier.arrive(empty.index(stage))
            slot += 1
        else:
            samples += (kept.index(2 * (k - HELD) + GROUP),)
    return samples, slot


@gluon.jit
def _product(GROUP: gl.constexpr, samples, ring, turns, slot, turn, TURN: gl.constexpr):
    """Return the product of 64 samples and the next tile of classes, the slot after its slices and the next turn.

    A slice is given back when the one after it is under way, so that the matrix unit always has the next.
    """
    slices, full, _ = ring
    STAGES: gl.constexpr = slices.shape[0]
    gl.static_assert(len(samples) % TURN == 0 and TURN <= STAGES, "the groups would wait for each other for ever")
    z = gl.zeros([HALF, COLS], gl.float32, layout=_accumulators())
    for k in gl.static_range(len(samples)):
        if k % TURN == 0:
            if k > 0:  # nothing is lost by waiting for the end: it is the turn of the other
                z = _give_back(z, 0, ring, slot - 1)
            mbarrier.wait(turns.index(GROUP), (turn & 1) ^ (1 - GROUP))  # the first turn of all is that of group 0
        stage = slot % STAGES
        mbarrier.wait(full.index(stage), slot // STAGES & 1)
        z = warpgroup_mma(samples[k], slices.index(stage).permute((1, 0)), z, use_acc=k > 0, is_async=True)
        if k % TURN > 0:
            z = _give_back(z, 1, ring, slot - 1)
        slot += 1
        if (k + 1) % TURN == 0:
            mbarrier.arrive(turns.index(1 - GROUP))
            turn += 1
    return _give_back(z, 0, ring, slot - 1), slot, turn


@gluon.jit
def _give_back(z, PENDING: gl.constexpr, ring, slot):
    """Wait until all but PENDING products of slices are done, and give the slot of the last of them back."""
    z = warpgroup_mma_wait(PENDING, deps=[z])
    mbarrier.arrive(ring[2].index(slot % ring[0].shape[0]))
    return z


# A thread has columns c + 8 i of a tile, with its own c < 8. Whatever follows from columns is taken from c and from
# constants apart: otherwise the compiler keeps registers for each column, and there are too few.


@gluon.jit
def _is_target(index, column):
    """Say which numbers of a tile are at the index of their row."""
    return (index[:, None] - (column % 8)[None, :]) == (column // 8 * 8)[None, :]


@gluon.jit
def _before(count, column):
    """Say which columns are among the first `count`."""
    return column // 8 * 8 < count - column % 8


@gluon.jit
def _of_classes(numbers, at, column, size):
    """Return the numbers of the classes of a tile, and zero beyond the last class."""
    return gl.load(numbers + at + column % 8 + column // 8 * 8, mask=_before(size - at, column), other=0.0)


@gluon.jit
def _shares(factor, weight, at, column, size, WEIGHT: gl.constexpr):
    """Return the factors of rows times the weights of the classes of a tile, which are one if there are none."""
    shares = factor[:, None]
    if WEIGHT:
        shares = shares * _of_classes(weight, at, column, size)[None, :]
    return shares


@gluon.constexpr_function
def _accumulators():
    """Return how the sums of products of a group lie in its registers: whole rows in four threads each."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])


@gluon.jit
def _shared_memory(halves, w, WIDTH: gl.constexpr, STAGES: gl.constexpr, HELD: gl.constexpr):
    """Return the ring with its barriers full and empty, the place of samples, and barriers for taking turns."""
    slices = gl.allocate_shared_memory(w.dtype, [STAGES, COLS, SLICE], w.layout)
    ring = (slices, _barriers(STAGES, 1), _barriers(STAGES, 2))
    kept = slices  # if all samples are held, they have no other place
    if HELD < WIDTH // SLICE:
        kept = gl.allocate_shared_memory(halves.dtype, [2 * (WIDTH // SLICE - HELD), HALF, SLICE], halves.layout)
    turns = _barriers(2, 1)
    fence_async_shared()  # the copy engine must find the barriers ready
    return ring, kept, turns


@gluon.jit
def _barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Return barriers that are passed when there were ARRIVALS of them."""
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers
