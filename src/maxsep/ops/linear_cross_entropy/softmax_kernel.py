"""Triton kernels of `over_samples`: log-sum-exp of rows of logits, and their gradient in place.

A row is cut into blocks of BLOCK_V classes, one program each, so that blocks need not wait for each other:
`block_stats` stores the maximum and the sum of exponentials of a block, `finish_rows` combines those of its row and
overwrites its block by the gradient.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
BLOCK_SCALE = tl.constexpr(4096)


@triton.jit
def scale_elements(x, out, scale, size, BLOCK: tl.constexpr):
    """Write x times a number that is read from memory once per program."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + offs, mask=offs < size).to(tl.float32) * tl.load(scale)
    tl.store(out + offs, values.to(out.dtype.element_ty), mask=offs < size)


@triton.jit
def _logits(z, offset, offs_v, num_classes, OFFSET: tl.constexpr):
    """Return the logits of a block, -inf beyond the last class."""
    # rows are padded to multiples of 8, and a mask that ends there allows words of 16 bytes
    x = tl.load(z + offs_v, mask=offs_v < (num_classes + 7) // 8 * 8, other=0.0).to(tl.float32)
    if OFFSET:
        x += tl.load(offset + offs_v, mask=offs_v < num_classes, other=0.0)
    return tl.where(offs_v < num_classes, x, -float("inf"))


@triton.jit(do_not_specialize=["num_classes", "blocks"])
def block_stats(
    z, offset, target, maxima, exp_sums, target_logit, row_stride, num_classes, blocks,
    OFFSET: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Store the maximum and the sum of exponentials of a block, and the target's logit if it is inside."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    offs_v = block * BLOCK_V + tl.arange(0, BLOCK_V)
    logits = _logits(z + row * row_stride, offset, offs_v, num_classes, OFFSET)
    block_max = tl.max(logits, 0)
    reference = tl.where(block_max == -float("inf"), 0.0, block_max)  # an adjustment of -inf rules classes out
    tl.store(maxima + row * blocks + block, block_max)
    tl.store(exp_sums + row * blocks + block, tl.sum(tl.exp2((logits - reference) * LOG2_E), 0))
    index = tl.load(target + row)
    if (index >= block * BLOCK_V) & (index < (block + 1) * BLOCK_V):
        tl.store(target_logit + row, tl.sum(tl.where(offs_v == index, logits, 0.0), 0))


@triton.jit(do_not_specialize=["num_classes", "blocks"])
def finish_rows(
    z, offset, target, maxima, exp_sums, target_logit, lse_out, grad_lse, grad_target, z_loss,
    row_stride, num_classes, blocks,
    OFFSET: tl.constexpr, GRADIENT: tl.constexpr, Z_LOSS: tl.constexpr, BLOCK_V: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Store the log-sum-exp of a row, and NaN for a target that is no class; with GRADIENT overwrite a block.

    The gradient is (grad_lse + 2 z_loss lse) exp(logit - lse) + grad_target [class = target].
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    offs_n = tl.arange(0, BLOCKS)
    block_max = tl.load(maxima + row * blocks + offs_n, mask=offs_n < blocks, other=-float("inf"))
    exp_sum = tl.load(exp_sums + row * blocks + offs_n, mask=offs_n < blocks, other=0.0)
    row_max = tl.max(block_max, 0)
    reference = tl.where(row_max == -float("inf"), 0.0, row_max)
    lse = row_max + tl.log(tl.sum(exp_sum * tl.exp2((block_max - reference) * LOG2_E), 0))
    index = tl.load(target + row)
    is_class = (index >= 0) & (index < num_classes)
    if block == 0:
        tl.store(lse_out + row, lse)
        tl.store(target_logit + row, float("nan"), mask=is_class == 0)
    if GRADIENT:
        factor, pull = tl.load(grad_lse + row), tl.load(grad_target + row, mask=is_class, other=0.0)
        if Z_LOSS:
            factor += 2 * tl.load(z_loss + row) * lse
        offs_v = block * BLOCK_V + tl.arange(0, BLOCK_V)
        z += row * row_stride
        g = factor * tl.exp2((_logits(z, offset, offs_v, num_classes, OFFSET) - lse) * LOG2_E)
        g += tl.where(offs_v == index, pull, 0.0)
        tl.store(z + offs_v, g.to(z.dtype.element_ty), mask=offs_v < (num_classes + 7) // 8 * 8)
