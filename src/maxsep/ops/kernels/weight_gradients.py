r"""The gradient of the weight for a block of classes, without a place for that of the logits.

A program keeps CLASSES rows of W' and of their gradient, and goes through all samples: it makes their logits, turns
these into gradients where they are, in registers, and multiplies them with the same samples again. That is slower than
two products that meet in memory (on an H200 with 512 features 319 TFLOP/s against some 640), and takes no memory. For
some widths Hopper has a kernel of its own (`hopper_tail.py`).
"""

import triton
import triton.language as tl

from maxsep.ops.kernels.chunks import numbers_of_classes
from maxsep.ops.kernels.products import LOG2_E


@triton.jit(do_not_specialize=["start", "size", "batch"])
def weight_gradients(
    x, w, out, offset, weight, target, lse, a, u, v, shift, columns, scale, start, size, batch,
    OFFSET: tl.constexpr, WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, SHIFT: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, SPREAD: tl.constexpr, CLASSES: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write sum_s g_sj x_s for CLASSES rows j, which may lie where w does, and sums of g, unshifted, into columns."""
    first = tl.program_id(0) * CLASSES
    number = first + tl.arange(0, CLASSES)
    inside = number < size
    unit = 1.0 if OFFSET else scale  # what z lacks of a logit
    added, share = numbers_of_classes(offset, weight, number, inside, OFFSET, WEIGHT)
    summed = tl.zeros([CLASSES], tl.float32)
    total = tl.zeros([CLASSES, SPREAD], tl.float32)
    rows_of_w = w.load([first, 0])
    for sample in tl.range(0, batch, ROWS, num_stages=STAGES):
        samples = x.load([sample, 0])
        z = tl.dot(rows_of_w, samples.T)
        if OFFSET:
            z = z * scale + added[:, None]
        row = sample + tl.arange(0, ROWS)
        there = row < batch
        # samples beyond the batch have no gradient, whatever the offset
        reference = tl.load(lse + row, mask=there, other=float("inf")) * LOG2_E
        g = tl.exp2(z * (unit * LOG2_E) - reference[None, :])
        g *= (tl.load(a + row, mask=there, other=0.0) * scale)[None, :]
        index = (tl.load(target + row, mask=there, other=-1) - start).to(tl.int32)
        pull = tl.load(u + row, mask=there, other=0.0) * scale
        g -= tl.where(index[None, :] == number[:, None], pull[None, :], 0.0)
        if SMOOTH:
            g -= share[:, None] * (tl.load(v + row, mask=there, other=0.0) * scale)[None, :]
        if COLUMNS:
            summed += tl.sum(g, 1)
        if SHIFT:
            g += (tl.load(shift + row, mask=there, other=0.0) * scale)[None, :]
        total = tl.dot(g.to(x.dtype), samples, total)
    col = tl.arange(0, SPREAD)
    place = out + number.to(tl.int64)[:, None] * WIDTH + col[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=inside[:, None] & (col < WIDTH)[None, :])
    if COLUMNS:
        tl.store(columns + number, summed, mask=inside)
