r"""Linear cross-entropy in chunks of samples: three products (6 B C D flops), for wide features or few logits.

Every chunk of samples has outputs z = x W^T, over which the gradient g is written; dx = g W and dW += g^T x follow.

If the gradients with respect to log-sum-exp and target logit are known beforehand, as for a mean or a sum over samples,
no logits are computed twice: `forward_with_gradients` makes all gradients in the forward pass. If there is one chunk,
g is kept, and a dW that is needed follows in the backward pass, where scaling x costs less than scaling dW.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maxsep.ops.launch import launch
from maxsep.ops.separate import wide_dtype
from maxsep.ops.separate_triton import has_triton_kernel
from maxsep.ops.tracing import is_plain_eager

FEW_BYTES = {"cuda": 192 << 20, "cpu": 16 << 20}  # outputs of a single chunk; on a CPU also those of any chunk
SPARE = 288 << 20  # bytes that a step may take on CUDA beside a few times the weight
BLOCK_V, NUM_WARPS = 2048, 4
Gradients = tuple[Tensor, Tensor, Tensor]  # of x, weight and offset; empty where they are not needed
ALIGNED = 8  # products of sizes that are multiples of it are several times as fast on tensor cores as others
HAS_WIDE_PRODUCTS = hasattr(torch.ops.aten.mm, "dtype_out")  # from torch 2.8 on: half precision to float32


class Layer(NamedTuple):
    """logits = x W^T + offset, and the classes of samples."""

    x: Tensor  # (B, D), in the precision of the products
    weight: Tensor  # (C, D); in float32 it may be wider than x
    offset: Tensor | None  # (C,), in the precision of sums
    target: Tensor  # (B,); the target logit of a label that is no class is NaN


class Factors(NamedTuple):
    """Gradients with respect to lse and target logit, and the factor of lse^2, (B,) each."""

    grad_lse: Tensor
    grad_target: Tensor
    z_loss: Tensor | None


def chunk_rows(x: Tensor, weight: Tensor) -> int:
    """Return how many samples a chunk has, for features x (B, D) and a weight (C, D).

    With the weight, the folded weight and a float32 sum of its gradient a chunk takes at most half of the logits if the
    weight is small beside them, and else 5 weights and 300 MB; a single chunk takes 3.5 weights and 300 MB.
    """
    (batch, features), row, unit = x.shape, len(weight) * x.element_size(), 1
    budget = FEW_BYTES["cuda" if x.is_cuda else "cpu"]
    if batch * row <= budget:
        return batch
    if x.is_cuda:
        size, unit = features * row, 128
        if batch >= 8 * features:
            budget = max(size, batch * row // 2 - 3 * size)
        elif batch * row <= size + size // 2 + SPARE and x.dtype != torch.float16:
            return batch
        else:
            budget = size + SPARE
    rows = max(unit, budget // row)
    chunks = -(-batch // rows)
    return min(batch, -(-batch // chunks // unit) * unit)


def forward_with_gradients(layer: Layer, factors: Factors | None, needs: Sequence[bool]) -> tuple[Tensor, ...]:
    """Return log-sum-exp, target logit, the gradients of the weighted sum, and g at the logits of the last chunk."""
    x, weight, wide = layer.x, layer.weight.to(layer.x.dtype), wide_dtype(layer.x)
    lse, target_logit, g = x.new_empty(len(x), dtype=wide), x.new_empty(len(x), dtype=wide), x
    dx, dw, columns = empty_gradients(x, weight, weight_sum_dtype(x, layer.weight), needs)
    for rows, z in _outputs(layer, weight):
        g = _softmax(z, layer, rows, lse[rows], target_logit[rows], factors)
        if needs[0]:
            for number, part in enumerate(aligned_parts(len(weight))):
                accumulate_product(dx[rows], g[:, part], weight[part], is_first=number == 0)
        add_weight_gradients(dw, columns, g, x[rows], is_first=rows.start == 0)
    return lse, target_logit, dx, dw, columns, g


def is_single_chunk(x: Tensor, weight: Tensor) -> bool:
    """Return whether all samples are one chunk, in a precision that holds g before it is scaled."""
    return x.dtype != torch.float16 and chunk_rows(x, weight) >= x.shape[0]


def empty_gradients(x: Tensor, weight: Tensor, dtype: torch.dtype, needs: Sequence[bool]) -> Gradients:
    """Return uninitialised gradients, the weight's in `dtype` and laid out as the weight: P is undone along rows."""
    dw = torch.empty_like(weight if needs[1] else weight[:0, 0], dtype=dtype)
    columns = x.new_empty(len(weight) if needs[2] else 0, dtype=wide_dtype(x))
    return x.new_empty(x.shape if needs[0] else 0), dw, columns


def add_weight_gradients(dw: Tensor, columns: Tensor, g: Tensor, x: Tensor, *, is_first: bool) -> None:
    """Write g^T x and the sums of g over samples, or add them; an empty tensor is not needed."""
    if dw.numel():
        for part in aligned_parts(g.shape[1]):
            accumulate_product(dw[part], g[:, part].T, x, is_first=is_first)
    if columns.numel():
        sums = g.sum(0, dtype=columns.dtype)
        columns.copy_(sums) if is_first else columns.add_(sums)


def scaled(tensor: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a dense tensor, of any order of strides, times a number on its device, in `dtype`."""
    if not tensor.numel() or not has_triton_kernel(tensor) or not is_plain_eager(tensor):
        # without dimensions torch would round the number to half precision
        return (tensor * scale.reshape([1] * tensor.dim())).to(dtype)
    from maxsep.ops.linear_cross_entropy.softmax_kernel import BLOCK_SCALE, scale_elements

    out, size, block = torch.empty_like(tensor, dtype=dtype), tensor.numel(), BLOCK_SCALE.value
    # torch reads a number in memory once per element
    launch(scale_elements, (-(-size // block),), tensor.device, tensor, out, scale, size, BLOCK=block, num_warps=4)
    return out


def weight_sum_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """Return the precision in which the weight's gradient is summed over chunks of samples."""
    # half precision would round once per chunk, and float16 would overflow, as gradients are not scaled yet
    return weight.dtype if is_single_chunk(x, weight) else wide_dtype(x)


def accumulate_product(total: Tensor, a: Tensor, b: Tensor, *, is_first: bool) -> None:
    """Write a b to `total`, or add it; `total` may have a wider precision than a and b."""
    if total.dtype == a.dtype:
        torch.mm(a, b, out=total) if is_first else total.addmm_(a, b)
    elif total.is_cuda and total.dtype == torch.float32 and HAS_WIDE_PRODUCTS:
        wide: dict[str, Any] = {"out_dtype": total.dtype, "out": total}
        torch.mm(a, b, **wide) if is_first else torch.addmm(total, a, b, **wide)
    else:
        total.copy_(a @ b) if is_first else total.add_(a @ b)


def aligned_parts(size: int) -> list[slice]:
    """Split rows into the last few and, before them, a multiple of ALIGNED; leave out empty parts."""
    main = size // ALIGNED * ALIGNED
    return [part for part in (slice(main, size), slice(0, main)) if part.start < part.stop]


def index_among(target: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Return the place of every target among the classes from `start` to `stop`, and whether it is one of them."""
    is_among = (target >= start) & (target < stop)
    return torch.where(is_among, target - start, 0), is_among


def _outputs(layer: Layer, weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield the outputs x W^T of each chunk of samples, all in one buffer with aligned rows."""
    x, outputs = layer.x, len(weight)
    rows = chunk_rows(x, weight)
    buffer = x.new_empty(rows, -(-outputs // ALIGNED) * ALIGNED)
    for start in range(0, len(x), rows):
        chunk = slice(start, min(start + rows, len(x)))
        z = buffer[: chunk.stop - start, :outputs]
        for part in aligned_parts(outputs):
            torch.mm(x[chunk], weight[part].T, out=z[:, part])
        yield chunk, z


def _softmax(
    z: Tensor, layer: Layer, rows: slice, lse: Tensor, target_logit: Tensor, factors: Factors | None
) -> Tensor:
    """Write log-sum-exp and target logit of a chunk; with the factors of all samples return the gradient at z."""
    numbers = None if factors is None else [f if f is None else f[rows] for f in factors]
    if not has_triton_kernel(z):
        return _softmax_torch(z, layer, rows, lse, target_logit, numbers)
    from maxsep.ops.linear_cross_entropy.softmax_kernel import block_stats, finish_rows

    num_classes = z.shape[1]
    block_v = min(BLOCK_V, max(128, 1 << (num_classes - 1).bit_length()))
    blocks = -(-num_classes // block_v)
    tensors = (z, layer.offset, layer.target[rows], *(lse.new_empty(len(z), blocks) for _ in range(2)), target_logit)
    constants = {"OFFSET": layer.offset is not None, "BLOCK_V": block_v, "num_warps": NUM_WARPS}
    sizes = (z.stride(0), num_classes, blocks)
    launch(block_stats, (len(z), blocks), z.device, *tensors, *sizes, **constants)
    launch(
        finish_rows, (len(z), 1 if factors is None else blocks), z.device,
        *tensors, lse, *(numbers or (lse, lse, None)), *sizes, **constants,
        GRADIENT=factors is not None, Z_LOSS=factors is not None and factors.z_loss is not None,
        BLOCKS=1 << (blocks - 1).bit_length(),
    )  # fmt: skip
    return z


def _softmax_torch(z: Tensor, layer: Layer, rows: slice, lse: Tensor, target_logit: Tensor, numbers: Any) -> Tensor:
    """Compute in plain torch what the kernels compute, in float32 or float64."""
    logits, target = z.to(lse.dtype), layer.target[rows, None]
    if layer.offset is not None:
        logits.add_(layer.offset)
    index, is_class = index_among(target, 0, z.shape[1])
    torch.logsumexp(logits, 1, out=lse)
    target_logit.copy_(torch.where(is_class, logits.gather(1, index), torch.nan)[:, 0])
    if numbers is None:
        return z
    factor, pull, z_loss = numbers
    factor = factor if z_loss is None else factor + 2 * z_loss * lse
    reference = torch.where(lse == -torch.inf, 0, lse)[:, None]
    g = logits.sub_(reference).exp_().mul_(factor[:, None])
    return g.scatter_add_(1, index, torch.where(is_class, pull[:, None], 0)).to(z.dtype)
