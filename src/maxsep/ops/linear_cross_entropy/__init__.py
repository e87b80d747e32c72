r"""Log-sum-exp and target logit of a linear layer, differentiable, without the logits in memory.

    logits = x W^T + offset,    lse_i = log sum_j exp logits_ij

Two algorithms: `over_classes` computes the logits twice and suits few features; `over_samples` suits wide features.
`choose_algorithm` decides between them and all logits in memory. Everything else of a loss (class weights, smoothing,
reductions) is ordinary code on these two vectors, in `maxsep.losses.fused`. Compilers see the three operators at the
end of this file; an eager call goes to the same code without the dispatcher. There are first derivatives only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from maxsep.ops.linear_cross_entropy import over_classes, over_samples
from maxsep.ops.linear_cross_entropy.over_samples import Factors, Layer
from maxsep.ops.separate import wide_dtype, without_autocast
from maxsep.ops.tracing import is_plain_eager, is_traced, is_transformed, refuse_second_derivatives

Algorithm = Literal["classes", "samples", "logits"]
Impl = Algorithm | Literal["auto"]
MAX_FEATURES_OVER_CLASSES = 512
"""Up to this width the fused kernels hold a block of samples on the multiprocessor."""
FEW_LOGITS = 64 << 20
"""Bytes of logits up to which a CPU holds them, and a GPU writes them rather than computing them twice."""
MIN_CHUNK_ROWS = 32
"""Samples of a chunk below which products on a CPU would be slow."""


def choose_algorithm(x: Tensor, weight: Tensor, impl: Impl = "auto") -> Algorithm:
    """Return how the loss of features x (B, D) and a weight (C, D) is computed.

    `impl` is what the user asked for; `auto` takes the fastest way that meets the memory limits.
    """
    (batch, features), outputs, itemsize = x.shape, len(weight), x.element_size()
    if is_transformed() or torch.compiler.is_exporting() or not batch:
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

    The factors are constants, zero for samples that do not count. So `over_samples` makes the gradients in the forward
    pass, and the backward pass only scales them.
    """
    layer = _in_one_precision(layer, algorithm)
    needs = [t is not None and t.requires_grad for t in (layer.x, layer.weight, layer.offset)]
    if torch.is_grad_enabled() and any(needs):
        result: Tensor = _WeightedSum.apply(*layer, *factors, counts, algorithm, needs)  # type: ignore[no-untyped-call]
        return result
    lse, target_logit = _run(_logsumexp, *layer, algorithm)
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
        x, weight, offset, target, ctx.algorithm = arguments
        lse, target_logit = _run(_logsumexp, *arguments)
        ctx.save_for_backward(x, weight, offset, target, lse)
        return lse, target_logit

    @staticmethod
    def backward(ctx: Any, grad_lse: Tensor, grad_target: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("impl='logits'")
        *tensors, lse = ctx.saved_tensors
        needs = list(ctx.needs_input_grad[:3])
        gradients = _run(_logsumexp_backward, *tensors, ctx.algorithm, lse, grad_lse, grad_target, needs)
        return *_needed(gradients, needs), None, None


class _WeightedSum(torch.autograd.Function):
    """A weighted sum of losses; over samples, its gradients are made in the forward pass and scaled in the backward."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        layer, factors, (counts, ctx.algorithm, ctx.needs) = arguments[:4], Factors(*arguments[4:7]), arguments[7:]
        x, weight, *_ = layer
        if ctx.algorithm == "samples":
            ctx.dtypes = x.dtype, weight.dtype, wide_dtype(x)
            underflow_scale = _underflow_scale(x, factors)
            scaled = factors if underflow_scale is None else [f if f is None else f * underflow_scale for f in factors]
            lse, target_logit, *gradients = _run(_loss_and_gradients, *layer, *scaled, ctx.needs)
            ctx.save_for_backward(underflow_scale, *gradients)
        else:
            lse, target_logit = _run(_logsumexp, *layer, ctx.algorithm)
            ctx.save_for_backward(*layer, lse, *factors)
        return _weighted_sum(lse, target_logit, factors, counts)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("impl='logits'")
        if ctx.algorithm == "samples":
            underflow_scale, *gradients = ctx.saved_tensors
            scale = g if underflow_scale is None else g / underflow_scale
            gradients = [_scaled(t, scale, dtype) for t, dtype in zip(gradients, ctx.dtypes, strict=True)]
        else:
            *layer, lse, grad_lse, grad_target, z_loss = ctx.saved_tensors
            factor = grad_lse if z_loss is None else grad_lse + 2 * z_loss * lse
            gradients = _run(_logsumexp_backward, *layer, ctx.algorithm, lse, factor * g, grad_target * g, ctx.needs)
        return *_needed(gradients, ctx.needs), *[None] * 7


def _needed(gradients: Any, needs: list[bool]) -> list[Tensor | None]:
    return [gradient if needed else None for gradient, needed in zip(gradients, needs, strict=True)]


def _underflow_scale(x: Tensor, factors: Factors) -> Tensor | None:
    """Return a factor that keeps float16 gradients from underflowing before the loss scale is known."""
    if x.dtype != torch.float16:
        return None
    largest = torch.stack([f.abs().amax() for f in (factors.grad_lse, factors.z_loss) if f is not None]).amax()
    return largest.clamp(min=1e-30).reciprocal()


def _scaled(tensor: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    scale = scale.reshape([1] * tensor.dim())  # torch would round a scale without dimensions to half precision
    if is_traced():  # the compiler joins the two, and does not accept every `out`
        return (tensor * scale).to(dtype)
    return torch.mul(tensor, scale, out=torch.empty_like(tensor, dtype=dtype))


def _run(op: Any, *arguments: Any) -> Any:
    """Call an operator, or in plain eager mode its implementation: the dispatcher would double the host time."""
    return _IMPLEMENTATIONS[op](*arguments) if is_plain_eager(arguments[0]) else op(*arguments)


def _operator(name: str, schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    op = torch.library.custom_op(f"maxsep::{name}", implementation, mutates_args=(), schema=schema)
    op.register_fake(fake)
    _IMPLEMENTATIONS[op] = implementation
    return op


def _dense(*tensors: Tensor | None) -> list[Any]:
    """Make numbers of samples and classes contiguous: kernels read them one after the other."""
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def _logsumexp_impl(*arguments: Any) -> tuple[Tensor, Tensor]:
    x, weight, offset, target, algorithm = arguments
    forward = over_classes.forward if algorithm == "classes" else over_samples.forward
    with without_autocast(x.device.type):
        return forward(Layer(x, weight, *_dense(offset, target)))


def _logsumexp_fake(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(len(x), dtype=wide_dtype(x)), x.new_empty(len(x), dtype=wide_dtype(x))


def _backward_impl(*arguments: Any) -> tuple[Tensor, ...]:
    x, weight, offset, target, algorithm, *vectors, needs = arguments
    layer, (lse, grad_lse, grad_target) = Layer(x, weight, *_dense(offset, target)), _dense(*vectors)
    with without_autocast(x.device.type):
        if algorithm == "classes":
            return over_classes.backward(layer, lse, grad_lse, grad_target, needs)
        return over_samples.backward(layer, grad_lse, grad_target, needs)


def _backward_fake(x: Tensor, weight: Tensor, offset: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    return _gradients_fake(x, weight, offset, weight.dtype, rest[-1])


def _loss_and_gradients_impl(*arguments: Any) -> tuple[Tensor, ...]:
    x, weight, offset, target, *factors, needs = arguments
    layer = Layer(x, weight, *_dense(offset, target))
    with without_autocast(x.device.type):
        lse, target_logit, gradients = over_samples.forward_with_gradients(layer, Factors(*_dense(*factors)), needs)
    return lse, target_logit, *gradients


def _loss_and_gradients_fake(x: Tensor, weight: Tensor, offset: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    dtype = over_samples.weight_sum_dtype(x, weight)
    return *_logsumexp_fake(x), *_gradients_fake(x, weight, offset, dtype, rest[-1])


def _gradients_fake(
    x: Tensor, weight: Tensor, offset: Tensor | None, dtype: torch.dtype, needs: list[bool]
) -> tuple[Tensor, ...]:
    dw = torch.empty_like(weight if needs[1] else weight[:0, 0], dtype=dtype)
    columns = x.new_empty(0 if offset is None or not needs[2] else len(offset), dtype=wide_dtype(x))
    return x.new_empty(x.shape if needs[0] else 0), dw, columns


_IMPLEMENTATIONS: dict[Any, Callable[..., Any]] = {}
_LAYER = "Tensor x, Tensor weight, Tensor? offset, Tensor target"
_FACTORS = "Tensor grad_lse, Tensor grad_target"
_logsumexp = _operator(
    "linear_logsumexp", f"({_LAYER}, str algorithm) -> (Tensor, Tensor)", _logsumexp_impl, _logsumexp_fake
)
_logsumexp_backward = _operator(
    "linear_logsumexp_backward",
    f"({_LAYER}, str algorithm, Tensor lse, {_FACTORS}, bool[] needs) -> (Tensor, Tensor, Tensor)",
    _backward_impl,
    _backward_fake,
)
_loss_and_gradients = _operator(
    "linear_loss_and_gradients",
    f"({_LAYER}, {_FACTORS}, Tensor? z_loss, bool[] needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _loss_and_gradients_impl,
    _loss_and_gradients_fake,
)
