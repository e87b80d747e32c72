r"""Linear cross-entropy in chunks of classes: four products (8 B C D flops), no logits in memory, for few features.

The forward pass accumulates the log-sum-exp online. The backward pass computes the logits of each chunk again, as the
gradient g (B, chunk), and adds

    dx += g W_chunk,    dW_chunk = g^T x,    doffset_chunk = sum_i g_i.

On a GPU with a copy engine (TMA) a product and its softmax are one kernel: `hopper_kernels` on Hopper, `tile_kernels`
elsewhere; both offer `logsumexp` and `gradient`. On other devices and in other precisions plain torch does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from maxsep.ops.linear_cross_entropy.over_samples import ALIGNED, Gradients, Layer, accumulate_product, index_among
from maxsep.ops.separate import wide_dtype
from maxsep.ops.separate_triton import IS_INSTALLED, on_device_of

CHUNK_BYTES = {"cuda": 192 << 20, "cpu": 8 << 20}
"""Memory of the gradient at the logits of a chunk of classes; on CUDA also at most a quarter of all logits."""
MULTIPLE = 512
"""Chunks are multiples of this many classes, so that the products fill whole waves of tiles."""


def forward(layer: Layer) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp and the target's logit of every sample, (B,) each."""
    x, weight, offset, target = layer
    kernels = fused_kernels(x, weight, forward=True, offset=offset is not None)
    if kernels is not None:
        with on_device_of(x):
            return kernels.logsumexp(x, weight, offset, target)  # type: ignore[no-any-return]
    wide = wide_dtype(x)
    lse = x.new_full((len(x),), -torch.inf, dtype=wide)
    target_logit = torch.zeros_like(lse)
    for classes in _chunks(x, len(weight)):
        z = _logits(layer, classes, wide)
        lse = torch.logaddexp(lse, z.logsumexp(1))
        index, is_among = index_among(target[:, None], classes.start, classes.stop)
        target_logit += torch.where(is_among, z.gather(1, index), 0)[:, 0]
    return lse, torch.where(index_among(target, 0, len(weight))[1], target_logit, torch.nan)


def backward(layer: Layer, lse: Tensor, grad_lse: Tensor, grad_target: Tensor, needs: Sequence[bool]) -> Gradients:
    """Return the gradients of x, weight and offset."""
    x, weight, offset, target = layer
    wide = wide_dtype(x)
    dx = x.new_empty(x.shape if needs[0] else 0, dtype=wide)
    dw = torch.empty_like(weight) if needs[1] else weight.new_empty(0)
    columns = torch.empty(len(weight) if needs[2] else 0, dtype=wide, device=x.device)
    kernels = fused_kernels(x, weight, forward=False, offset=offset is not None)
    write = None if kernels is None else kernels.gradient(x, weight, offset, target, (lse, grad_lse, grad_target))
    buffer = x.new_empty(0)
    with on_device_of(x):
        for classes in _chunks(x, len(weight)):
            rows, start = weight[classes], classes.start
            if write is None:
                g = _gradient_torch(layer, classes, lse, grad_lse, grad_target)
            else:
                buffer = buffer if buffer.numel() else x.new_empty(len(x), -(-len(rows) // ALIGNED) * ALIGNED)
                g = buffer[:, : len(rows)]
                write(g, start)
            if needs[0]:
                accumulate_product(dx, g, rows, is_first=start == 0)
            if needs[1]:
                torch.mm(g.T, x, out=dw[classes])
            if needs[2]:
                torch.sum(g, 0, dtype=wide, out=columns[classes])
    return Gradients(dx.to(x.dtype), dw, columns)


def fused_kernels(x: Tensor, weight: Tensor, *, forward: bool, offset: bool) -> Any:
    """Return the module with the kernels for a product and its softmax in one, or None where plain torch is used."""
    if not IS_INSTALLED or x.dtype != weight.dtype:
        return None
    # the copy engine wants rows that start at multiples of 16 bytes
    if any(tensor.data_ptr() % 16 or tensor.stride(0) * tensor.element_size() % 16 for tensor in (x, weight)):
        return None
    if x.stride(1) != 1 or weight.stride(1) != 1:
        return None
    if not x.is_cuda or x.dtype not in (torch.float16, torch.bfloat16) or not has_copy_engine(x.device):
        return None
    from maxsep.ops.linear_cross_entropy import hopper_kernels, tile_kernels

    return hopper_kernels if hopper_kernels.supports(x, forward=forward, offset=offset) else tile_kernels


def has_copy_engine(device: torch.device) -> bool:
    """Return whether a GPU has the tensor memory accelerator: NVIDIA's Hopper and later."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9


def _chunks(x: Tensor, num_classes: int) -> Iterator[slice]:
    """Yield chunks of equal size, and the last few classes apart: products of odd sizes are slow on tensor cores."""
    budget, column = CHUNK_BYTES["cuda" if x.is_cuda else "cpu"], len(x) * x.element_size()
    if x.is_cuda and num_classes * column > budget:
        budget = min(budget, max(128 << 20, num_classes * column // 4))
    most = max(1, budget // column // MULTIPLE) * MULTIPLE
    main = num_classes // ALIGNED * ALIGNED
    size = -(-main // max(1, -(-main // most)) // MULTIPLE) * MULTIPLE
    for start in range(0, main, max(1, size)):
        yield slice(start, min(start + size, main))
    if main < num_classes:
        yield slice(main, num_classes)


def _logits(layer: Layer, classes: slice, wide: torch.dtype) -> Tensor:
    z = (layer.x @ layer.weight[classes].T).to(wide)
    return z if layer.offset is None else z.add_(layer.offset[classes])


def _gradient_torch(layer: Layer, classes: slice, lse: Tensor, grad_lse: Tensor, grad_target: Tensor) -> Tensor:
    reference = torch.where(lse == -torch.inf, 0, lse)[:, None]
    g = _logits(layer, classes, lse.dtype).sub_(reference).exp_().mul_(grad_lse[:, None])
    index, is_among = index_among(layer.target[:, None], classes.start, classes.stop)
    g.scatter_add_(1, index, torch.where(is_among, grad_target[:, None], 0))
    return g.to(layer.x.dtype)
