r"""Log-sum-exp and target logit of a linear layer, differentiable, without the logits in memory.

    logits = x W^T + offset,    lse_i = log sum_j exp logits_ij

Two algorithms: `over_classes` computes the logits twice and suits few features; `over_samples` suits wide features.
`choose_algorithm` decides between them and all logits in memory. Everything else of a loss (class weights, smoothing,
reductions) is ordinary code on these two vectors, in `maxsep.losses.fused`. There are first derivatives only.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from maxsep.ops.linear_cross_entropy import over_classes, over_samples
from maxsep.ops.linear_cross_entropy.over_samples import Factors, Layer, empty_gradients
from maxsep.ops.separate import wide_dtype, without_autocast
from maxsep.ops.tracing import is_exporting, is_plain_eager, is_transformed, refuse_second_derivatives

Algorithm = Literal["classes", "samples", "logits"]
Impl = Algorithm | Literal["auto"]
MAX_FEATURES_OVER_CLASSES = 512  # the fused kernels hold a block of samples of this width on the multiprocessor
FEW_LOGITS = 64 << 20  # bytes of logits that a CPU holds, and that a GPU writes rather than computing them twice
MIN_CHUNK_ROWS = 32  # samples of a chunk below which products on a CPU would be slow


def choose_algorithm(x: Tensor, weight: Tensor, impl: Impl = "auto") -> Algorithm:
    """Return how to compute the loss of x (B, D) and weight (C, D): for `auto` the fastest within the memory limits."""
    (batch, features), outputs, itemsize = x.shape, len(weight), x.element_size()
    if is_transformed() or is_exporting() or not x.numel():
        return "logits"  # the operators have no transforms, and no form that an exported graph can hold
    if impl != "auto":
        return impl
    if not x.is_cuda:
        if batch * outputs * itemsize <= FEW_LOGITS:
            return "logits"
        rows = over_samples.chunk_rows(x, weight)
        return "samples" if rows >= min(batch, MIN_CHUNK_ROWS) else "classes"
    fuses = x.dtype in (torch.float16, torch.bfloat16) and over_classes.has_copy_engine(x.device) and features % 8 == 0
    is_narrow = features <= MAX_FEATURES_OVER_CLASSES
    few = FEW_LOGITS if is_narrow else over_samples.FEW_BYTES["cuda"]
    if not fuses or batch * outputs * itemsize <= few:
        return "samples"
    return "classes" if is_narrow or batch >= 8 * features else "samples"


def layer_logsumexp(layer: Layer, algorithm: Algorithm) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp and the target's logit of every sample, (B,) each, differentiable in x, weight, offset."""
    lse, target_logit = _LogSumExp.apply(*_in_one_precision(layer, algorithm), algorithm)  # type: ignore[no-untyped-call]
    return lse, target_logit


def weighted_sum_of_losses(layer: Layer, factors: Factors, counts: Tensor, algorithm: Algorithm) -> Tensor:
    """Return sum_i grad_lse_i lse_i + grad_target_i target_logit_i + z_loss_i lse_i^2 over the samples that count.

    The factors are constants, zero for samples that do not count, so `over_samples` knows the gradients beforehand.
    """
    layer = _in_one_precision(layer, algorithm)
    needs = [t is not None and t.requires_grad for t in (layer.x, layer.weight, layer.offset)]
    if torch.is_grad_enabled() and any(needs):
        result: Tensor = _WeightedSum.apply(*layer, *factors, counts, algorithm, needs)  # type: ignore[no-untyped-call]
        return result
    lse, target_logit = _logsumexp(*layer, algorithm)
    return _weighted_sum(lse, target_logit, factors, counts)


def _in_one_precision(layer: Layer, algorithm: Algorithm) -> Layer:
    return layer if algorithm == "samples" else layer._replace(weight=layer.weight.to(layer.x.dtype))


def _weighted_sum(lse: Tensor, target_logit: Tensor, factors: Factors, counts: Tensor) -> Tensor:
    value = torch.addcmul(factors.grad_lse * lse, factors.grad_target, target_logit)
    if factors.z_loss is not None:
        value = torch.addcmul(value, factors.z_loss, lse * lse)
    return torch.where(counts, value, 0).sum()


class _LogSumExp(torch.autograd.Function):
    """Log-sum-exp and target logit; the backward pass computes the logits again."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        *layer, ctx.algorithm = arguments
        lse, target_logit = _logsumexp(*arguments)
        ctx.save_for_backward(*layer, lse)
        return lse, target_logit

    @staticmethod
    def backward(ctx: Any, grad_lse: Tensor, grad_target: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("impl='logits'")
        *layer, lse = ctx.saved_tensors
        needs = list(ctx.needs_input_grad[:3])
        if ctx.algorithm == "classes":
            dx, dw, columns = _classes_backward(*layer, lse, grad_lse, grad_target, needs)
        else:
            _, _, dx, dw, columns, _ = _loss_and_gradients(*layer, grad_lse, grad_target, None, False, needs)
        return *_needed((dx, dw.to(layer[1].dtype), columns), needs), None, None


class _WeightedSum(torch.autograd.Function):
    """A weighted sum of losses; over samples, its gradients are made in the forward pass and scaled in the backward."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        layer, factors, (counts, ctx.algorithm, ctx.needs) = arguments[:4], Factors(*arguments[4:7]), arguments[7:]
        x, weight, *_ = layer
        if ctx.algorithm == "samples":
            ctx.weight_dtype, underflow_scale = weight.dtype, _underflow_scale(x, factors)
            scaled = factors if underflow_scale is None else [f if f is None else f * underflow_scale for f in factors]
            keeps_g = ctx.needs[1] and is_plain_eager(x) and over_samples.is_single_chunk(x, weight)
            needs = [ctx.needs[0], ctx.needs[1] and not keeps_g, ctx.needs[2]]
            lse, target_logit, *gradients, g = _loss_and_gradients(*layer, *scaled, keeps_g, needs)
            ctx.save_for_backward(underflow_scale, *gradients, *((x, g) if keeps_g else ()))
        else:
            lse, target_logit = _logsumexp(*layer, ctx.algorithm)
            ctx.save_for_backward(*layer, lse, *factors)
        return _weighted_sum(lse, target_logit, factors, counts)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("impl='logits'")
        if ctx.algorithm == "samples":
            underflow_scale, dx, dw, columns, *kept = ctx.saved_tensors
            scale = g if underflow_scale is None else g / underflow_scale
            if kept:
                x, at_logits = kept
                dw = x.new_empty(at_logits.shape[1], x.shape[1], dtype=ctx.weight_dtype)
                x = over_samples.scaled(x.contiguous(), scale, x.dtype)
                with without_autocast(x.device.type):
                    over_samples.add_weight_gradients(dw, x.new_empty(0), at_logits, x, is_first=True)
            else:
                dw = over_samples.scaled(dw, scale, ctx.weight_dtype)
            gradients = (over_samples.scaled(dx, scale, dx.dtype), dw, columns * scale)
        else:
            *layer, lse, grad_lse, grad_target, z_loss = ctx.saved_tensors
            factor = grad_lse if z_loss is None else grad_lse + 2 * z_loss * lse
            gradients = _classes_backward(*layer, lse, factor * g, grad_target * g, ctx.needs)
        return *_needed(gradients, ctx.needs), *[None] * 7


def _needed(gradients: Any, needs: list[bool]) -> list[Tensor | None]:
    return [gradient if needed else None for gradient, needed in zip(gradients, needs, strict=True)]


def _underflow_scale(x: Tensor, factors: Factors) -> Tensor | None:
    """Return a factor that keeps float16 gradients from underflowing before the loss scale is known."""
    if x.dtype != torch.float16:
        return None
    largest = torch.stack([f.abs().amax() for f in (factors.grad_lse, factors.z_loss) if f is not None]).amax()
    return largest.clamp(min=1e-30).reciprocal()


def _operator(name: str, schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register an operator; plain eager calls go to its implementation: the dispatcher would double the host time."""

    def register(implementation: Callable[..., Any]) -> Callable[..., Any]:
        def compute(*arguments: Any) -> Any:
            with without_autocast(arguments[0].device.type):
                # kernels read numbers of samples and classes one after the other
                return implementation(*(a.contiguous() if getattr(a, "ndim", 0) == 1 else a for a in arguments))

        def call(*arguments: Any) -> Any:
            return compute(*arguments) if is_plain_eager(arguments[0]) else op(*arguments)

        op = torch.library.custom_op(f"maxsep::{name}", compute, mutates_args=(), schema=schema)
        op.register_fake(fake)
        return call

    return register


def _logsumexp_fake(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    samples = x.shape[0]  # not len(x), which would tie a compiled graph to one batch size
    return x.new_empty(samples, dtype=wide_dtype(x)), x.new_empty(samples, dtype=wide_dtype(x))


def _loss_and_gradients_fake(x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    dtype = over_samples.weight_sum_dtype(x, weight)
    return *_logsumexp_fake(x), *empty_gradients(x, weight, dtype, rest[-1]), x.new_empty(0)


_LAYER = "Tensor x, Tensor weight, Tensor? offset, Tensor target"
_FACTORS = "Tensor grad_lse, Tensor grad_target"


@_operator("linear_logsumexp", f"({_LAYER}, str algorithm) -> (Tensor, Tensor)", _logsumexp_fake)
def _logsumexp(x: Tensor, weight: Tensor, offset: Tensor | None, target: Tensor, algorithm: str) -> tuple[Tensor, ...]:
    layer = Layer(x, weight, offset, target)
    if algorithm == "classes":
        return over_classes.forward(layer)
    return over_samples.forward_with_gradients(layer, None, [False] * 3)[:2]


@_operator(
    "linear_classes_backward",
    f"({_LAYER}, Tensor lse, {_FACTORS}, bool[] needs) -> (Tensor, Tensor, Tensor)",
    lambda x, weight, *rest: empty_gradients(x, weight, weight.dtype, rest[-1]),
)
def _classes_backward(*arguments: Any) -> tuple[Tensor, ...]:
    return over_classes.backward(Layer(*arguments[:4]), *arguments[4:])


@_operator(
    "linear_loss_and_gradients",
    f"({_LAYER}, {_FACTORS}, Tensor? z_loss, bool keeps_g, bool[] needs)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _loss_and_gradients_fake,
)
def _loss_and_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    *tensors, keeps_g, needs = arguments
    *results, g = over_samples.forward_with_gradients(Layer(*tensors[:4]), Factors(*tensors[4:]), needs)
    return *results, g if keeps_g else g.new_empty(0)
