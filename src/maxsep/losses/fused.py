"""Cross-entropy of a head or a linear layer without its logits in memory."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep.checks import (
    IGNORED,
    Reduction,
    check_features,
    check_floating,
    check_number,
    check_per_class,
    check_reduction,
    check_target,
)
from maxsep.heads import ControlHead, MaxSeparationHead, PlainHead, ScaledHead
from maxsep.ops.linear_cross_entropy import Algorithm, Impl, choose_algorithm, layer_logsumexp, weighted_sum_of_losses
from maxsep.ops.linear_cross_entropy.over_samples import Factors, Layer, index_among
from maxsep.ops.separate import (
    adjoint,
    is_autocasting,
    separate_linear,
    separate_to,
    wide_dtype,
    widened,
    without_autocast,
)
from maxsep.ops.tracing import is_dtensor

IMPLS = ("auto", "classes", "samples", "logits")


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
    sample_weight: Tensor | None = None,
    z_loss: float = 0.0,
    impl: Impl = "auto",
) -> Tensor:
    """Compute F.cross_entropy(head(x) + adjustment, target, ...) and its gradients without the logits in memory.

    The loss of a sample is sample_weight * (cross-entropy + z_loss * lse^2), lse the log-sum-exp of its logits; `mean`
    divides the sum by that of class weight times sample weight over the counted samples. Sums are made in float32, or
    float64 for float64 input, and the loss has that precision.

    Args:
        head: A `MaxSeparationHead`, `PlainHead`, `ScaledHead`, `ControlHead` or `nn.Linear`.
        x: Features, (..., in_features). Under autocast the weights may be in float32.
        target: Class indices, of the leading shape of x.
        weight: Class weights, (C,), as in F.cross_entropy.
        ignore_index: The label of samples that do not count.
        reduction: `mean`, `sum` or `none`.
        label_smoothing: From 0 to 1, as in F.cross_entropy.
        adjustment: Numbers (C,), such as log-priors, that are added to every sample's logits. They may be trained.
        sample_weight: Weights of the samples, of the shape of target.
        z_loss: Factor of the squared log-sum-exp.
        impl: `classes` computes the logits twice, in chunks of classes; `samples` goes through chunks of samples;
            `logits` holds all logits; `auto` chooses by shape, and `logits` only for up to 64 MiB of them on a CPU.
            Under transforms of torch.func it is always `logits`.

    Pitfall: the head's own `forward` is not called, so its hooks do not run. A label out of range is an error on a CPU;
    on a GPU labels are not looked at, and the loss is then NaN. Second derivatives and `is_grads_batched` need
    impl="logits". A mean over weights that sum to zero is not finite; its value and gradients depend on `impl`.

    >>> head, x, target = MaxSeparationHead(16, 1000), torch.randn(4, 16), torch.tensor([1, 10, 100, 999])
    >>> torch.allclose(fused_cross_entropy(head, x, target), F.cross_entropy(head(x), target))
    True
    """
    if impl not in IMPLS:
        raise ValueError(f"impl must be one of {', '.join(IMPLS)}, got {impl!r}")
    reduction, z_loss = check_reduction(reduction), check_number("z_loss", z_loss, "a number >= 0")
    smoothing = check_number("label_smoothing", label_smoothing, "a number in [0, 1]")
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index must be an int, got {ignore_index!r}")
    samples = _flat_samples(head, x, target, adjustment, ignore_index)
    weights = _class_weights(samples, weight), _sample_weights(samples, target, sample_weight)
    options = _Options(*weights, reduction, smoothing, z_loss)
    algorithm = choose_algorithm(samples.layer.x, samples.layer.weight, impl)
    is_weight_trained = sample_weight is not None and sample_weight.requires_grad and torch.is_grad_enabled()
    if algorithm != "logits" and reduction != "none" and not is_weight_trained:
        return _summed(samples, options, algorithm)
    losses = _losses(samples, options, algorithm)
    if reduction == "none":
        return losses.reshape(target.shape)
    return losses.sum() / _weights(samples, options)[1].sum() if reduction == "mean" else losses.sum()


def linear_logsumexp(
    head: nn.Module, x: Tensor, target: Tensor, *, adjustment: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp and the target's logit of every sample, without the logits in memory.

    Both have the leading shape of x, are in float32 (float64 for float64 input) and differentiable once in x, the
    head's parameters and `adjustment`: a base for losses of your own. Arguments are those of `fused_cross_entropy`.

    Pitfall: the target logit of a label that is no class, such as -100, is NaN.

    >>> head, x, target = nn.Linear(16, 1000), torch.randn(4, 16), torch.tensor([1, 10, 100, 999])
    >>> lse, logit = linear_logsumexp(head, x, target)
    >>> torch.allclose((lse - logit).mean().exp(), F.cross_entropy(head(x), target).exp())  # perplexity
    True
    """
    samples = _flat_samples(head, x, target, adjustment, IGNORED)
    lse, logit = _logsumexp(samples, choose_algorithm(samples.layer.x, samples.layer.weight))
    return lse.reshape(target.shape), logit.reshape(target.shape)


class _Samples(NamedTuple):
    """A head's layer with flat samples, and which of them count; targets and the offset are by column."""

    layer: Layer
    radius: float | None
    """The length of the class vectors if P follows the layer, else None."""
    num_classes: int
    is_counted: Tensor
    class_columns: Tensor | None
    """The column of P of every class, (C,); None if class j has column j."""

    def folded(self) -> Layer:
        """Return a plain layer with the same logits."""
        x, weight = self.layer.x, self.layer.weight
        if self.radius is None:
            return self.layer
        return self.layer._replace(weight=separate_to(weight.T, self.radius, x.dtype).T)


class _Options(NamedTuple):
    """Class weights by column, (C,), and sample weights, (B,), in the precision of sums, and the numbers."""

    weight: Tensor | None
    sample_weight: Tensor | None
    reduction: Reduction
    smoothing: float
    z_loss: float


def _flat_samples(head: nn.Module, x: Any, target: Any, adjustment: Tensor | None, ignore_index: int) -> _Samples:
    weight, bias, radius, scale = _parameters(head)
    for name, value in (("head", weight), ("x", x), ("target", target)):
        if is_dtensor(value):
            advice = "call head(x), the loss inside the forward of a fully_shard unit, or ClassParallelHead.loss"
            raise TypeError(f"{name} must hold whole tensors, got a DTensor: {advice}")
    if any(kind.__name__ == "FSDPModule" for kind in type(head).__mro__):  # its gradient would be lost
        raise TypeError("head must be part of a larger fully_shard unit, got a unit of its own: call head(x)")
    num_classes = len(weight) + (radius is not None)
    check_features(x, weight.shape[1], "in_features")
    check_target(target, x.shape[:-1], num_classes, ignore_index)
    if not x.device == target.device == weight.device:
        raise ValueError(f"x, target and head must be on one device, got {x.device}, {target.device}, {weight.device}")
    class_columns: Tensor | None = getattr(head, "class_columns", None)
    rows = _in_product_precision(x.reshape(target.numel(), x.shape[-1]), weight)  # x may have no features
    wide = wide_dtype(rows)
    if scale != 1:
        weight, bias = weight * scale, None if bias is None else bias * scale
    offset = None
    if bias is not None:
        offset = widened(bias) if radius is None else separate_to(widened(bias), radius, wide)
    adjustment = check_per_class("adjustment", adjustment, num_classes, x.device)
    if adjustment is not None:
        by_column = _by_column(adjustment.to(wide), class_columns)
        offset = by_column if offset is None else offset + by_column
    labels = target.reshape(-1)
    is_counted = labels != ignore_index
    if class_columns is not None:  # labels that are no class stay what they are
        index, is_class = index_among(labels, 0, num_classes)
        labels = torch.where(is_class, class_columns[index], labels)
    return _Samples(Layer(rows, weight, offset, labels), radius, num_classes, is_counted, class_columns)


def _by_column(values: Tensor, class_columns: Tensor | None) -> Tensor:
    """Turn one entry per class into one per column of P."""
    return values if class_columns is None else torch.zeros_like(values).index_copy(0, class_columns, values)


def _parameters(head: nn.Module) -> tuple[Tensor, Tensor | None, float | None, float]:
    """Return weight, bias, the radius in front of which P stands (or None), and a factor of weight and bias."""
    for kind in (MaxSeparationHead, PlainHead, ScaledHead, ControlHead, nn.Linear):
        # a subclass with its own forward or layer may compute anything
        methods = [(getattr(type(head), name, None), getattr(kind, name, None)) for name in ("forward", "layer")]
        if isinstance(head, kind) and all(method is inherited for method, inherited in methods):
            if isinstance(head, MaxSeparationHead):
                return head.weight, head.bias, head.radius, 1.0
            return head.weight, head.bias, None, 1.0 if isinstance(head, nn.Linear) else head.scale
    name = type(head).__name__
    if name == "Pointwise":
        raise TypeError("head must take x channels last, got one for a 1 x 1 convolution: pass its .layer")
    raise TypeError(
        "head must be a MaxSeparationHead, PlainHead, ScaledHead, ControlHead or nn.Linear without a forward or "
        f"layer of its own, got {name}"
    )


def _losses(samples: _Samples, options: _Options, algorithm: Algorithm) -> Tensor:
    """Return the loss of every sample, (B,): 0 where it does not count, NaN where its label is no class."""
    weight, sample_weight, _, smoothing, z_loss = options
    lse, logit = _logsumexp(samples, algorithm)
    value = lse - logit
    if weight is not None:
        value = value * _of_target(weight, samples)
    if smoothing:
        mean_weight = 1 if weight is None else weight.mean()
        value = (1 - smoothing) * value + smoothing * (lse * mean_weight - _mean_logit(samples, weight))
    if z_loss:
        value = value + z_loss * lse * lse
    value = torch.where(samples.is_counted, value, 0.0)  # first, or NaN would reach the gradient of the sample's weight
    return value if sample_weight is None else value * sample_weight


def _summed(samples: _Samples, options: _Options, algorithm: Algorithm) -> Tensor:
    """Return the mean or the sum, as a weighted sum of log-sum-exps and target logits with constant factors."""
    weight, _, reduction, smoothing, z_loss = options
    factor, of_class = _weights(samples, options)
    inverse = None
    if reduction == "mean":
        inverse = of_class.sum().reciprocal()
        finite = inverse.nan_to_num(posinf=0.0, neginf=0.0)
        is_same, factor = of_class is factor, factor * finite
        of_class = factor if is_same else of_class * finite
    grad_lse = of_class
    if smoothing:
        grad_lse = (1 - smoothing) * of_class + smoothing * factor * (1 if weight is None else weight.mean())
    factors = Factors(grad_lse, of_class * (smoothing - 1), z_loss * factor if z_loss else None)
    value = weighted_sum_of_losses(samples.folded(), factors, samples.is_counted, algorithm)
    if smoothing:
        # an ignored sample may be infinite, and 0 * inf is NaN
        mean_logit = torch.where(samples.is_counted, _mean_logit(samples, weight), 0)
        value = value - smoothing * (factor * mean_logit).sum()
    # 0 * inf: as in torch, the mean of no sample is NaN and its gradients are zero
    return value if inverse is None else torch.add(value, inverse, alpha=0)


def _weights(samples: _Samples, options: _Options) -> tuple[Tensor, Tensor]:
    """Return the sample weights of the counted samples, and these times the class weights, (B,) each."""
    factor = options.sample_weight
    if factor is None:
        factor = samples.is_counted.to(wide_dtype(samples.layer.x))
    return factor, factor if options.weight is None else factor * _of_target(options.weight, samples)


def _of_target(weight: Tensor, samples: _Samples) -> Tensor:
    """Return the class weight of every sample, 0 where it does not count or its label is no class."""
    index, is_class = index_among(samples.layer.target, 0, len(weight))
    return torch.where(samples.is_counted & is_class, weight[index], 0)


def _mean_logit(samples: _Samples, weight: Tensor | None) -> Tensor:
    """Return mean_j w_j logit_j of every sample by one product with a vector: the logits are linear in x."""
    (x, rows, offset, _), radius, num_classes = samples.layer, samples.radius, samples.num_classes
    wide = wide_dtype(x)
    shares = torch.ones(num_classes, device=x.device, dtype=wide) if weight is None else weight
    mean = torch.zeros(len(x), device=x.device, dtype=wide)
    with without_autocast(x.device.type):
        if radius is None or weight is not None:  # P maps equal shares to zero
            outputs = shares if radius is None else adjoint(shares, radius)
            mean = mean + widened(x) @ (outputs.to(rows.dtype) @ rows).to(wide)
        if offset is not None:
            mean = mean + offset @ shares
    return mean / num_classes


def _logsumexp(samples: _Samples, algorithm: Algorithm) -> tuple[Tensor, Tensor]:
    """Return log-sum-exp and target logit of every sample, (B,) each."""
    if algorithm != "logits":
        return layer_logsumexp(samples.folded(), algorithm)
    (x, weight, offset, target), radius = samples.layer, samples.radius
    weight = weight.to(x.dtype)
    logits = F.linear(x, weight) if radius is None else separate_linear(x, weight, None, radius)
    logits = widened(logits) if offset is None else logits + offset
    index, is_class = index_among(target, 0, samples.num_classes)
    picked = logits.gather(-1, index[:, None])[:, 0]
    return logits.logsumexp(-1), torch.where(is_class, picked, torch.nan)


def _class_weights(samples: _Samples, weight: Tensor | None) -> Tensor | None:
    layer = samples.layer
    weight = check_per_class("weight", weight, samples.num_classes, layer.x.device)
    if weight is None:
        return None
    if weight.requires_grad:
        raise ValueError("weight must not require a gradient: class weights have none here")
    return _by_column(weight.to(wide_dtype(layer.x)), samples.class_columns)


def _sample_weights(samples: _Samples, target: Tensor, sample_weight: Tensor | None) -> Tensor | None:
    """Return the weight of every sample, 0 where it does not count."""
    if sample_weight is None:
        return None
    if check_floating(sample_weight, "sample_weight").shape != target.shape:
        raise ValueError(f"sample_weight must be {tuple(target.shape)} as target is, got {tuple(sample_weight.shape)}")
    return torch.where(samples.is_counted, sample_weight.reshape(-1).to(wide_dtype(samples.layer.x)), 0)


def _in_product_precision(x: Tensor, weight: Tensor) -> Tensor:
    device = x.device.type
    if is_autocasting(device) and torch.float64 not in (x.dtype, weight.dtype):  # autocast leaves float64 as it is
        return x.to(torch.get_autocast_dtype(device))
    if x.dtype != weight.dtype:
        allowed = "one dtype, or at most 32 bits each under autocast"
        raise TypeError(f"x and the head's weight must have {allowed}, got {x.dtype} and {weight.dtype}")
    return x
