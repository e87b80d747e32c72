r"""From what every sample loses to one number: which of them count, and their mean or sum.

    value = (1-e) w_y nll + e smooth,    0 where the label is ignored, NaN where it is no class
    mean  = sum value / sum w_y of all that count

A sample that is ignored, and one whose label is no class, has no gradient. In torch that is some twenty launches there
and back, each longer on the host than on the GPU; by kernels it is one each way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from maxsep.checks import Reduction
from maxsep.ops.launching import launch
from maxsep.ops.modes import is_watched
from maxsep.ops.triton_scan import IS_INSTALLED, is_supported, on_device_of

MOST_SAMPLES = 1 << 16
"""That one program adds up; torch has more programs for more."""
AT_ONCE = 4096
SAMPLES = 256
"""Of a program that spreads the gradient."""


class Counting(NamedTuple):
    """What decides how much a sample counts."""

    num_classes: int
    ignored: int
    smoothing: float
    reduction: Reduction


def reduced(nll: Tensor, smooth: Tensor, target: Tensor, weight: Tensor | None, counting: Counting) -> Tensor:
    """Return the loss of samples.

    Args:
        nll: Of every sample, (B,).
        smooth: What label smoothing adds, (B,), if there is any.
        target: Class indices, (B,).
        weight: Of every class, (C,), in the precision of nll.
        counting: All else.

    >>> nll, target = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0, -100, 3])
    >>> reduced(nll, nll, target, None, Counting(4, -100, 0.0, "mean"))
    tensor(3.5000)
    """
    if counting.reduction != "none" and not is_watched([nll, target]) and _suits(nll):
        loss: Tensor = _Reduced.apply(nll, smooth, target, weight, counting)  # type: ignore[no-untyped-call]
        return loss
    values, counted = _values(nll, smooth, target, weight, counting)
    if counting.reduction == "none":
        return values
    if counting.reduction == "sum":
        return values.sum()
    total = counted.sum()
    # nothing to take a mean of: the value is 0/0 as torch's is, but no gradient is
    return (values.sum() / torch.where(total == 0, 1, total)).masked_fill(total == 0, torch.nan)


def _values(
    nll: Tensor, smooth: Tensor, target: Tensor, weight: Tensor | None, counting: Counting
) -> tuple[Tensor, Tensor]:
    """Return the loss of every sample, and how much it counts in the mean."""
    counts = target != counting.ignored
    is_class = (target >= 0) & (target < counting.num_classes)
    counted, values = counts, nll
    if weight is not None:
        own = weight[torch.where(is_class, target, 0)]
        counted, values = torch.where(counts, own, 0), own * nll
    if counting.smoothing:
        values = (1 - counting.smoothing) * values + counting.smoothing * smooth
    return torch.where(counts, torch.where(is_class, values, torch.nan), 0.0), counted


def _spread(g: Tensor, target: Tensor, weight: Tensor | None, counting: Counting) -> tuple[Tensor, Tensor]:
    """Return the gradients of nll and of what smoothing adds, for that of a sample that counts."""
    is_class = (target >= 0) & (target < counting.num_classes)
    g = torch.where((target != counting.ignored) & is_class, g, 0.0)
    own = 1.0 if weight is None else weight[torch.where(is_class, target, 0)]
    return (1 - counting.smoothing) * g * own, counting.smoothing * g


def _suits(nll: Tensor) -> bool:
    fits = nll.is_cuda and nll.dtype == torch.float32 and len(nll) <= MOST_SAMPLES
    return fits and IS_INSTALLED and is_supported(nll.device.index)


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, nll: Tensor, smooth: Tensor, target: Tensor, weight: Tensor | None, counting: Counting
    ) -> Tensor:
        from maxsep.ops.kernels import samples

        loss, share, target = nll.new_empty(()), nll.new_empty(()), target.contiguous()
        weight = None if weight is None else weight.contiguous()
        with on_device_of(nll):
            launch(
                samples.reduce_rows, (1,), (nll.contiguous(), smooth.contiguous(), target, weight, loss, share),
                (counting.smoothing, counting.num_classes - 1, counting.ignored, len(nll)),
                MEAN=counting.reduction == "mean", SMOOTH=counting.smoothing > 0, WEIGHT=weight is not None,
                ROWS=AT_ONCE, num_warps=16,
            )  # fmt: skip
        ctx.save_for_backward(target, weight, share)
        ctx.counting = counting
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        from maxsep.ops.kernels import samples

        target, weight, share = ctx.saved_tensors
        counting: Counting = ctx.counting
        if is_watched([upstream]):  # a batch of gradients, for one
            return *_spread(upstream * share, target, weight, counting), None, None, None
        u = share.new_empty(len(target))
        v = torch.empty_like(u) if counting.smoothing else None
        with on_device_of(share):
            launch(
                samples.spread_rows, (-(-len(target) // SAMPLES),), (upstream, share, target, weight, u, v),
                (counting.smoothing, counting.num_classes - 1, counting.ignored, len(target)),
                SMOOTH=counting.smoothing > 0, WEIGHT=weight is not None, ROWS=SAMPLES, num_warps=2,
            )  # fmt: skip
        return u, v, None, None, None
