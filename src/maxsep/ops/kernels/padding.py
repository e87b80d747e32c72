"""The weight and the bias of a layer, converted, in front of zeros: both in one launch."""

import triton
import triton.language as tl


@triton.jit
def _copy(source, out, size, out_size, start, BLOCK: tl.constexpr):
    i = start + tl.arange(0, BLOCK)
    if start + BLOCK <= size:  # without a mask words are wide whatever the size is
        tl.store(out + i, tl.load(source + i).to(out.dtype.element_ty))
    else:
        values = tl.load(source + i, mask=i < size, other=0.0)
        tl.store(out + i, values.to(out.dtype.element_ty), mask=i < out_size)


@triton.jit(do_not_specialize=["size", "out_size", "k", "out_k", "blocks"])
def pad(
    weight, bias, weight_out, bias_out, size, out_size, k, out_k, blocks, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """The first `blocks` programs copy the weight, the others the bias."""
    block = tl.program_id(0)
    if HAS_BIAS:
        if block < blocks:
            _copy(weight, weight_out, size, out_size, block.to(tl.int64) * BLOCK, BLOCK)
        else:
            _copy(bias, bias_out, k, out_k, (block - blocks).to(tl.int64) * BLOCK, BLOCK)
    else:
        _copy(weight, weight_out, size, out_size, block.to(tl.int64) * BLOCK, BLOCK)
