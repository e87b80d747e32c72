"""Triton kernels of `over_samples`: log-sum-exp of rows of outputs, and their gradient in place.

The rows are cut into blocks of BLOCK_V classes, one program each. `block_stats` stores what a block contributes: the
maximum and the sum of exponentials of its logits and, in front of P, the sum t of r_i z_i. Earlier blocks shift all
logits of a block by the same carry, the sum of their t, so blocks need not wait for each other. `finish_rows` combines
the blocks of its row into log-sum-exp and carries, and overwrites its block by the gradient.
"""

import triton
import triton.language as tl

from maxsep.ops.separate_kernel import adjoint_block, separate_block

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _padded(num_outputs):
    """Return the length of a row in memory; a mask that ends there allows words of 16 bytes."""
    return (num_outputs + 7) // 8 * 8


@triton.jit
def _logits(z, offset, offs_v, carry, num_outputs, num_classes, scale, SEPARATED: tl.constexpr, OFFSET: tl.constexpr):
    """Return the logits of a block of outputs, (1, BLOCK_V), -inf beyond the last class, and the next carry."""
    x = tl.load(z + offs_v[None, :], mask=(offs_v < _padded(num_outputs))[None, :], other=0.0).to(tl.float32)
    x = tl.where((offs_v < num_outputs)[None, :], x, 0.0)
    if SEPARATED:
        x, carry = separate_block(x, carry, offs_v, num_outputs, scale)
    if OFFSET:
        x += tl.load(offset + offs_v, mask=offs_v < num_classes, other=0.0)[None, :]
    return tl.where((offs_v < num_classes)[None, :], x, -float("inf")), carry


@triton.jit(do_not_specialize=["num_classes", "blocks"])
def block_stats(
    z, offset, target, maxima, exp_sums, carries, target_logit, row_stride, num_classes, blocks, scale,
    SEPARATED: tl.constexpr, OFFSET: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Store maximum, sum of exponentials and sum of r_i z_i of a block, and the target's logit if it is inside."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    offs_v = block * BLOCK_V + tl.arange(0, BLOCK_V)
    num_outputs = num_classes - 1 if SEPARATED else num_classes
    carry = tl.zeros([1], tl.float32)
    z += row * row_stride
    logits, carry = _logits(z, offset, offs_v, carry, num_outputs, num_classes, scale, SEPARATED, OFFSET)
    block_max = tl.max(logits, 1)
    reference = tl.where(block_max == -float("inf"), 0.0, block_max)  # an adjustment of -inf rules classes out
    exp_sum = tl.sum(tl.exp2((logits - reference[:, None]) * LOG2_E), 1)
    place = row * blocks + block + tl.arange(0, 1)
    tl.store(maxima + place, block_max)
    tl.store(exp_sums + place, exp_sum)
    if SEPARATED:
        tl.store(carries + place, carry)
    index = tl.load(target + row)
    if (index >= block * BLOCK_V) & (index < (block + 1) * BLOCK_V):
        picked = tl.sum(tl.where((offs_v == index)[None, :], logits, 0.0), 1)
        tl.store(target_logit + row + tl.arange(0, 1), picked)


@triton.jit(do_not_specialize=["num_classes", "blocks"])
def finish_rows(
    z, offset, target, maxima, exp_sums, carries, target_logit, lse_out, grad_lse, grad_target, z_loss,
    row_stride, num_classes, blocks, scale,
    SEPARATED: tl.constexpr, OFFSET: tl.constexpr, GRADIENT: tl.constexpr, Z_LOSS: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Store the log-sum-exp and the target's logit of a row; with GRADIENT overwrite a block by its gradient.

    The gradient at the logits is (grad_lse + 2 z_loss lse) exp(logit - lse) + grad_target [class = target].
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    offs_n = tl.arange(0, BLOCKS)
    stats = row * blocks + offs_n
    block_max = tl.load(maxima + stats, mask=offs_n < blocks, other=-float("inf"))
    exp_sum = tl.load(exp_sums + stats, mask=offs_n < blocks, other=0.0)
    carry = tl.zeros([BLOCKS], tl.float32)
    if SEPARATED:  # exclusive sums over the blocks before
        own = tl.load(carries + stats, mask=offs_n < blocks, other=0.0)
        carry = tl.cumsum(own, 0) - own
        block_max -= carry
    row_max = tl.max(block_max, 0)
    reference = tl.where(row_max == -float("inf"), 0.0, row_max)
    mass = exp_sum * tl.exp2((block_max - reference) * LOG2_E)  # of each block, relative to exp(reference)
    lse = row_max + tl.log(tl.sum(mass, 0))
    index = tl.load(target + row)
    is_class = (index >= 0) & (index < num_classes)
    if block == 0:
        shift = tl.sum(tl.where(offs_n == index // BLOCK_V, carry, 0.0), 0)
        picked = tl.load(target_logit + row, mask=is_class, other=float("nan")) - shift
        tl.store(target_logit + row, picked)
        tl.store(lse_out + row, lse)
    if GRADIENT:
        factor, pull = tl.load(grad_lse + row), tl.load(grad_target + row, mask=is_class, other=0.0)
        if Z_LOSS:
            factor += 2 * tl.load(z_loss + row) * lse
        num_outputs = num_classes - 1 if SEPARATED else num_classes
        offs_v = block * BLOCK_V + tl.arange(0, BLOCK_V)
        z += row * row_stride
        before = tl.sum(tl.where(offs_n == block, carry, 0.0), 0) + tl.zeros([1], tl.float32)
        logits, _ = _logits(z, offset, offs_v, before, num_outputs, num_classes, scale, SEPARATED, OFFSET)
        g = factor * tl.exp2((logits - lse) * LOG2_E) + tl.where((offs_v == index)[None, :], pull, 0.0)
        if SEPARATED:
            later = factor * mass * tl.exp2((reference - lse) * LOG2_E)
            later += tl.where(offs_n == index // BLOCK_V, pull, 0.0)
            after = tl.sum(tl.where(offs_n > block, later, 0.0), 0) + tl.zeros([1], tl.float32)
            if block + 2 >= blocks:
                g, _ = adjoint_block(g, after, offs_v, num_outputs, scale, True)
            else:
                g, _ = adjoint_block(g, after, offs_v, num_outputs, scale, False)
        tl.store(z + offs_v[None, :], g.to(z.dtype.element_ty), mask=(offs_v < _padded(num_outputs))[None, :])


@triton.jit
def scale_unless_one(x, factor, size, BLOCK: tl.constexpr):
    """Multiply a flat tensor by a number on the GPU, and return at once if it is one."""
    f = tl.load(factor)
    if f != 1.0:
        offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        mask = offs < size
        tl.store(x + offs, (tl.load(x + offs, mask=mask).to(tl.float32) * f).to(x.dtype.element_ty), mask=mask)
