r"""What `weight_gradients.py` computes, for Hopper: a program for 64 classes, and a role for each of its warps.

One warp moves: it sends blocks of ROWS samples through a ring in shared memory, each in two parts of its features. A
group of four warps has the 64 rows of W', makes the logits of a block and turns them into gradients in registers; these
go through a ring of their own to two other groups, each of which multiplies them with its part of the same block, and
keeps the sums for half of the features. So every block is read from the L2 cache once for both products, and matrix
units have those of the last block to do while the exponentials of the next are taken. The logits of a block are under
way before the gradients of the one before it are made.

The first HELD slices of 64 features of W' stay in registers, the others in shared memory. On an H200, 8,448 classes of
4,096 samples and 512 features take 130 us, beside 222 of `weight_gradients.py` (results/product_forms_gpu.json). In a
run of which no record was kept it was 134 with four slices in registers, 285 with eight, for which there are too few,
166 with blocks of 64 samples, and 128 where programs begin with different blocks.
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
CLASSES = gl.constexpr(64)  # of a program: as many as one instruction multiplies
SLICE = gl.constexpr(64)
PARTS = gl.constexpr(2)  # of a block of samples: one for each group that sums
SUM_REGISTERS = gl.constexpr(160)  # the group that differentiates has what these and the mover leave
MOVER_REGISTERS = gl.constexpr(24)


@gluon.jit(do_not_specialize=["start", "size", "batch"])
def weight_gradients(
    x, w, out, offset, weight, target, lse, a, u, v, shift, columns, scale, pitch, start, size, batch,
    OFFSET: gl.constexpr, WEIGHT: gl.constexpr, SMOOTH: gl.constexpr, SHIFT: gl.constexpr, COLUMNS: gl.constexpr,
    WIDTH: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr, HELD: gl.constexpr,
):  # fmt: skip
    """Write sum_s g_sj x_s for 64 rows j, which may lie where w does, and sums of g, unshifted, into columns.

    Rows of w start `pitch` numbers after each other, those of out without a gap.
    """
    # a block is given back when the next is summed, whose gradient is made when the logits of another are under way
    gl.static_assert(STAGES >= 3 and BUFFERS >= 2, "the groups would wait for each other for ever")
    parts = gl.allocate_shared_memory(x.dtype, [PARTS * STAGES, ROWS, WIDTH // PARTS], x.layout)
    ring = (parts, _barriers(PARTS * STAGES, 1), _barriers(PARTS * STAGES, 1))
    places = gl.allocate_shared_memory(x.dtype, [BUFFERS, CLASSES, ROWS], _layout(x.dtype, ROWS))
    gradients = (places, _barriers(BUFFERS, 1), _barriers(BUFFERS, PARTS))
    kept = ring[0]  # if all slices of W' are held, they have no other place
    if HELD < WIDTH // SLICE:
        kept = gl.allocate_shared_memory(x.dtype, [WIDTH // SLICE - HELD, CLASSES, SLICE], _layout(x.dtype, SLICE))
    fence_async_shared()  # the copy engine must find the barriers ready
    room = (gl.allocate_shared_memory(gl.int32, [1, ROWS], _in_a_row()),)
    for _ in gl.static_range(3 + SMOOTH + SHIFT):
        room += (gl.allocate_shared_memory(gl.float32, [1, ROWS], _in_a_row()),)
    of_classes, of_samples = (offset, weight, columns), (target, lse, a, u, v, shift)
    given = (w, kept, ring, gradients, room, of_classes, of_samples, scale, pitch, start, size, batch)
    gl.warp_specialize(
        [
            (_differentiate, (given, OFFSET, WEIGHT, SMOOTH, SHIFT, COLUMNS, WIDTH, HELD)),
            (_sum, (0, ring, gradients, out, size, batch)),
            (_sum, (1, ring, gradients, out, size, batch)),
            (_move, (x, ring, batch)),
        ],
        [4, 4, 1],
        [SUM_REGISTERS, SUM_REGISTERS, MOVER_REGISTERS],
    )


@gluon.jit
def _move(x, ring, batch):
    """Send all samples, block by block and part by part."""
    parts, full, empty = ring
    PLACES: gl.constexpr = parts.shape[0]
    slot = 0
    at = 0
    for _ in range(_blocks(ring, batch)):
        for part in gl.static_range(PARTS):
            place = slot % PLACES
            mbarrier.wait(empty.index(place), (slot // PLACES & 1) ^ 1)
            mbarrier.expect(full.index(place), x.block_type.nbytes)
            tma.async_copy_global_to_shared(x, [at, part * parts.shape[2]], full.index(place), parts.index(place))
            slot += 1
        at = _after(at, ring, batch)


@gluon.jit
def _differentiate(
    given, OFFSET: gl.constexpr, WEIGHT: gl.constexpr, SMOOTH: gl.constexpr, SHIFT: gl.constexpr, COLUMNS: gl.constexpr,
    WIDTH: gl.constexpr, HELD: gl.constexpr,
):  # fmt: skip
    """Write the gradients at the logits of 64 classes, block by block, to where they are multiplied."""
    w, kept, ring, gradients, room, of_classes, of_samples, scale, pitch, start, size, batch = given
    offset, weight, columns = of_classes
    ROWS: gl.constexpr = ring[0].shape[1]
    first = gl.program_id(0) * CLASSES
    number = first + gl.arange(0, CLASSES, layout=gl.SliceLayout(1, _accumulators(ROWS)))
    inside = number < size
    added = number.to(gl.float32)
    share = added
    if OFFSET:
        added = gl.load(offset + number, mask=inside, other=0.0)
    if WEIGHT:
        share = gl.load(weight + number, mask=inside, other=0.0)
    numbers = (number, added, share)
    summed = gl.zeros([CLASSES], gl.float32, layout=gl.SliceLayout(1, _accumulators(ROWS)))
    rows = _rows(w, kept, first, pitch, size, WIDTH, HELD, ROWS)
    blocks = _blocks(ring, batch)
    at = 0
    _put(_loaded(of_samples, at, batch, scale, start, SMOOTH, SHIFT, ROWS), room)
    z = warpgroup_mma_wait(0, deps=[_logits(rows, ring, 0)])
    for block in range(1, blocks):
        at = _after(at, ring, batch)
        loaded = _loaded(of_samples, at, batch, scale, start, SMOOTH, SHIFT, ROWS)
        after = _logits(rows, ring, block)  # under way while the block before it is turned into gradients
        g, sums = _gradient(z, numbers, room, scale, OFFSET, WEIGHT, SMOOTH, SHIFT, COLUMNS)
        _hand_over(g, gradients, block - 1)
        if COLUMNS:
            summed += sums
        _put(loaded, room)
        z = warpgroup_mma_wait(0, deps=[after])
    g, sums = _gradient(z, numbers, room, scale, OFFSET, WEIGHT, SMOOTH, SHIFT, COLUMNS)
    _hand_over(g, gradients, blocks - 1)
    if COLUMNS:
        gl.store(columns + number, summed + sums, mask=inside)


@gluon.jit
def _rows(w, kept, first, pitch, size, WIDTH: gl.constexpr, HELD: gl.constexpr, ROWS: gl.constexpr):
    """Return the rows of W' of a program, a factor of products for each slice of features; zeros beyond the last."""
    operand: gl.constexpr = gl.DotOperandLayout(0, _accumulators(ROWS), 2)
    row = gl.arange(0, CLASSES, layout=gl.SliceLayout(1, operand))
    col = gl.arange(0, SLICE, layout=gl.SliceLayout(0, operand))
    inside = (first + row < size)[:, None] & (col < SLICE)[None, :]
    place = w + ((first + row).to(gl.int64) * pitch)[:, None] + col[None, :]
    rows = ()
    for k in gl.static_range(WIDTH // SLICE):
        numbers = gl.load(place + k * SLICE, mask=inside, other=0.0)
        if k < HELD:
            rows += (numbers,)
        else:
            kept.index(k - HELD).store(numbers)
            rows += (kept.index(k - HELD),)
    fence_async_shared()  # matrix units must see what is kept
    return rows


@gluon.jit
def _logits(rows, ring, block):
    """Start the products of the rows of W' with a block of samples."""
    parts, full, _ = ring
    PLACES: gl.constexpr = parts.shape[0]
    ROWS: gl.constexpr = parts.shape[1]
    OF_PART: gl.constexpr = parts.shape[2] // SLICE
    z = gl.zeros([CLASSES, ROWS], gl.float32, layout=_accumulators(ROWS))
    for part in gl.static_range(PARTS):
        slot = PARTS * block + part
        place = slot % PLACES
        mbarrier.wait(full.index(place), slot // PLACES & 1)
        for k in gl.static_range(OF_PART):
            features = parts.index(place).slice(k * SLICE, SLICE, 1).permute((1, 0))
            z = warpgroup_mma(rows[part * OF_PART + k], features, z, use_acc=part + k > 0, is_async=True)
    return z


@gluon.jit
def _loaded(of_samples, at, batch, scale, start, SMOOTH: gl.constexpr, SHIFT: gl.constexpr, ROWS: gl.constexpr):
    """Return what the samples of a block have: class, log-sum-exp in powers of two, and factors of the gradient.

    A thread has those of few samples: they are on their way long before they are needed, and there are few registers.
    """
    target, lse, a, u, v, shift = of_samples
    sample = at + gl.arange(0, ROWS, layout=gl.BlockedLayout([ROWS // 32], [32], [4], [0]))
    there = sample < batch
    index = (gl.load(target + sample, mask=there, other=-1) - start).to(gl.int32)
    # samples beyond the batch have no gradient, whatever the offset
    reference = gl.load(lse + sample, mask=there, other=float("inf")) * LOG2_E
    factor = gl.load(a + sample, mask=there, other=0.0) * scale
    pull = gl.load(u + sample, mask=there, other=0.0) * scale
    loaded = (index, reference, factor, pull)
    if SMOOTH:
        loaded += (gl.load(v + sample, mask=there, other=0.0) * scale,)
    if SHIFT:
        loaded += (gl.load(shift + sample, mask=there, other=0.0) * scale,)
    return loaded


@gluon.jit
def _put(loaded, room):
    """Put what samples have to where all threads find it; they have taken what was there."""
    for i in gl.static_range(len(loaded)):
        room[i].index(0).store(loaded[i])


@gluon.jit
def _gradient(
    z, numbers, room, scale,
    OFFSET: gl.constexpr, WEIGHT: gl.constexpr, SMOOTH: gl.constexpr, SHIFT: gl.constexpr, COLUMNS: gl.constexpr,
):  # fmt: skip
    """Return the gradient at the logits of a block, and what a class has of it before the shift."""
    number, added, share = numbers
    of_samples: gl.constexpr = gl.SliceLayout(0, _accumulators(room[0].shape[1]))
    unit = 1.0 if OFFSET else scale  # what z lacks of a logit
    if OFFSET:
        z = z * scale + added[:, None]
    g = gl.exp2(z * (unit * LOG2_E) - room[1].index(0).load(of_samples)[None, :])
    g *= room[2].index(0).load(of_samples)[None, :]
    is_target = room[0].index(0).load(of_samples)[None, :] == number[:, None]
    g -= gl.where(is_target, room[3].index(0).load(of_samples)[None, :], 0.0)
    if SMOOTH:
        shares = room[4].index(0).load(of_samples)[None, :]
        if WEIGHT:
            shares = share[:, None] * shares
        g -= shares
    sums = added
    if COLUMNS:
        sums = gl.sum(g, 1)
    if SHIFT:
        g += room[4 + SMOOTH].index(0).load(of_samples)[None, :]
    return g, sums


@gluon.jit
def _hand_over(g, gradients, block):
    """Give the gradient of a block to those who sum."""
    places, full, empty = gradients
    BUFFERS: gl.constexpr = places.shape[0]
    place = block % BUFFERS
    mbarrier.wait(empty.index(place), (block // BUFFERS & 1) ^ 1)
    places.index(place).store(g.to(places.dtype))
    fence_async_shared()  # matrix units must see it
    mbarrier.arrive(full.index(place))


@gluon.jit
def _sum(PART: gl.constexpr, ring, gradients, out, size, batch):
    """Sum the products of all gradients and a part of the features, and write them."""
    parts = ring[0]
    FEATURES: gl.constexpr = parts.shape[2]
    LAYOUT: gl.constexpr = _accumulators(FEATURES)
    total = gl.zeros([CLASSES, FEATURES], gl.float32, layout=LAYOUT)
    total = _added(total, PART, ring, gradients, 0)
    total = warpgroup_mma_wait(1, deps=[total])
    for block in range(1, _blocks(ring, batch)):
        total = _added(total, PART, ring, gradients, block)
        # given back when the next are under way, so that matrix units always have some
        total = warpgroup_mma_wait(1, deps=[total])
        mbarrier.arrive(gradients[2].index((block - 1) % gradients[0].shape[0]))
        mbarrier.arrive(ring[2].index((PARTS * (block - 1) + PART) % parts.shape[0]))
    total = warpgroup_mma_wait(0, deps=[total])
    number = gl.program_id(0) * CLASSES + gl.arange(0, CLASSES, layout=gl.SliceLayout(1, LAYOUT))
    col = gl.arange(0, FEATURES, layout=gl.SliceLayout(0, LAYOUT))
    place = out + (number.to(gl.int64) * (PARTS * FEATURES) + PART * FEATURES)[:, None] + col[None, :]
    gl.store(place, total.to(out.dtype.element_ty), mask=(number < size)[:, None] & (col < FEATURES)[None, :])


@gluon.jit
def _added(total, PART: gl.constexpr, ring, gradients, block):
    """Start to add the product of a gradient and a part of its block."""
    parts, full, _ = ring
    slot = PARTS * block + PART
    mbarrier.wait(gradients[1].index(block % gradients[0].shape[0]), block // gradients[0].shape[0] & 1)
    mbarrier.wait(full.index(slot % parts.shape[0]), slot // parts.shape[0] & 1)
    g = gradients[0].index(block % gradients[0].shape[0])
    return warpgroup_mma(g, parts.index(slot % parts.shape[0]), total, is_async=True)


@gluon.jit
def _blocks(ring, batch):
    """Return how many blocks of samples there are."""
    return (batch + ring[0].shape[1] - 1) // ring[0].shape[1]


@gluon.jit
def _after(at, ring, batch):
    """Return where the next block begins; after the last comes the first, though nobody asks for it.

    That is for the compiler: with steps that are all alike it keeps a pointer for each of the numbers of samples.
    """
    after = at + ring[0].shape[1]
    return gl.where(after < batch, after, 0)


@gluon.constexpr_function
def _accumulators(columns):
    """Return how the sums of products of a group lie in its registers: whole rows in four threads each.

    An instruction of more columns takes more registers than threads start with, and would not compile.
    """
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, min(columns, 128), 16])


@gluon.constexpr_function
def _in_a_row():
    """Return how numbers of samples lie in shared memory."""
    return gl.SwizzledSharedLayout(1, 1, 1, [0])


@gluon.constexpr_function
def _layout(dtype, columns):
    """Return how 64 rows lie in shared memory for the matrix units."""
    return gl.NVMMASharedLayout.get_default_for([64, columns], dtype)


@gluon.jit
def _barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Return barriers that are passed when there were ARRIVALS of them."""
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers
