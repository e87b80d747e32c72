"""Cross-entropy of radius * P^T z + offset, straight from the C-1 outputs z of a layer.

On CUDA one program per row keeps the logits in registers: the forward pass reads z once, the backward pass reads it
again and writes its gradient. Elsewhere, and under transforms, it is `separate` and `F.cross_entropy`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.checks import (
    Reduction,
    check_floating,
    check_index_type,
    check_per_class,
    check_radius,
    check_reduction,
    check_smoothing,
)
from maxsep.ops import triton_scan
from maxsep.ops.dispatch import separate, wide_dtype, widened
from maxsep.ops.modes import is_transformed

LONGEST_BLOCK = 4096
"""Logits of one row that a program holds at once; longer rows are read in several tiles."""


def row_cross_entropy(
    z: Tensor,
    target: Tensor,
    radius: float = 1.0,
    *,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    logit_adjustment: Tensor | None = None,
    padding: int = 0,
) -> Tensor:
    """Compute F.cross_entropy(separate(z, radius) + logit_adjustment, target, ...) without the logits in memory.

    Args:
        z: Outputs of a layer, (B, C-1 + padding); half precision is summed in float32.
        target: Class indices, (B,), int64. A class that does not exist makes the loss NaN on CUDA, an error elsewhere.
        radius: Length of the class vectors.
        reduction: `mean` (over the weights of the samples that count), `sum` or `none`.
        label_smoothing: Share of the target that is spread over all classes, from 0 to 1.
        weight: One weight per class, (C,); a constant.
        ignore_index: Target of samples that do not count.
        logit_adjustment: One number per class that is added to the logits, (C,); a constant.
        padding: Columns behind the outputs, up to a multiple of 8, that mean nothing; their gradient is zero.

    Returns:
        The loss in float32 (float64 for float64): a scalar, or (B,) for `none`. It can be differentiated once on CUDA.

    >>> z, target = torch.randn(3, 4), torch.tensor([0, 4, 2])
    >>> torch.allclose(row_cross_entropy(z, target, 0.5), F.cross_entropy(separate(z, 0.5), target))
    True
    """
    radius = check_radius(radius)
    _check(z, target)
    reduction, smoothing = check_reduction(reduction), check_smoothing(label_smoothing)
    k = z.shape[1] - padding
    weight = _constant("weight", weight, z, k + 1)
    offset = _constant("logit_adjustment", logit_adjustment, z, k + 1)
    if not triton_scan.takes(z) or is_transformed() or not len(z):
        logits = separate(widened(z[:, :k]), radius)
        return F.cross_entropy(
            logits if offset is None else logits + offset,
            target,
            weight,
            reduction=reduction,
            label_smoothing=smoothing,
            ignore_index=ignore_index,
        )
    loss: Tensor = loss_op(z, target, weight, offset, radius, smoothing, ignore_index, padding, reduction)[0]
    return loss


def _constant(name: str, values: Tensor | None, z: Tensor, num_classes: int) -> Tensor | None:
    numbers = check_per_class(name, values, num_classes, z.device)
    return None if numbers is None else numbers.detach().to(wide_dtype(z)).contiguous()


def _check(z: Tensor, target: Tensor) -> None:
    check_floating(z)
    check_index_type(target)
    if z.dim() != 2 or z.shape[1] == 0:
        raise ValueError(f"z must be (batch, C-1), got shape {tuple(z.shape)}. Flatten the other dimensions first.")
    if target.device != z.device:
        raise ValueError(f"z and target must be on one device, got {z.device} and {target.device}. Use target.to().")
    if target.shape != z.shape[:1]:
        raise ValueError(
            f"target must be {tuple(z.shape[:1])}, a class index for every row of z, got shape {tuple(target.shape)}. "
            "Turn one-hot rows into indices with target.argmax(1)."
        )


@torch.library.custom_op("maxsep::row_cross_entropy", mutates_args=())
def loss_op(
    z: Tensor,
    target: Tensor,
    weight: Tensor | None,
    offset: Tensor | None,
    radius: float,
    smoothing: float,
    ignore: int,
    padding: int,
    reduction: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, the log-sum-exp of every row, and the factor that the reduction puts on every row."""
    from maxsep.ops.kernels import cross_entropy as kernels

    loss, lse, scale = _loss_like(z, target, weight, offset, radius, smoothing, ignore, padding, reduction)
    losses, target = loss if reduction == "none" else torch.empty_like(lse), target.contiguous()
    rows, k = z.shape[0], z.shape[1] - padding
    tile, options, position = _prepare(z, k, weight, offset, radius, smoothing)
    with triton_scan.on_device_of(z):
        kernels.forward[(-(-rows // tile.rows),)](
            z, target, weight, _total(weight, smoothing), offset, losses, lse, rows, k, *position, smoothing, ignore,
            **options,
        )  # fmt: skip
        if reduction != "none":
            kernels.total[(1,)](
                losses, target, weight, loss, scale, rows, k, ignore, MEAN=reduction == "mean",
                HAS_WEIGHT=weight is not None, BLOCK=1024,
            )  # fmt: skip
    return loss, lse, scale


def _loss_like(z: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    def empty(*shape: int) -> Tensor:
        return z.new_empty(shape, dtype=torch.float32)

    return empty(*z.shape[:1] if rest[-1] == "none" else ()), empty(z.shape[0]), empty()


@torch.library.custom_op("maxsep::row_cross_entropy_gradient", mutates_args=())
def gradient_op(
    upstream: Tensor,
    z: Tensor,
    target: Tensor,
    weight: Tensor | None,
    offset: Tensor | None,
    lse: Tensor,
    scale: Tensor,
    radius: float,
    smoothing: float,
    ignore: int,
    padding: int,
) -> Tensor:
    """Return the gradient of the loss with respect to z, with rows that start at multiples of 16 bytes."""
    from maxsep.ops.kernels import cross_entropy as kernels

    out, target = _gradient_like(upstream, z), target.contiguous()
    rows, k = z.shape[0], z.shape[1] - padding
    tile, options, position = _prepare(z, k, weight, offset, radius, smoothing)
    out_row, out_align, out_end = triton_scan.writing(out)
    with triton_scan.on_device_of(z):
        kernels.backward[(-(-rows // tile.rows),)](
            z, target, weight, _total(weight, smoothing), offset, lse, scale, upstream.contiguous(), out, rows, k,
            *position, smoothing, ignore, out_row, out_end, OUT_ALIGN=out_align, PER_ROW=upstream.dim() > 0, **options,
        )  # fmt: skip
    return out


def _gradient_like(upstream: Tensor, z: Tensor, *rest: Any) -> Tensor:
    return triton_scan.padded_empty(z, tuple(z.shape), z.dtype)


def _prepare(
    z: Tensor, k: int, weight: Tensor | None, offset: Tensor | None, radius: float, smoothing: float
) -> tuple[triton_scan.Tile, dict[str, Any], tuple[Any, ...]]:
    tile = choose_tile(len(z), k + 1)
    z_row, align, end, end_align = triton_scan.reading(z)
    options = {
        "ALIGN": align,
        "END_ALIGN": end_align,
        "HAS_WEIGHT": weight is not None,
        "HAS_OFFSET": offset is not None,
        "SMOOTH": smoothing > 0,
        "ROWS": tile.rows,
        "BLOCK": tile.block,
        "num_warps": tile.warps,
    }
    return tile, options, (triton_scan.scale_of(radius, k), z_row, z.stride(1), end)


def choose_tile(rows: int, num_classes: int) -> triton_scan.Tile:
    """Return how many rows and classes a program holds at once, and its warps; not yet measured on a GPU."""
    block = min(LONGEST_BLOCK, triton_scan.power_of_two(num_classes))
    return triton_scan.Tile(max(1, min(triton_scan.power_of_two(rows), 512 // block)), block, 4 if block < 4096 else 8)


def _total(weight: Tensor | None, smoothing: float) -> Tensor | None:
    return None if weight is None or smoothing == 0 else weight.sum()


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    z, target, weight, offset, *ctx.numbers, _ = inputs
    _, lse, scale = output
    ctx.set_materialize_grads(False)  # nobody differentiates the log-sum-exp, and zeros would be written for it
    ctx.save_for_backward(z, target, weight, offset, lse, scale)


def _backward(ctx: Any, upstream: Tensor | None, *rest: Tensor | None) -> tuple[Tensor | None, ...]:
    gradient = None if upstream is None else gradient_op(upstream, *ctx.saved_tensors, *ctx.numbers)
    return gradient, *[None] * 8


def refuse_second_derivatives(ctx: Any, *_: Any) -> None:
    """Be the derivative of a gradient that has none."""
    raise RuntimeError(
        "this cross-entropy has first derivatives only, and its gradient was asked for one. "
        "Leave create_graph out, or take F.cross_entropy(head(x), target), which has them all."
    )


loss_op.register_fake(_loss_like)
gradient_op.register_fake(_gradient_like)
loss_op.register_autograd(_backward, setup_context=_remember)
gradient_op.register_autograd(refuse_second_derivatives, setup_context=lambda ctx, inputs, output: None)
