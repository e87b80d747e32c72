r"""Linear cross-entropy in chunks of samples: three products (6 B C D flops), for wide features or few logits.

For every chunk of samples

    z = x W^T,    g = gradient at z + offset, written over z,    dx = g W,    dW += g^T x.

If the gradients with respect to log-sum-exp and target logit are known beforehand, as for a mean or a sum over samples,
`forward_with_gradients` makes all gradients in the forward pass, and no logits are computed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from maxsep.ops.separate import wide_dtype
from maxsep.ops.separate_triton import has_triton_kernel, on_device_of

FEW_BYTES = {"cuda": 192 << 20, "cpu": 16 << 20}
"""Outputs of all samples up to which there is one chunk; on a CPU also those of a chunk."""
BLOCK_V, NUM_WARPS = 2048, 4
ALIGNED = 8
"""Products of sizes that are multiples of 8 are several times as fast on tensor cores as others."""


class Layer(NamedTuple):
    """logits = x W^T + offset, and the classes of samples."""

    x: Tensor
    """(B, D), in the precision of the products."""
    weight: Tensor
    """(C, D); in float32 it may be wider than x."""
    offset: Tensor | None
    """(C,), in the precision of sums."""
    target: Tensor
    """(B,); the target logit of a label that is no class is NaN."""


class Gradients(NamedTuple):
    """With respect to x, weight and offset; empty where they are not needed."""

    x: Tensor
    weight: Tensor
    offset: Tensor


class Factors(NamedTuple):
    """Gradients with respect to lse and target logit, and the factor of lse^2, (B,) each."""

    grad_lse: Tensor
    grad_target: Tensor
    z_loss: Tensor | None

    def of(self, rows: slice) -> Factors:
        """Return the factors of some samples."""
        return Factors(self.grad_lse[rows], self.grad_target[rows], None if self.z_loss is None else self.z_loss[rows])


def chunk_rows(x: Tensor, weight: Tensor) -> int:
    """Return how many samples a chunk has, for features x (B, D) and a weight (C, D).

    Together with the weight, the folded weight and a float32 sum of its gradient a chunk takes at most half of what the
    logits take if the weight is small beside them, and else 5 weights and 300 MB.
    """
    (batch, features), row, unit = x.shape, len(weight) * x.element_size(), 1
    budget = FEW_BYTES["cuda" if x.is_cuda else "cpu"]
    if batch * row <= budget:
        return batch
    if x.is_cuda:
        size, unit = features * row, 128
        is_tall = batch >= 8 * features
        budget = max(size, batch * row // 2 - 3 * size) if is_tall else size // 2 + (288 << 20)
    rows = max(unit, budget // row)
    chunks = -(-batch // rows)
    return min(batch, -(-batch // chunks // unit) * unit)


def forward(layer: Layer) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp and the target's logit of every sample, (B,) each."""
    lse, target_logit = (layer.x.new_empty(len(layer.x), dtype=wide_dtype(layer.x)) for _ in range(2))
    for rows, z in _outputs(layer, layer.weight.to(layer.x.dtype)):
        _softmax(z, layer, rows, lse[rows], target_logit[rows])
    return lse, target_logit


def forward_with_gradients(layer: Layer, factors: Factors, needs: Sequence[bool]) -> tuple[Tensor, Tensor, Gradients]:
    """Return log-sum-exp, target logit and the gradients of the weighted sum, the weight's in `weight_sum_dtype`."""
    x, weight, wide = layer.x, layer.weight, wide_dtype(layer.x)
    lse, target_logit = (x.new_empty(len(x), dtype=wide) for _ in range(2))
    dx = x.new_empty(x.shape if needs[0] else 0)
    dw = torch.empty_like(weight if needs[1] else weight[:0, 0], dtype=weight_sum_dtype(x, weight))
    columns = torch.zeros(len(weight) if needs[2] else 0, dtype=wide, device=x.device)
    weight = weight.to(x.dtype)
    for rows, z in _outputs(layer, weight):
        g = _softmax(z, layer, rows, lse[rows], target_logit[rows], factors.of(rows))
        for number, part in enumerate(aligned_parts(len(weight))):
            if needs[0]:
                accumulate_product(dx[rows], g[:, part], weight[part], is_first=number == 0)
            if needs[1]:
                accumulate_product(dw[part], g[:, part].T, x[rows], is_first=rows.start == 0)
        if needs[2]:
            columns += g.sum(0, dtype=wide)
    return lse, target_logit, Gradients(dx, dw, columns)


def backward(layer: Layer, grad_lse: Tensor, grad_target: Tensor, needs: Sequence[bool]) -> Gradients:
    """Return the gradients for given gradients of log-sum-exp and target logit, with all logits computed again."""
    _, _, gradients = forward_with_gradients(layer, Factors(grad_lse, grad_target, None), needs)
    return gradients._replace(weight=gradients.weight.to(layer.weight.dtype))


def weight_sum_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """Return the precision in which the weight's gradient is summed over chunks of samples."""
    # half precision would round once per chunk, and float16 would overflow, as gradients are not scaled yet
    single = chunk_rows(x, weight) >= len(x) and x.dtype != torch.float16
    return weight.dtype if single else wide_dtype(x)


def accumulate_product(total: Tensor, a: Tensor, b: Tensor, *, is_first: bool) -> None:
    """Write a b to `total`, or add it; `total` may have a wider precision than a and b."""
    if total.dtype == a.dtype:
        torch.mm(a, b, out=total) if is_first else total.addmm_(a, b)
    elif total.is_cuda and total.dtype == torch.float32:
        if is_first:
            torch.mm(a, b, out_dtype=total.dtype, out=total)
        else:
            torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    elif is_first:
        total.copy_(a @ b)
    else:
        total += a @ b


def aligned_parts(size: int) -> list[slice]:
    """Return the last few rows and those before, a multiple of ALIGNED, where there are any."""
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
    z: Tensor, layer: Layer, rows: slice, lse: Tensor, target_logit: Tensor, factors: Factors | None = None
) -> Tensor:
    """Write log-sum-exp and target logit of a chunk; with `factors` return the gradient at z."""
    if not has_triton_kernel(z):
        return _softmax_torch(z, layer, rows, lse, target_logit, factors)
    from maxsep.ops.linear_cross_entropy.softmax_kernel import block_stats, finish_rows

    num_classes = z.shape[1]
    block_v = min(BLOCK_V, max(128, 1 << (num_classes - 1).bit_length()))
    blocks = -(-num_classes // block_v)
    tensors = (z, layer.offset, layer.target[rows], *(lse.new_empty(len(z), blocks) for _ in range(2)), target_logit)
    constants = {"OFFSET": layer.offset is not None, "BLOCK_V": block_v, "num_warps": NUM_WARPS}
    sizes = (z.stride(0), num_classes, blocks)
    with on_device_of(z):
        block_stats[(len(z), blocks)](*tensors, *sizes, **constants)
        finish_rows[(len(z), 1 if factors is None else blocks)](
            *tensors, lse, *(factors or (lse, lse, None)), *sizes, **constants,
            GRADIENT=factors is not None, Z_LOSS=factors is not None and factors.z_loss is not None,
            BLOCKS=1 << (blocks - 1).bit_length(),
        )  # fmt: skip
    return z


def _softmax_torch(
    z: Tensor, layer: Layer, rows: slice, lse: Tensor, target_logit: Tensor, factors: Factors | None
) -> Tensor:
    """Do what the kernels do in plain torch, in float32 or float64."""
    logits, target = z.to(lse.dtype), layer.target[rows, None]
    if layer.offset is not None:
        logits.add_(layer.offset)
    index, is_class = index_among(target, 0, z.shape[1])
    torch.logsumexp(logits, 1, out=lse)
    target_logit.copy_(torch.where(is_class, logits.gather(1, index), torch.nan)[:, 0])
    if factors is None:
        return z
    factor = factors.grad_lse if factors.z_loss is None else factors.grad_lse + 2 * factors.z_loss * lse
    reference = torch.where(lse == -torch.inf, 0, lse)[:, None]
    g = logits.sub_(reference).exp_().mul_(factor[:, None])
    return g.scatter_add_(1, index, torch.where(is_class, factors.grad_target[:, None], 0)).to(z.dtype)
