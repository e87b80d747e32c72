r"""x -> radius * P_H^T x in the Householder basis by one sum: O(C) time and memory per sample, forward and backward.

    forward   o_i = a (x_i - c S),  o_k = -a d S,    S = sum_i x_i                    i = 0..k-1
    adjoint   x_i = a (g_i - T),                     T = c sum_{i<k} g_i + d g_k

with c = 1 / (C + sqrt C), d = 1 / sqrt C, and the radius in a. Torch sums pairwise, so that rounding grows with log C.
Eager calls go through a `torch.autograd.Function` that writes every number once; traced calls use plain operations,
which a compiler fuses itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maxsep.ops.modes import is_traced, last_size
from maxsep.simplex import reflection


def separate_householder(x: Tensor, radius: float) -> Tensor:
    """Apply radius * P_H^T by one sum; x (..., C-1) in float32 or float64, result (..., C).

    >>> separate_householder(torch.tensor([[1.0, 1.0, 1.0]]), 3**0.5)
    tensor([[ 1.,  1.,  1., -3.]])
    """
    if is_traced():
        return _forward_plain(x, radius)
    result: Tensor = _Product.apply(x, radius, False)  # type: ignore[no-untyped-call]
    return result


def householder_adjoint(g: Tensor, radius: float) -> Tensor:
    """Apply radius * P_H by one sum; g (..., C), result (..., C-1).

    On the plane of zero-sum logits (C-1)/C times it undoes `separate_householder` at radius 1.

    >>> householder_adjoint(torch.tensor([[1.0, 1.0, 1.0, -3.0]]), 3**0.5 / 4)
    tensor([[1., 1., 1.]])
    """
    result: Tensor = _Product.apply(g, radius, True)  # type: ignore[no-untyped-call]
    return result


def _forward(x: Tensor, radius: float) -> Tensor:
    functorch = torch._C._functorch  # is_grads_batched comes with either kind, and neither can be written to a buffer
    if functorch.is_batchedtensor(x) or functorch.is_legacy_batchedtensor(x):
        return _forward_plain(x, radius)
    a, c, d = _numbers(last_size(x) + 1, radius)
    total = x.sum(-1, keepdim=True)
    out = x.new_empty(*x.shape[:-1], x.shape[-1] + 1)
    torch.add(total * (-a * c), x, alpha=a, out=out[..., :-1])
    torch.mul(total, -a * d, out=out[..., -1:])
    return out


def _forward_plain(x: Tensor, radius: float) -> Tensor:
    a, c, d = _numbers(last_size(x) + 1, radius)
    total = x.sum(-1, keepdim=True)
    return torch.cat([x * a - total * (a * c), total * (-a * d)], -1)


def _adjoint(g: Tensor, radius: float) -> Tensor:
    a, c, d = _numbers(last_size(g), radius)
    first, last = g[..., :-1], g[..., -1:]
    shift = first.sum(-1, keepdim=True) * (-a * c) - last * (a * d)
    return torch.add(shift, first, alpha=a)


def _numbers(num_classes: int, radius: float) -> tuple[float, float, float]:
    a, c, d = reflection(num_classes)
    return radius * a, c, d


class _Product(torch.autograd.Function):
    """P_H^T, or P_H if adjoint: each is the other's gradient, so it is differentiable any number of times."""

    @staticmethod
    def forward(x: Tensor, radius: float, adjoint: bool) -> Tensor:
        return _adjoint(x, radius) if adjoint else _forward(x, radius)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.radius, ctx.adjoint = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Product.apply(gradient, ctx.radius, not ctx.adjoint), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return _Product.apply(tangent, ctx.radius, ctx.adjoint)  # type: ignore[no-untyped-call, no-any-return]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, *rest: Any) -> tuple[Tensor, int]:
        # The map acts on the last dimension of any shape: a batch of calls is one call with a longer shape.
        return _Product.apply(x if in_dims[0] is None else x.movedim(in_dims[0], 0), *rest), 0  # type: ignore[no-untyped-call]
