"""Cross-entropy of a head's logits without the logits: for so many classes that they would not fit."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep.checks import (
    IGNORED,
    Basis,
    Reduction,
    check_count,
    check_floating,
    check_index_type,
    check_labels,
    check_per_class,
    check_reduction,
    check_smoothing,
)
from maxsep.heads import MaxSeparationHead, PlainHead, ScaledHead
from maxsep.ops import separate, triton_scan, wide_dtype, widened
from maxsep.ops.fused import row_losses
from maxsep.ops.fused.reduction import Counting, reduced
from maxsep.ops.layer_node import linear_then
from maxsep.ops.modes import is_autocasting, is_transformed
from maxsep.ops.row_cross_entropy import HELD

__all__ = ["fused_cross_entropy"]

HELD_BYTES = 64 << 20
"""Up to this size the C-1 outputs of a MaxSeparationHead on CUDA are held, and one kernel makes the loss of a row of
them: one product less than in chunks, and few launches."""


def fused_cross_entropy(
    head: nn.Module,
    x: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    adjustment: Tensor | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Compute F.cross_entropy(head(x) + adjustment, target, ...) and its gradients without the logits in memory.

    It goes through the classes in chunks and computes the logits twice. Memory beside the weight, the features and
    their gradients is a few percent of these (a bias takes three numbers per class more). On CUDA, outputs that take at
    most 64 MiB are held instead, in the recursive basis; in the Householder basis nothing is folded into the weight.
    Sums are made in float32, float64 for float64, and the loss is in that precision.

    Args:
        head: A `MaxSeparationHead`, a `PlainHead`, a `ScaledHead` or an `nn.Linear`.
        x: Features, (..., in_features). The leading dimensions are samples.
        target: Class indices, of the shape of these leading dimensions.
        weight: Of every class, (C,), as in F.cross_entropy.
        ignore_index: The label of samples that shall not count.
        reduction: `mean` (weighted), `sum` or `none`.
        label_smoothing: From 0 to 1, as in F.cross_entropy.
        adjustment: Added to the logits of every sample, (C,), such as log-priors. It may be trained.
        chunk_size: Classes at a time; chosen from the memory if left out. With it, chunks are taken in any case.

    Pitfall: the head's own `forward` is not called, so its hooks do not run. A label that is no class raises in CPU
    tensors; on other devices, and in compiled code, the loss is then NaN. There are no second derivatives. Under
    transforms of torch.func and in forward mode the logits are in memory after all, and there are.

    >>> head, x, target = MaxSeparationHead(16, 1000), torch.randn(4, 16), torch.tensor([1, 10, 100, 999])
    >>> torch.allclose(fused_cross_entropy(head, x, target), F.cross_entropy(head(x), target))
    True
    """
    layer = _layer_of(head)
    _check(layer, x, target, ignore_index)
    options = _Options(weight, ignore_index, reduction, label_smoothing, adjustment).checked(layer, x)
    chunk = None if chunk_size is None else check_count("chunk_size", chunk_size)
    rows, labels = x, target
    if target.dim() != 1:  # a view has a price, and a derivative with another
        rows, labels = x.reshape(-1, layer.in_features), target.reshape(-1)
    loss = _loss(layer, _in_product_precision(rows, layer.weight), labels, options, chunk)
    return loss.reshape(target.shape) if reduction == "none" else loss


class _Layer(NamedTuple):
    """What a head does, in numbers: radius * (P^T) (weight x + bias), P in one of two bases."""

    weight: Tensor
    bias: Tensor | None
    radius: float
    separate: bool
    basis: Basis

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def num_classes(self) -> int:
        return len(self.weight) + self.separate


class _Options(NamedTuple):
    """What F.cross_entropy takes beside logits and labels, and what is added to the logits."""

    weight: Tensor | None
    ignored: int
    reduction: Reduction
    smoothing: float
    adjustment: Tensor | None

    def checked(self, layer: _Layer, x: Tensor) -> _Options:
        reduction, smoothing = check_reduction(self.reduction), check_smoothing(self.smoothing)
        weight = check_per_class("weight", self.weight, layer.num_classes, x.device)
        adjustment = check_per_class("adjustment", self.adjustment, layer.num_classes, x.device)
        if weight is not None and weight.requires_grad:
            raise ValueError("weight requires a gradient, but class weights have none here. Pass weight.detach().")
        return _Options(weight, self.ignored, reduction, smoothing, adjustment)


def _layer_of(head: nn.Module) -> _Layer:
    for kind in (MaxSeparationHead, PlainHead, ScaledHead, nn.Linear):
        # a subclass with a forward of its own may compute anything
        if isinstance(head, kind) and type(head).forward is kind.forward:
            if getattr(head, "class_order", None) is not None:
                raise ValueError("fused_cross_entropy does not take a head with a class_order yet")
            radius = 1.0 if isinstance(head, nn.Linear) else head.radius
            return _Layer(head.weight, head.bias, radius, kind is MaxSeparationHead, "recursive")
    raise TypeError(
        f"head must be a MaxSeparationHead, PlainHead, ScaledHead or nn.Linear, got {type(head).__name__}. "
        "For other heads take F.cross_entropy(head(x), target), or fold the head first with maxsep.fold."
    )


def _is_held(layer: _Layer, x: Tensor, adjustment: Tensor | None) -> bool:
    constant = adjustment is None or not adjustment.requires_grad
    size = x.shape[0] * layer.weight.shape[0] * x.element_size()
    recursive = layer.separate and layer.basis != "householder"
    return recursive and constant and triton_scan.takes(x) and size <= HELD_BYTES


def _loss(layer: _Layer, x: Tensor, labels: Tensor, options: _Options, chunk: int | None) -> Tensor:
    """Take the outputs at once where they are small enough to be held, and chunk by chunk otherwise."""
    weight, ignored, reduction, smoothing, adjustment = options
    if is_transformed() or not x.shape[0]:
        return _loss_of_logits(layer, x, labels, options)
    if chunk is None and _is_held(layer, x, adjustment):
        more = (weight, adjustment, layer.radius, smoothing, ignored, reduction)
        return linear_then(HELD, x, layer.weight, layer.bias, labels, *more)
    given = _offset(layer, adjustment), weight
    offset, weight = (None if numbers is None else numbers.to(wide_dtype(x)) for numbers in given)
    nll, smooth = row_losses(
        x, layer.weight, labels, offset, weight,
        radius=layer.radius, separate=layer.separate, basis=layer.basis, smoothing=smoothing > 0, chunk=chunk,
    )  # fmt: skip
    return reduced(nll, smooth, labels, weight, Counting(layer.num_classes, ignored, smoothing, reduction))


def _loss_of_logits(layer: _Layer, x: Tensor, labels: Tensor, options: _Options) -> Tensor:
    """Hold the logits: for transforms, to which a kernel has no derivative, and for no samples, which have no chunk."""
    logits = _behind(layer, widened(F.linear(x, layer.weight.to(x.dtype))))
    offset = _offset(layer, options.adjustment)
    return F.cross_entropy(
        logits if offset is None else logits + offset,
        labels,
        None if options.weight is None else options.weight.to(logits.dtype),
        reduction=options.reduction,
        label_smoothing=options.smoothing,
        ignore_index=options.ignored,
    )


def _offset(layer: _Layer, adjustment: Tensor | None) -> Tensor | None:
    if layer.bias is None:
        return adjustment
    offset = _behind(layer, widened(layer.bias))
    return offset if adjustment is None else offset + adjustment


def _behind(layer: _Layer, outputs: Tensor) -> Tensor:
    """Return the logits of outputs, both in the last dimension."""
    return separate(outputs, layer.radius, basis=layer.basis) if layer.separate else outputs * layer.radius


def _in_product_precision(x: Tensor, weight: Tensor) -> Tensor:
    device = x.device.type
    if is_autocasting(device) and x.dtype != torch.float64:
        return x.to(torch.get_autocast_dtype(device))
    if x.dtype != weight.dtype:
        raise TypeError(
            f"x and the head's weight must have one dtype, got {x.dtype} and {weight.dtype}. "
            "Convert one of them, or call this under torch.autocast."
        )
    return x


def _check(layer: _Layer, x: Any, target: Any, ignore_index: Any) -> None:
    check_floating(x)
    check_index_type(target)
    if x.dim() == 0 or x.shape[-1] != layer.in_features:
        raise ValueError(
            f"x must be (..., {layer.in_features}), the features that the head takes, got shape {tuple(x.shape)}. "
            "Pass what the head is called with, not its logits."
        )
    if target.shape != x.shape[:-1]:
        raise ValueError(
            f"target must be {tuple(x.shape[:-1])}, a class index for every sample of x, got shape "
            f"{tuple(target.shape)}. Turn one-hot rows into indices with target.argmax(-1)."
        )
    if not x.device == target.device == layer.weight.device:
        raise ValueError(
            f"x, target and head must be on one device, got {x.device}, {target.device} and {layer.weight.device}. "
            "Move them with .to(device)."
        )
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index must be an int, got {ignore_index!r}. Pass the label to leave out.")
    check_labels(target, layer.num_classes, ignore_index)
