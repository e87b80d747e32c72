"""Cross-entropy of radius * P^T z + offset, straight from the C-1 outputs z of a layer.

On CUDA a program keeps the logits of its rows in registers: the forward pass reads z once, the backward pass reads it
again and writes its gradient. Elsewhere, and under transforms, it is `separate` and `F.cross_entropy`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.checks import (
    Reduction,
    advice_on_labels,
    check_floating,
    check_index_type,
    check_per_class,
    check_radius,
    check_reduction,
    check_smoothing,
)
from maxsep.ops import triton_scan
from maxsep.ops.adjoint_pair import padded_empty
from maxsep.ops.dispatch import separate, wide_dtype, widened
from maxsep.ops.eager import with_derivative
from maxsep.ops.launching import launch
from maxsep.ops.layer_node import Step
from maxsep.ops.modes import is_transformed
from maxsep.ops.row_plan import Tile, power_of_two, reading, spare, writing

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

    The matrix is that of the paper's basis; there is no form of this in the other one.

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
    classes = z.shape[1] - padding + 1
    weight = check_per_class("weight", weight, classes, z.device)
    offset = check_per_class("logit_adjustment", logit_adjustment, classes, z.device)
    return checked_row_cross_entropy(z, padding, target, weight, offset, radius, smoothing, ignore_index, reduction)


def checked_row_cross_entropy(
    z: Tensor,
    padding: int,
    target: Tensor,
    weight: Tensor | None,
    offset: Tensor | None,
    radius: float,
    smoothing: float,
    ignore: int,
    reduction: Reduction,
) -> Tensor:
    """Do what `row_cross_entropy` does, for a caller that has checked the arguments.

    >>> z, target = torch.randn(3, 4), torch.tensor([0, 4, 2])
    >>> loss = checked_row_cross_entropy(z, 0, target, None, None, 0.5, 0.1, -100, "mean")
    >>> torch.allclose(loss, row_cross_entropy(z, target, 0.5, label_smoothing=0.1))
    True
    """
    weight, offset = _constant(weight, z), _constant(offset, z)
    if not triton_scan.takes(z) or is_transformed() or not z.shape[0]:
        logits = separate(widened(z[:, : z.shape[1] - padding]), radius)
        return F.cross_entropy(
            logits if offset is None else logits + offset,
            target,
            weight,
            reduction=reduction,
            label_smoothing=smoothing,
            ignore_index=ignore,
        )
    loss: Tensor = row_losses(z, target, weight, offset, radius, smoothing, ignore, padding, reduction)[0]
    return loss


def _constant(numbers: Tensor | None, z: Tensor) -> Tensor | None:
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
            + advice_on_labels(target)
        )


def _loss(
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
    plan = launch_plan(*_described(z), k, weight is not None, offset is not None, radius, smoothing > 0)
    with triton_scan.on_device_of(z):
        launch(
            kernels.forward, plan.grid, (z, target, weight, _total(weight, smoothing), offset, losses, lse),
            (rows, k, *plan.source, smoothing, ignore), **plan.options,
        )  # fmt: skip
        if reduction != "none":
            launch(
                kernels.total, (1,), (losses, target, weight, loss, scale), (rows, k, ignore),
                MEAN=reduction == "mean", HAS_WEIGHT=weight is not None, BLOCK=1024,
            )  # fmt: skip
    return loss, lse, scale


def _loss_like(z: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    def empty(*shape: int) -> Tensor:
        return z.new_empty(shape, dtype=torch.float32)

    return empty(*z.shape[:1] if rest[-1] == "none" else ()), empty(z.shape[0]), empty()


def _gradient(
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
    plan = launch_plan(*_described(z), k, weight is not None, offset is not None, radius, smoothing > 0)
    out_row, out_align, out_end = writing(out.shape, out.stride())
    with triton_scan.on_device_of(z):
        launch(
            kernels.backward, plan.grid,
            (z, target, weight, _total(weight, smoothing), offset, lse, scale, upstream.contiguous(), out),
            (rows, k, *plan.source, smoothing, ignore, out_row, out_end),
            OUT_ALIGN=out_align, PER_ROW=upstream.dim() > 0, **plan.options,
        )  # fmt: skip
    return out


def _gradient_like(upstream: Tensor, z: Tensor, *rest: Any) -> Tensor:
    return padded_empty(z, tuple(z.shape), z.dtype)


class _Plan(NamedTuple):
    """What a launch is told besides the tensors, once for all calls with the same sizes."""

    grid: tuple[int]
    source: tuple[Any, ...]
    options: dict[str, Any]


def _described(z: Tensor) -> tuple[Any, ...]:
    return z.shape, z.stride(), spare(z)


@functools.lru_cache(maxsize=512)
def launch_plan(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    behind: int,
    k: int,
    has_weight: bool,
    has_offset: bool,
    radius: float,
    smooth: bool,
) -> _Plan:
    """Return what is the same in every launch for such outputs; whoever changes tiles has to clear this cache."""
    rows, _ = shape
    tile = choose_tile(rows, k + 1)
    z_row, align, end, end_align = reading(shape, strides, behind)
    options = {
        "ALIGN": align,
        "END_ALIGN": end_align,
        "HAS_WEIGHT": has_weight,
        "HAS_OFFSET": has_offset,
        "SMOOTH": smooth,
        "ROWS": tile.rows,
        "BLOCK": tile.block,
        "num_warps": tile.warps,
    }
    source = (triton_scan.scale_of(radius, k), z_row, strides[1], end)
    return _Plan((-(-rows // tile.rows),), source, options)


def choose_tile(rows: int, num_classes: int) -> Tile:
    """Return how many rows and classes a program holds at once, and its warps.

    On an H200, 1,024 rows of 1,000 classes take 4 to 5 microseconds each way; other tiles were not compared.
    """
    block = min(LONGEST_BLOCK, power_of_two(num_classes))
    return Tile(max(1, min(power_of_two(rows), 512 // block)), block, 4 if block < 4096 else 8)


def _total(weight: Tensor | None, smoothing: float) -> Tensor | None:
    return None if weight is None or smoothing == 0 else weight.sum()


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    z, target, weight, offset, *ctx.numbers, _ = inputs
    _, lse, scale = output
    ctx.set_materialize_grads(False)  # nobody differentiates the log-sum-exp, and zeros would be written for it
    ctx.save_for_backward(z, target, weight, offset, lse, scale)


def _backward(ctx: Any, upstream: Tensor | None, *rest: Tensor | None) -> tuple[Tensor | None, ...]:
    gradient = None if upstream is None else row_gradient(upstream, *ctx.saved_tensors, *ctx.numbers)
    return gradient, *[None] * 8


def _held_forward(
    z: Tensor, padding: int, target: Tensor, weight: Tensor | None, offset: Tensor | None, *options: Any
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    radius, smoothing, ignore, reduction = options
    weight, offset = _constant(weight, z), _constant(offset, z)
    loss, lse, scale = _loss(z, target, weight, offset, radius, smoothing, ignore, padding, reduction)
    return loss, (z, target, weight, offset, lse, scale)


def _held_backward(g: Tensor, kept: list[Any], dtype: torch.dtype, padding: int, *arguments: Any) -> Tensor:
    *_, radius, smoothing, ignore, _ = arguments
    gradient: Tensor = row_gradient(g, *kept, radius, smoothing, ignore, padding)
    return gradient


def refuse_second_derivatives(ctx: Any, *_: Any) -> None:
    """Be the derivative of a gradient that has none."""
    raise RuntimeError(
        "this cross-entropy has first derivatives only, and its gradient was asked for one. "
        "Leave create_graph out, or take F.cross_entropy(head(x), target), which has them all."
    )


loss_op = torch.library.custom_op("maxsep::row_cross_entropy", _loss, mutates_args=())
loss_op.register_fake(_loss_like)
row_losses = with_derivative(loss_op, _loss, _backward, _remember)
gradient_op = torch.library.custom_op("maxsep::row_cross_entropy_gradient", _gradient, mutates_args=())
gradient_op.register_fake(_gradient_like)
row_gradient = with_derivative(gradient_op, _gradient, refuse_second_derivatives, lambda ctx, inputs, output: None)
HELD = Step(checked_row_cross_entropy, _held_forward, _held_backward)
"""The loss behind a layer, for `linear_then`."""
