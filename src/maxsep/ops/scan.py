r"""x -> radius * P^T x by one running sum: O(C) time and memory per sample, forward and backward.

    forward   o_j = s_j x_j - sum_{i<j} r_i x_i     j = 0..k, with s_k x_k = 0
    adjoint   x_i = s_i g_i - r_i sum_{j>i} g_j     i = 0..k-1

The sums are scans, so that rounding stays at the level of a single product; s and r carry the radius.
Eager calls go through `torch.autograd.Function`s that work inside one output buffer; traced calls use plain
operations, which a compiler fuses itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maxsep.ops.cache import cached_coefficients
from maxsep.ops.modes import is_traced, last_size

BLOCK = 1 << 17
"""Numbers per block of rows in a CPU's backward pass: half a megabyte, the size of a second-level cache."""


def separate_scan(x: Tensor, radius: float) -> Tensor:
    """Apply radius * P^T by a running sum; x (..., C-1) in float32 or float64, result (..., C).

    >>> separate_scan(torch.tensor([[1.0, 0.0]]), 2.0)
    tensor([[ 2., -1., -1.]])
    """
    s, r = scaled_coefficients(last_size(x) + 1, radius, x)
    if is_traced():
        return _forward_traced(x, s, r)
    result: Tensor = _Separate.apply(x, s, r)  # type: ignore[no-untyped-call]
    return result


def separate_adjoint(g: Tensor, radius: float) -> Tensor:
    """Apply radius * P by a reverse running sum; g (..., C), result (..., C-1).

    On the plane of zero-sum logits (C-1)/C times it undoes `separate_scan` at radius 1.

    >>> separate_adjoint(torch.tensor([[1.0, -0.5, -0.5]]), 2 / 3)
    tensor([[1., 0.]])
    """
    s, r = scaled_coefficients(last_size(g), radius, g)
    result: Tensor = _Adjoint.apply(g, s, r)  # type: ignore[no-untyped-call]
    return result


def scaled_coefficients(num_classes: int, radius: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return s and r of `coefficients` times the radius, where and as precise as another tensor is.

    >>> scaled_coefficients(2, 3.0, torch.zeros(1))
    (tensor([3.]), tensor([3.]))
    """
    s, r = cached_coefficients(num_classes, like.dtype, like.device)
    return (s, r) if radius == 1 else (s * radius, r * radius)


def _forward(x: Tensor, s: Tensor, r: Tensor) -> Tensor:
    """Work in one buffer: the negated running sum first, then each class's own term on top."""
    if _is_batch(x):
        return _forward_traced(x, s, r)
    out = x.new_zeros(*x.shape[:-1], x.shape[-1] + 1)
    out[..., 1:].addcmul_(x, -r).cumsum_(-1)
    out[..., :-1].addcmul_(x, s)
    return out


def _forward_traced(x: Tensor, s: Tensor, r: Tensor) -> Tensor:
    earlier = torch.nn.functional.pad((x * r).cumsum(-1), (1, 0))
    return torch.nn.functional.pad(x * s, (0, 1)) - earlier


def _adjoint(g: Tensor, s: Tensor, r: Tensor) -> Tensor:
    """Go through a large CPU batch in blocks of rows: the reversed copies then stay in the processor's cache."""
    if _is_batch(g):
        return torch.addcmul(g[..., :-1] * s, _later(g), r, value=-1)
    if g.device.type != "cpu" or g.numel() <= BLOCK:
        return _later(g).mul_(-r).addcmul_(g[..., :-1], s)
    out = g.new_empty(*g.shape[:-1], g.shape[-1] - 1)
    rows = max(1, BLOCK // g.shape[-1])
    blocks = (torch.split(tensor.view(-1, tensor.shape[-1]), rows) for tensor in (g.contiguous(), out))
    for part, target in zip(*blocks, strict=True):
        torch.mul(_later(part), -r, out=target).addcmul_(part[..., :-1], s)
    return out


def _is_batch(x: Tensor) -> bool:
    """Say whether several calls are at work: `vmap` comes this way, and `is_grads_batched`, which has one of its own.

    Sums in place do not batch, nor does writing to where a result shall lie.
    """
    functorch = torch._C._functorch
    return functorch.is_batchedtensor(x) or functorch.is_legacy_batchedtensor(x)


def _later(g: Tensor) -> Tensor:
    # Sum over j > i by a true reverse scan: total minus prefix would cancel where few classes are left.
    return g[..., 1:].flip(-1).cumsum(-1).flip(-1)


def _batch_first(x: Tensor, in_dims: tuple[int | None, ...]) -> Tensor:
    # The maps act on the last dimension of any shape: a batch of calls is one call with a longer shape.
    return x if in_dims[0] is None else x.movedim(in_dims[0], 0)


class _LinearMap(torch.autograd.Function):
    """A linear map of x with fixed s and r: differentiable any number of times, in either mode."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        _, s, r = inputs
        ctx.save_for_backward(s, r)
        ctx.save_for_forward(s, r)


class _Separate(_LinearMap):
    """x (..., C-1) to logits (..., C)."""

    @staticmethod
    def forward(x: Tensor, s: Tensor, r: Tensor) -> Tensor:
        return _forward(x, s, r)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Adjoint.apply(gradient, *ctx.saved_tensors), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return _Separate.apply(tangent, *ctx.saved_tensors)  # type: ignore[no-untyped-call, no-any-return]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, s: Tensor, r: Tensor) -> tuple[Tensor, int]:
        return _Separate.apply(_batch_first(x, in_dims), s, r), 0  # type: ignore[no-untyped-call]


class _Adjoint(_LinearMap):
    """g (..., C) to (..., C-1)."""

    @staticmethod
    def forward(g: Tensor, s: Tensor, r: Tensor) -> Tensor:
        return _adjoint(g, s, r)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Separate.apply(gradient, *ctx.saved_tensors), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return _Adjoint.apply(tangent, *ctx.saved_tensors)  # type: ignore[no-untyped-call, no-any-return]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, s: Tensor, r: Tensor) -> tuple[Tensor, int]:
        return _Adjoint.apply(_batch_first(x, in_dims), s, r), 0  # type: ignore[no-untyped-call]
