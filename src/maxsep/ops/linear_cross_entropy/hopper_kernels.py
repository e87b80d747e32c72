r"""The kernels of `tile_kernels` for Hopper, warp-specialised in Gluon: one program per multiprocessor.

A producer warp copies slices of the weight (BLOCK_V classes x BLOCK_D features) by TMA into a ring in shared memory.
Two consumer warpgroups multiply: each has 64 of the program's 128 samples, and both read the same slices, so a slice is
fetched from L2 once for 128 samples. The warpgroups take turns of TURN slices, a whole tile if the ring has room for
it: the exponentials of one hide behind the products of the other.

The first HELD slices of the samples' features stay in registers, having come through the ring; the others stay in
shared memory (`kept`), in halves for the warpgroups. The more are held, the longer is the ring.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from maxsep.ops.launch import is_known_triton, launch
from maxsep.ops.linear_cross_entropy.tile_kernels import grid_of, merge_splits

LOG2_E = gl.constexpr(1.4426950408889634)
WG_B = gl.constexpr(64)  # samples of a warpgroup: the rows of one wgmma instruction
BLOCK_B = gl.constexpr(128)
BLOCK_V = gl.constexpr(128)
BLOCK_D = gl.constexpr(64)  # features of a slice: 128 bytes, the widest swizzle
CONSUMER_REGISTERS = gl.constexpr(240)
PRODUCER_REGISTERS = gl.constexpr(24)
MAX_D = 512  # features of which 64 samples fit into the registers of a warpgroup
SHARED_MEMORY = 232_448
RESERVED = 1 << 10  # bytes for barriers and for the arguments of the warpgroups
MAX_STAGES = 14


def supports(x: Tensor, *, forward: bool, offset: bool) -> bool:
    """Return whether these kernels serve such samples and are faster than `tile_kernels` (on an H200)."""
    width = x.shape[1]
    if not is_known_triton() or torch.cuda.get_device_capability(x.device)[0] != 9 or width % 64 or width > MAX_D:
        return False
    if forward and offset:
        return width in (64, MAX_D)
    return not (forward and width == 128)


def logsumexp(x: Tensor, weight: Tensor, offset: Tensor | None, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp and the target's logit of every sample, (B,) float32 each; NaN where it is no class."""
    batch, num_classes = len(x), len(weight)
    blocks, splits = grid_of(batch, num_classes, x.device, 1)
    parts = [x.new_empty(splits, batch, dtype=torch.float32) for _ in range(3)]
    launch(
        lse_kernel, (blocks * splits,), x.device, describe(x, 128, 64), describe(x, 64, 64), describe(weight, 128, 64),
        offset, target, *parts, batch, num_classes, 0, splits,
        OFFSET=offset is not None, **constants(x.shape[1], forward=True, offset=offset is not None),
    )  # fmt: skip
    return merge_splits(parts, target, num_classes)


def gradient(
    x: Tensor, weight: Tensor, offset: Tensor | None, target: Tensor, factors: tuple[Tensor, Tensor, Tensor]
) -> Callable[[Tensor, int], None]:
    """Return a function that writes the gradient at the logits of the classes from `start` on to `out` (B, V)."""
    descriptors = describe(x, 128, 64), describe(x, 64, 64), describe(weight, 128, 64)
    options = constants(x.shape[1], forward=False, offset=offset is not None)

    def write(out: Tensor, start: int) -> None:
        batch, size = out.shape
        blocks, splits = grid_of(batch, size, x.device, 1)
        launch(
            grad_kernel, (blocks * splits,), x.device,
            *descriptors, describe(out, 64, 128), offset, target, *factors, batch, size, start, splits,
            OFFSET=offset is not None, **options,
        )  # fmt: skip

    return write


def describe(matrix: Tensor, rows: int, columns: int) -> Any:
    """Describe a matrix to the copy engine, which moves blocks of rows x columns."""
    layout = _shared_layout(rows, columns, matrix.dtype)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns], layout)


@functools.cache
def _shared_layout(rows: int, columns: int, dtype: torch.dtype) -> Any:
    return gl.NVMMASharedLayout.get_default_for([rows, columns], getattr(gl, str(dtype).removeprefix("torch.")))


def constants(width: int, *, forward: bool, offset: bool) -> dict[str, int]:
    """Return what the kernels are compiled for; turns are equal parts of a tile, and the ring holds a whole turn."""
    slices = width // 64
    held = min(slices, 4 if offset else 8)  # with an offset, registers hold half as many
    room = SHARED_MEMORY - RESERVED - 128 * (width - held * 64) * 2
    if not forward:
        room -= 128 * 128 * 2  # gradients on their way out
    stages = min(MAX_STAGES, room // (128 * 64 * 2))
    turn = max(turn for turn in range(1, slices + 1) if slices % turn == 0 and turn <= stages)
    return {"D": width, "STAGES": stages, "HELD": held, "TURN": turn, "num_warps": 4}


@gluon.jit(do_not_specialize=["batch", "num_classes", "start", "splits"])
def lse_kernel(
    x_desc, half_desc, w_desc, offset, target, maxima, exp_sums, target_logit, batch, num_classes, start, splits,
    OFFSET: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, HELD: gl.constexpr, TURN: gl.constexpr,
):  # fmt: skip
    """Compute the online log-sum-exp of 128 rows over every splits-th tile of classes, (splits, B) each."""
    ring, kept, turns = _shared_memory(half_desc, w_desc, D, STAGES, HELD)
    arguments = (ring, kept, turns, offset, target, maxima, exp_sums, target_logit, batch, num_classes, start, splits)
    gl.warp_specialize(
        [
            (_consume_lse, (0, arguments, OFFSET, D, HELD, TURN)),
            (_consume_lse, (1, arguments, OFFSET, D, HELD, TURN)),
            (_produce, (x_desc, half_desc, w_desc, ring, kept, num_classes, start, splits, D, HELD)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )


@gluon.jit(do_not_specialize=["batch", "num_classes", "start", "splits"])
def grad_kernel(
    x_desc, half_desc, w_desc, out_desc, offset, target, lse, grad_lse, grad_target, batch, num_classes, start, splits,
    OFFSET: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, HELD: gl.constexpr, TURN: gl.constexpr,
):  # fmt: skip
    """Write grad_lse exp(z - lse) + grad_target [class = target] for the classes from `start` on."""
    ring, kept, turns = _shared_memory(half_desc, w_desc, D, STAGES, HELD)
    staging = gl.allocate_shared_memory(out_desc.dtype, [2, WG_B, BLOCK_V], out_desc.layout)
    factors = (lse, grad_lse, grad_target)
    arguments = (ring, kept, turns, staging, out_desc, offset, target, factors, batch, num_classes, start, splits)
    gl.warp_specialize(
        [
            (_consume_grad, (0, arguments, OFFSET, D, HELD, TURN)),
            (_consume_grad, (1, arguments, OFFSET, D, HELD, TURN)),
            (_produce, (x_desc, half_desc, w_desc, ring, kept, num_classes, start, splits, D, HELD)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )


@gluon.jit
def _consume_lse(
    GROUP: gl.constexpr, arguments, OFFSET: gl.constexpr, D: gl.constexpr, HELD: gl.constexpr, TURN: gl.constexpr
):
    ring, kept, turns, offset, target, maxima, exp_sums, target_logit, batch, num_classes, start, splits = arguments
    LAYOUT: gl.constexpr = _accumulator_layout()
    ROW_LAYOUT: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    column = gl.arange(0, BLOCK_V, layout=gl.SliceLayout(0, LAYOUT))
    split = gl.program_id(0) % splits
    offs_b = gl.program_id(0) // splits * BLOCK_B + GROUP * WG_B + gl.arange(0, WG_B, layout=ROW_LAYOUT)
    # start is 0, but without it registers spill: the compiler then keeps the index in 64 bits
    index = (gl.load(target + offs_b, mask=offs_b < batch, other=-1) - start).to(gl.int32)
    running_max = gl.full([WG_B], -float("inf"), gl.float32, layout=ROW_LAYOUT)
    sum_exp = gl.zeros([WG_B], gl.float32, layout=ROW_LAYOUT)
    picked = gl.zeros([WG_B], gl.float32, layout=ROW_LAYOUT)
    samples, slot = _load_samples(GROUP, ring, kept, D, HELD)
    turn = 0
    for start_v in range(split * BLOCK_V, num_classes, splits * BLOCK_V):
        z, slot, turn = _multiply(GROUP, samples, ring, turns, slot, turn, TURN)
        if OFFSET:
            z = z + _load_classes(offset, start_v, column, num_classes)[None, :]
        picked += gl.sum(gl.where(_is_target(index - start_v, column), z, 0.0), 1)
        if start_v + BLOCK_V > num_classes:
            z = gl.where(_is_before(num_classes - start_v, column)[None, :], z, -float("inf"))
        new_max = gl.maximum(running_max, gl.max(z, 1))
        reference = gl.where(new_max == -float("inf"), 0.0, new_max) * LOG2_E
        sum_exp = sum_exp * gl.exp2(running_max * LOG2_E - reference)
        sum_exp += gl.sum(gl.exp2(z * LOG2_E - reference[:, None]), 1)
        running_max = new_max
    place = split.to(gl.int64) * batch + offs_b
    gl.store(maxima + place, running_max, mask=offs_b < batch)
    gl.store(exp_sums + place, sum_exp, mask=offs_b < batch)
    gl.store(target_logit + place, picked, mask=offs_b < batch)


@gluon.jit
def _consume_grad(
    GROUP: gl.constexpr, arguments, OFFSET: gl.constexpr, D: gl.constexpr, HELD: gl.constexpr, TURN: gl.constexpr
):
    """Write the gradient at the logits of 64 samples, tile by tile: one is copied out while the next is computed."""
    ring, kept, turns, staging, out_desc, offset, target, factors, batch, num_classes, start, splits = arguments
    lse, grad_lse, grad_target = factors
    LAYOUT: gl.constexpr = _accumulator_layout()
    column = gl.arange(0, BLOCK_V, layout=gl.SliceLayout(0, LAYOUT))
    stage = staging.index(GROUP)
    first_b = gl.program_id(0) // splits * BLOCK_B + GROUP * WG_B
    offs_b = first_b + gl.arange(0, WG_B, layout=gl.SliceLayout(1, LAYOUT))
    inside = offs_b < batch
    index = (gl.load(target + offs_b, mask=inside, other=-1) - start).to(gl.int32)
    # +inf beyond the batch: such rows get no gradient, whatever the offset
    reference = gl.load(lse + offs_b, mask=inside, other=float("inf")) * LOG2_E
    factor = gl.load(grad_lse + offs_b, mask=inside, other=0.0)
    pull = gl.load(grad_target + offs_b, mask=inside, other=0.0)
    samples, slot = _load_samples(GROUP, ring, kept, D, HELD)
    turn = 0
    for start_v in range(gl.program_id(0) % splits * BLOCK_V, num_classes, splits * BLOCK_V):
        if OFFSET:  # loaded while the product is computed
            added = _load_classes(offset + start, start_v, column, num_classes)
        z, slot, turn = _multiply(GROUP, samples, ring, turns, slot, turn, TURN)
        if OFFSET:
            z = z + added[None, :]
        g = gl.exp2(z * LOG2_E - reference[:, None]) * factor[:, None]
        # the target is subtracted in float32, before rounding: p - 1 of a confident sample is small
        g += gl.where(_is_target(index - start_v, column), pull[:, None], 0.0)
        tma.store_wait(pendings=0)  # until the tile before has been read
        stage.store(g.to(out_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [first_b, start_v], stage)
    tma.store_wait(pendings=0)


@gluon.jit
def _produce(x_desc, half_desc, w_desc, ring, kept, num_classes, start, splits, D: gl.constexpr, HELD: gl.constexpr):
    """Copy the samples of a program and its tiles of classes, slice by slice."""
    first_b = gl.program_id(0) // splits * BLOCK_B
    start_v = gl.program_id(0) % splits * BLOCK_V
    slot = 0
    for k in gl.static_range(HELD):
        slot = _copy_slice(x_desc, [first_b, k * BLOCK_D], ring, slot, 0)
    if HELD < D // BLOCK_D and start_v < num_classes:
        for k in gl.static_range(D // BLOCK_D):
            slot = _copy_both(half_desc, first_b, w_desc, start + start_v, k, ring, kept, slot, HELD)
        start_v += splits * BLOCK_V
    for next_v in range(start_v, num_classes, splits * BLOCK_V):
        for k in gl.static_range(D // BLOCK_D):
            slot = _copy_slice(w_desc, [start + next_v, k * BLOCK_D], ring, slot, 0)


@gluon.jit
def _copy_slice(source, place, ring, slot, MORE: gl.constexpr):
    """Copy a slice into the ring, with a barrier that waits for MORE bytes too, and return the next slot."""
    slices, full, empty = ring
    STAGES: gl.constexpr = slices.shape[0]
    stage = slot % STAGES
    mbarrier.wait(empty.index(stage), (slot // STAGES & 1) ^ 1)
    mbarrier.expect(full.index(stage), source.block_type.nbytes + MORE)
    tma.async_copy_global_to_shared(source, place, full.index(stage), slices.index(stage))
    return slot + 1


@gluon.jit
def _copy_both(half_desc, first_b, w_desc, start_v, K: gl.constexpr, ring, kept, slot, HELD: gl.constexpr):
    """Copy slice K of the first tile and, unless registers hold it, of the samples; one barrier counts both."""
    stage = slot % ring[0].shape[0]
    if K < HELD:
        slot = _copy_slice(w_desc, [start_v, K * BLOCK_D], ring, slot, 0)
    else:
        slot = _copy_slice(w_desc, [start_v, K * BLOCK_D], ring, slot, 2 * half_desc.block_type.nbytes)
        for group in gl.static_range(2):
            place = kept.index(2 * (K - HELD) + group)
            source = [first_b + group * WG_B, K * BLOCK_D]
            tma.async_copy_global_to_shared(half_desc, source, ring[1].index(stage), place)
    return slot


@gluon.jit
def _load_samples(GROUP: gl.constexpr, ring, kept, D: gl.constexpr, HELD: gl.constexpr):
    """Return the samples of a warpgroup, an operand for each slice of features, and the slot behind those held."""
    slices, full, empty = ring
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, _accumulator_layout(), 2)
    samples = ()
    slot = 0
    for k in gl.static_range(D // BLOCK_D):
        if k < HELD:
            stage = slot % slices.shape[0]
            mbarrier.wait(full.index(stage), slot // slices.shape[0] & 1)
            samples += (slices.index(stage).slice(GROUP * WG_B, WG_B).load(OPERAND),)
            fence_async_shared()  # before the copy engine writes there again
            mbarrier.arrive(empty.index(stage))
            slot += 1
        else:
            samples += (kept.index(2 * (k - HELD) + GROUP),)  # arrives with the first slices of classes
    return samples, slot


@gluon.jit
def _multiply(GROUP: gl.constexpr, samples, ring, turns, slot, turn, TURN: gl.constexpr):
    """Return the product of 64 samples and the next tile of classes, the slot behind its slices and the next turn."""
    slices, full, _ = ring
    STAGES: gl.constexpr = slices.shape[0]
    gl.static_assert(len(samples) % TURN == 0 and TURN <= STAGES, "the warpgroups would deadlock")
    z = gl.zeros([WG_B, BLOCK_V], gl.float32, layout=_accumulator_layout())
    for k in gl.static_range(len(samples)):
        if k % TURN == 0:
            if k > 0:  # the other warpgroup has its turn, so waiting costs nothing
                z = _release(z, 0, ring, slot - 1)
            mbarrier.wait(turns.index(GROUP), (turn & 1) ^ (1 - GROUP))  # warpgroup 0 has the very first turn
        stage = slot % STAGES
        mbarrier.wait(full.index(stage), slot // STAGES & 1)
        z = warpgroup_mma(samples[k], slices.index(stage).permute((1, 0)), z, use_acc=k > 0, is_async=True)
        if k % TURN > 0:  # the next product is in flight, so the tensor cores have work
            z = _release(z, 1, ring, slot - 1)
        slot += 1
        if (k + 1) % TURN == 0:
            mbarrier.arrive(turns.index(1 - GROUP))
            turn += 1
    return _release(z, 0, ring, slot - 1), slot, turn


@gluon.jit
def _release(z, PENDING: gl.constexpr, ring, slot):
    """Wait until all but PENDING products are done, and release the slot of the last finished one."""
    z = warpgroup_mma_wait(PENDING, deps=[z])
    mbarrier.arrive(ring[2].index(slot % ring[0].shape[0]))
    return z


# A thread has columns c + 8 i of a tile, with its own c < 8. Column indices are split into c and constants below:
# otherwise the compiler keeps a register for each column, and there are too few.


@gluon.jit
def _is_target(index, column):
    """Return which elements of a tile are at the index of their row."""
    return (index[:, None] - (column % 8)[None, :]) == (column // 8 * 8)[None, :]


@gluon.jit
def _is_before(count, column):
    return column // 8 * 8 < count - column % 8


@gluon.jit
def _load_classes(numbers, start_v, column, num_classes):
    """Load a number per class of a tile, zero beyond the last class."""
    mask = _is_before(num_classes - start_v, column)
    return gl.load(numbers + start_v + column % 8 + column // 8 * 8, mask=mask, other=0.0)


@gluon.constexpr_function
def _accumulator_layout():
    """Return how the products of a warpgroup lie in its registers: whole rows in four threads each."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])


@gluon.jit
def _shared_memory(half_desc, w_desc, D: gl.constexpr, STAGES: gl.constexpr, HELD: gl.constexpr):
    """Allocate the ring with its barriers (full, empty), the place of samples, and barriers for taking turns."""
    slices = gl.allocate_shared_memory(w_desc.dtype, [STAGES, BLOCK_V, BLOCK_D], w_desc.layout)
    ring = (slices, _barriers(STAGES, 1), _barriers(STAGES, 2))
    kept = slices  # if registers hold all samples, there is no other place
    if HELD < D // BLOCK_D:
        kept = gl.allocate_shared_memory(half_desc.dtype, [2 * (D // BLOCK_D - HELD), WG_B, BLOCK_D], half_desc.layout)
    turns = _barriers(2, 1)
    fence_async_shared()  # the copy engine must find the barriers initialised
    return ring, kept, turns


@gluon.jit
def _barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers
