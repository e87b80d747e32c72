"""The Householder simplex by one row kernel each way: the same simplex rotated, one sum instead of a scan.

    forward   o_i = a (x_i - S / (C + sqrt C)),  o_k = -a S / sqrt C,    S = sum_i x_i
    adjoint   x_i = a (g_i - T),                 T = sum_{i<k} g_i / (C + sqrt C) + g_k / sqrt C

Here only to be compared with the scan (benchmarks/head_gpu.py). A row that fits in the registers is read once; a longer
one has to be read twice, since nothing can be written before everything has been summed.
"""

import math

import torch
import triton
import triton.language as tl

LONGEST = 32_768


@triton.jit
def _rows(
    x, out, width, c, last, a, x_row, x_end, out_row, out_end,
    X_ALIGN: tl.constexpr, OUT_ALIGN: tl.constexpr, ADJOINT: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    x += tl.program_id(0).to(tl.int64) * (x_row * X_ALIGN)
    out += tl.program_id(0).to(tl.int64) * (out_row * OUT_ALIGN)
    k = width - 1 if ADJOINT else width
    if WHOLE:
        i = tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < x_end * X_ALIGN, other=0.0).to(tl.float32)
        mean = tl.sum(tl.where(i < k, v, 0.0)) * c
        if ADJOINT:
            mean += tl.sum(tl.where(i == k, v, 0.0)) * last
            o = a * (v - mean)
        else:
            o = tl.where(i < k, a * (v - mean), -a * mean / c * last)
        tl.store(out + i, o.to(out.dtype.element_ty), mask=i < out_end * OUT_ALIGN)
    else:
        full = k // BLOCK * BLOCK
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, full, BLOCK):
            total += tl.load(x + start + tl.arange(0, BLOCK)).to(tl.float32)
        i = full + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < x_end * X_ALIGN, other=0.0).to(tl.float32)
        mean = (tl.sum(total) + tl.sum(tl.where(i < k, v, 0.0))) * c
        if ADJOINT:
            mean += tl.sum(tl.where(i == k, v, 0.0)) * last
            o = a * (v - mean)
        else:
            o = tl.where(i < k, a * (v - mean), -a * mean / c * last)
        tl.store(out + i, o.to(out.dtype.element_ty), mask=i < out_end * OUT_ALIGN)
        for done in range(0, full, BLOCK):
            i = full - BLOCK - done + tl.arange(0, BLOCK)  # backwards: the end of the row is still in the cache
            tl.store(out + i, (a * (tl.load(x + i).to(tl.float32) - mean)).to(out.dtype.element_ty))


def _launch(x, out, adjoint):
    num_classes = x.shape[1] if adjoint else out.shape[1]
    whole = num_classes <= LONGEST
    block = triton.next_power_of_2(num_classes) if whole else 4096
    units = [math.gcd(t.stride(0), 16) for t in (x, out)]
    root, a = math.sqrt(num_classes), math.sqrt(num_classes / (num_classes - 1))
    _rows[(len(x),)](
        x, out, x.shape[1], 1 / (num_classes + root), 1 / root, a,
        x.stride(0) // units[0], x.stride(0) // units[0], out.stride(0) // units[1], out.stride(0) // units[1],
        X_ALIGN=units[0], OUT_ALIGN=units[1], ADJOINT=adjoint, BLOCK=block, WHOLE=whole,
        num_warps=max(1, min(16, block // 1024)) if whole else 8,
    )  # fmt: skip
    return out


def forward(x, out):
    """Write the logits of x (B, C-1) to out (B, C); both with whole rows of padding."""
    return _launch(x, out, False)


def adjoint(g, out):
    """Write the gradient of x to out."""
    return _launch(g, out, True)


def reference(x):
    """Compute the forward form in plain torch."""
    num_classes, total = x.shape[1] + 1, x.sum(1, keepdim=True)
    root, a = math.sqrt(num_classes), math.sqrt(num_classes / (num_classes - 1))
    return torch.cat([a * (x - total / (num_classes + root)), -a * total / root], 1)
