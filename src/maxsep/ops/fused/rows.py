r"""Cross-entropy of every sample, streamed over chunks of classes: two passes, four products, no logits.

    z = x W'^T + offset,    nll = lse(z) - z_y,    smooth = mean_j w_j (lse(z) - z_j)

W' is radius times the layer's weight, or radius * P^T of it; with P in its Householder basis it is again the layer's
weight, times another number, and one row that is treated apart. The first pass makes the log-sum-exp online; the second
makes each chunk of logits again, turns it into the gradient in place, and adds it to those of x and W'. What reduces
rows to a loss, and what makes the offset of bias and adjustment, is ordinary differentiable code outside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from maxsep.ops.eager import with_derivative
from maxsep.ops.fused.passes import Stream
from maxsep.ops.modes import is_autocasting
from maxsep.ops.recording import launched
from maxsep.ops.row_cross_entropy import refuse_second_derivatives
from maxsep.ops.triton_scan import IS_INSTALLED, is_supported, on_device_of


def row_losses(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    offset: Tensor | None = None,
    class_weight: Tensor | None = None,
    *,
    radius: float = 1.0,
    separate: bool = True,
    basis: str = "recursive",
    smoothing: bool = False,
    chunk: int | None = None,
    form: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return nll and smooth of every sample, (B,) each, differentiable once in x, weight and offset.

    Args:
        x: Features, (B, D), B at least 1, in the precision of the products.
        weight: (C, D), or (C-1, D) if P follows, in its own precision, which is that of its gradient.
        target: Class indices, (B,); rows with another number have an nll that means nothing.
        offset: Added to the logits, (C,), in the precision of the sums: float64 for float64, else float32.
        class_weight: Of the smoothing term, (C,), like offset.
        radius: Factor of all logits before the offset.
        separate: Whether P stands behind the layer.
        basis: Of P, "recursive" or "householder", whose logits are meant up to a shift that a sample's classes share.
        smoothing: Whether `smooth` is wanted; it is zero otherwise.
        chunk: Classes at a time; chosen from the memory if left out.
        form: "torch" or "triton"; chosen if left out. The kernels take a smaller batch than features without P only, or
            with P of the Householder basis.

    >>> x, weight = torch.randn(4, 8), torch.randn(9, 8)
    >>> nll, _ = row_losses(x, weight, torch.tensor([0, 1, 2, 9]))
    >>> nll.shape
    torch.Size([4])
    """
    side = "plain"
    if separate and basis == "householder":
        side = "householder"
    elif separate:
        # an exported program serves any batch
        is_short = not torch.compiler.is_exporting() and x.shape[0] < x.shape[1]
        side = "logits" if is_short else "weight"
    if form is None:
        form = "triton" if side != "logits" and _triton_suits(x, weight) else "torch"
    elif side == "logits" and form == "triton":
        raise ValueError(
            f"form='triton' folds the matrix into the weight, which takes a batch of at least the {x.shape[1]} "
            f"features, got {x.shape[0]} samples. Leave form out, or pass 'torch'."
        )
    nll, smooth, _, _ = _losses(x, weight, target, offset, class_weight, radius, side, chunk or 0, form, smoothing)
    return nll, smooth


def _triton_suits(x: Tensor, weight: Tensor) -> bool:
    fine = (torch.float32, torch.bfloat16, torch.float16)
    suits = IS_INSTALLED and x.device.type == "cuda" and x.dtype in fine and weight.dtype in fine
    return suits and is_supported(x.device.index)


_LAYER = "Tensor x, Tensor weight, Tensor target, Tensor? offset, Tensor? class_weight, float radius, str side, "
_SCHEMA = f"({_LAYER}int chunk, str form, bool smoothing) -> (Tensor, Tensor, Tensor, Tensor)"
_BACKWARD = f"({_LAYER}int chunk, str form, Tensor u, Tensor? v, Tensor lse, Tensor carries, "
_BACKWARD += "bool[3] wants) -> (Tensor, Tensor, Tensor)"


def _forward(*given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *layer, smoothing = given
    with _undisturbed(layer[0]):
        return Stream(*layer).forward(smoothing)


def _backward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    *layer, u, v, lse, carries, wants = given
    with _undisturbed(lse):
        return Stream(*layer).backward(u, v, lse, carries, tuple(wants))


@contextmanager
def _undisturbed(x: Tensor) -> Iterator[None]:
    """Launch on the device of a tensor, in the precisions that tensors have."""
    kind = x.device.type
    with on_device_of(x), torch.autocast(kind, enabled=False) if is_autocasting(kind) else nullcontext():
        yield


def _of_compilers(implementation: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(implementation)
    def call(*given: Any) -> Any:
        with launched():
            return implementation(*given)

    return call


_forward_op = torch.library.custom_op("maxsep::row_losses", _of_compilers(_forward), mutates_args=(), schema=_SCHEMA)
_backward_op = torch.library.custom_op(
    "maxsep::row_losses_backward", _of_compilers(_backward), mutates_args=(), schema=_BACKWARD
)


@_forward_op.register_fake
def _(*given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *layer, _smoothing = given
    stream = Stream(*layer)
    rows = stream.x.new_empty(stream.x.shape[0], dtype=stream.wide)
    return rows, torch.empty_like(rows), torch.empty_like(rows), stream.empty_carries()


@_backward_op.register_fake
def _(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, _, offset, *_ = given
    wants_x, wants_weight, wants_offset = given[-1]
    return (
        x.new_empty(x.shape if wants_x else 0),  # rows one after the other, however those of x lie
        weight.new_empty(weight.shape[0] if wants_weight else 0, x.shape[1]),
        given[-3].new_empty(offset.shape if wants_offset else 0),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, target, offset, class_weight, *rest, smoothing = inputs
    *_, lse, carries = output
    ctx.save_for_backward(x, weight, target, offset, class_weight, lse, carries)
    ctx.rest, ctx.smoothing = rest, smoothing
    ctx.mark_non_differentiable(lse, carries)
    ctx.set_materialize_grads(False)  # the carries have no gradient, and zeros of their size would be held for it


def _differentiate(ctx: Any, u: Tensor | None, v: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    *layer, lse, carries = ctx.saved_tensors
    x, weight, _, offset, *_ = ctx.needs_input_grad
    wants = [x, weight, offset]
    u = torch.zeros_like(lse) if u is None else u
    found = _gradients(*layer, *ctx.rest, u, v if ctx.smoothing else None, lse, carries, wants)
    dx, dw, do = (gradient if wanted else None for gradient, wanted in zip(found, wants, strict=True))
    return dx, dw, None, do, *(None,) * 6


_gradients = with_derivative(_backward_op, _backward, refuse_second_derivatives, lambda ctx, inputs, output: None)
_losses = with_derivative(_forward_op, _forward, _differentiate, _keep)
