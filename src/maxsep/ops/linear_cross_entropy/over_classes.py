r"""Linear cross-entropy in chunks of classes: four products (8 B C D flops), no logits in memory, for few features.

The forward pass accumulates the log-sum-exp online. The backward pass computes the logits of each chunk again, as the
gradient g (B, chunk); dx += g W_chunk, and g^T x and the sums of g are the gradients of the chunk's weight and offset.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from maxsep.ops.linear_cross_entropy import over_samples
from maxsep.ops.linear_cross_entropy.over_samples import ALIGNED, Gradients, Layer, index_among
from maxsep.ops.separate import wide_dtype
from maxsep.ops.separate_triton import IS_INSTALLED

CHUNK_BYTES = {"cuda": 192 << 20, "cpu": 8 << 20}  # of the gradient at the logits; on CUDA at most a quarter of them
MULTIPLE = 512  # classes of which chunks are multiples, so that the products fill whole waves of tiles


class _Kernels(Protocol):
    """`hopper_kernels`, or `tile_kernels` on other GPUs with a copy engine; factors are lse and both gradients."""

    def logsumexp(self, x: Tensor, weight: Tensor, offset: Tensor | None, target: Tensor) -> tuple[Tensor, Tensor]: ...
    def gradient(
        self, x: Tensor, weight: Tensor, offset: Tensor | None, target: Tensor, factors: tuple[Tensor, Tensor, Tensor]
    ) -> Callable[[Tensor, int], None]: ...


def forward(layer: Layer) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp and the target's logit of every sample, (B,) each."""
    x, weight, offset, target = layer
    kernels = fused_kernels(x, weight, forward=True, offset=offset is not None)
    if kernels is not None:
        return kernels.logsumexp(x, weight, offset, target)
    lse = x.new_full((len(x),), -torch.inf, dtype=wide_dtype(x))
    target_logit = torch.zeros_like(lse)
    for classes in _chunks(x, len(weight)):
        z = _logits(layer, classes, lse.dtype)
        lse = torch.logaddexp(lse, z.logsumexp(1))
        index, is_among = index_among(target[:, None], classes.start, classes.stop)
        target_logit += torch.where(is_among, z.gather(1, index), 0)[:, 0]
    return lse, torch.where(index_among(target, 0, len(weight))[1], target_logit, torch.nan)


def backward(layer: Layer, lse: Tensor, grad_lse: Tensor, grad_target: Tensor, needs: Sequence[bool]) -> Gradients:
    """Return the gradients of x, weight and offset."""
    x, weight, offset, target = layer
    wide = wide_dtype(x)
    dx = x.new_empty(x.shape if needs[0] else 0, dtype=wide)
    _, dw, columns = over_samples.empty_gradients(x, weight, weight.dtype, (False, *needs[1:]))
    kernels = fused_kernels(x, weight, forward=False, offset=offset is not None)
    write = None if kernels is None else kernels.gradient(x, weight, offset, target, (lse, grad_lse, grad_target))
    buffer = x.new_empty(0)
    for classes in _chunks(x, len(weight)):
        rows, start = weight[classes], classes.start
        if write is None:
            g = _gradient_torch(layer, classes, lse, grad_lse, grad_target)
        else:
            buffer = buffer if buffer.numel() else x.new_empty(len(x), -(-len(rows) // ALIGNED) * ALIGNED)
            g = buffer[:, : len(rows)]
            write(g, start)
        if needs[0]:
            over_samples.accumulate_product(dx, g, rows, is_first=start == 0)
        if needs[1]:
            torch.mm(g.T, x, out=dw[classes])
        if needs[2]:
            torch.sum(g, 0, dtype=wide, out=columns[classes])
    return dx.to(x.dtype), dw, columns


def fused_kernels(x: Tensor, weight: Tensor, *, forward: bool, offset: bool) -> _Kernels | None:
    """Return the module with the kernels for a product and its softmax in one, or None where plain torch is used."""
    is_half = x.dtype == weight.dtype in (torch.float16, torch.bfloat16)
    if not (IS_INSTALLED and is_half and x.is_cuda and has_copy_engine(x.device)):
        return None
    # the copy engine wants rows that start at multiples of 16 bytes
    if any(m.stride(1) != 1 or m.data_ptr() % 16 or m.stride(0) * m.element_size() % 16 for m in (x, weight)):
        return None
    try:
        from maxsep.ops.linear_cross_entropy import hopper_kernels, tile_kernels
    except ImportError:  # Triton of torch 2.6 has neither descriptors nor Gluon
        return None
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
