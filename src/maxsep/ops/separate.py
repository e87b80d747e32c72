r"""x -> radius * P^T x and its adjoint in O(C) time and memory per sample.

    separate   o_j = s_j x_j - sum_{i<j} r_i x_i     j = 0..C-1, with s_{C-1} x_{C-1} = 0
    adjoint    x_i = s_i g_i - r_i sum_{j>i} g_j     i = 0..C-2

On CUDA one Triton kernel does it (`separate_triton`). Elsewhere eager calls run an autograd function that works inside
one output buffer; traced and transformed calls (torch.compile, torch.export, torch.func) run plain operations.
"""

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.checks import check_floating, check_number
from maxsep.ops.separate_triton import has_triton_kernel, separate_triton
from maxsep.ops.tracing import is_dtensor, is_plain_eager
from maxsep.simplex import coefficients


def separate(x: Tensor, radius: float = 1.0) -> Tensor:
    """Turn C-1 outputs into C logits whose class vectors are as far apart as geometry allows.

    logits = radius * P^T x for x of shape (..., C-1); the result has shape (..., C) and sums to zero along it.
    Half-precision input is summed in float32 and returned in half precision; under autocast the result is float32, as
    softmax's is.

    Args:
        x: Outputs of a network, real floating point, at least one in the last dimension.
        radius: The length of the class vectors; a positive number that scales all logits.

    Pitfall: the radius is also a learning rate. With a trained layer in front, SGD moves the composed classifier as a
    plain layer with the learning rate times k = radius^2 C/(C-1) and the weight decay over k.

    >>> separate(torch.tensor([[1.0, 0.0]]))
    tensor([[ 1.0000, -0.5000, -0.5000]])
    """
    radius = check_number("radius", radius, "a positive number")
    check_floating(x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must be (..., C-1) with at least one output, got shape {tuple(x.shape)}")
    dtype = torch.float32 if is_autocasting(x.device.type) and x.dtype != torch.float64 else x.dtype
    return separate_to(x, radius, dtype)


def separate_to(x: Tensor, radius: float, dtype: torch.dtype) -> Tensor:
    """Apply radius * P^T along the last dimension, with sums in `wide_dtype(x)` and the result in `dtype`."""
    if is_dtensor(x):
        return _separate_shards(x, radius, dtype)
    if has_triton_kernel(x):
        return separate_triton(x, radius, dtype)
    s, r = scaled_coefficients(_last_size(x) + 1, radius, widened(x))
    return _scan(widened(x), s, r, False).to(dtype)


def _separate_shards(x: Any, radius: float, dtype: torch.dtype) -> Tensor:
    """Apply P to a DTensor: every class needs all earlier outputs, so a sharded last dimension is gathered first."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    kept = [p if isinstance(p, Shard) and p.dim % x.dim() != x.dim() - 1 else Replicate() for p in x.placements]
    local = separate_to(x.redistribute(placements=kept).to_local(), radius, dtype)
    shape = torch.Size((*x.shape[:-1], x.shape[-1] + 1))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, x.device_mesh, kept, run_check=False, shape=shape, stride=stride)


def adjoint(g: Tensor, radius: float) -> Tensor:
    """Apply radius * P to g (..., C) in float32 or float64; (C-1)/C times it, at radius 1, undoes `separate`."""
    if has_triton_kernel(g):
        return separate_triton(g, radius, g.dtype, is_adjoint=True)
    s, r = scaled_coefficients(_last_size(g), radius, g)
    return _scan(g, s, r, True)


def separate_linear(x: Tensor, weight: Tensor, bias: Tensor | None, radius: float) -> Tensor:
    """Compute radius * P^T (weight x + bias); x (..., D), weight (C-1, D), result (..., C).

    On CUDA, or with more samples than features, P is folded into the weight, and else applied to the outputs.
    """
    if x.device != weight.device:  # products of torch do not notice weights on the meta device
        raise ValueError(f"x must be on the device of the weight, {weight.device}, got {x.device}")
    autocasting = is_autocasting(x.device.type)
    if has_triton_kernel(weight) and not is_dtensor(weight):
        dtype = torch.get_autocast_dtype("cuda") if autocasting else weight.dtype
        folded = separate_to(weight.T, radius, dtype).T
        logits = F.linear(x, folded, None if bias is None else separate_to(bias, radius, dtype))
        return logits.float() if autocasting else logits
    # An exported or traced graph serves every batch, so its size is not asked for. Half-precision products round what
    # P would have summed in float32, so there P stays behind them.
    wide = x.dtype == weight.dtype in (torch.float32, torch.float64) and not autocasting
    if not wide or x.is_cuda or not is_plain_eager(x, weight):
        return separate(F.linear(x, weight, bias), radius)
    if x.numel() > x.shape[-1] ** 2:
        return F.linear(x, separate_to(weight.T, radius, x.dtype).T, bias if bias is None else separate(bias, radius))
    s, r = scaled_coefficients(len(weight) + 1, radius, x)
    result: Tensor = _SeparateLinear.apply(x, weight, bias, s, r)  # type: ignore[no-untyped-call]
    return result


def widened(x: Tensor) -> Tensor:
    """Return x in the precision of sums: float64 stays, everything else becomes float32."""
    return x.to(wide_dtype(x))


def wide_dtype(x: Tensor) -> torch.dtype:
    """Return the precision in which x is summed: float64 for float64, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def is_autocasting(device: str) -> bool:
    """Return whether autocast is on for a kind of device."""
    return device != "meta" and torch.is_autocast_enabled(device)  # torch refuses to answer for the meta device


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Switch autocast off for a kind of device, where it is on."""
    return torch.autocast(device, enabled=False) if is_autocasting(device) else nullcontext()


def scaled_coefficients(num_classes: int, radius: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return radius * s and radius * r of P, (C-1,) each, on the device and in the precision of another tensor."""
    # A fake tensor in the cache, or a real one inside a fake graph, would break every later call; what a CUDA graph
    # captures belongs to the graph.
    is_kept = not like.is_meta and is_plain_eager(like)
    if not is_kept or (like.is_cuda and torch.cuda.is_current_stream_capturing()):
        s, r = coefficients(num_classes, dtype=like.dtype, device=like.device)
    else:
        s, r = _cached_coefficients(num_classes, like.dtype, like.device)
    return (s, r) if radius == 1 else (s * radius, r * radius)


@functools.lru_cache(maxsize=16)
def _cached_coefficients(num_classes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    with torch.inference_mode(False), torch.no_grad():  # an inference tensor could not be used in training later
        # from the CPU: the copy waits, so every stream may use them; and Apple's GPUs have no float64
        return tuple(values.to(device) for values in coefficients(num_classes, dtype=dtype, device="cpu"))


def _later(g: Tensor) -> Tensor:
    # A true reverse scan: total minus prefix would cancel where few classes are left.
    return g[..., 1:].flip(-1).cumsum(-1).flip(-1)


def _scan(x: Tensor, s: Tensor, r: Tensor, is_adjoint: bool) -> Tensor:
    # is_grads_batched passes batches that look like ordinary tensors, to which in-place sums do not apply
    if not is_plain_eager(x) or torch._C._functorch.is_legacy_batchedtensor(x):
        if is_adjoint:
            return x[..., :-1] * s - _later(x) * r
        return F.pad(x * s, (0, 1)) - F.pad((x * r).cumsum(-1), (1, 0))
    result: Tensor = _Scan.apply(x, s, r, is_adjoint)  # type: ignore[no-untyped-call]
    return result


class _Scan(torch.autograd.Function):
    """One direction, whose backward pass is the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, s: Tensor, r: Tensor, is_adjoint: bool) -> Tensor:
        ctx.save_for_backward(s, r)
        ctx.is_adjoint = is_adjoint
        if is_adjoint:
            return _adjoint_in_blocks(x, s, r)
        out = x.new_empty(*x.shape[:-1], x.shape[-1] + 1)
        out[..., 0] = 0
        torch.mul(x, -r, out=out[..., 1:]).cumsum_(-1)
        out[..., :-1].addcmul_(x, s)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        s, r = ctx.saved_tensors
        return _scan(g, s, r, not ctx.is_adjoint), None, None, None


BLOCK = 1 << 17  # numbers per block of rows on a CPU: half a megabyte, about the size of a second-level cache


def _adjoint_in_blocks(g: Tensor, s: Tensor, r: Tensor) -> Tensor:
    """Return P g block by block of rows, so that reversed copies stay in the cache."""
    if g.numel() <= BLOCK:
        return _later(g).mul_(-r).addcmul_(g[..., :-1], s)
    out = g.new_empty(*g.shape[:-1], g.shape[-1] - 1)
    rows = max(1, BLOCK // g.shape[-1])
    blocks = (torch.split(tensor.reshape(-1, tensor.shape[-1]), rows) for tensor in (g, out))
    for block, target in zip(*blocks, strict=True):
        torch.mul(_later(block), -r, out=target).addcmul_(block[..., :-1], s)
    return out


class _SeparateLinear(torch.autograd.Function):
    """x (..., D) to logits (..., C) in one buffer: on a CPU a second large one would cost more than the arithmetic."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, s: Tensor, r: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, s, r)
        rows = x.reshape(-1, x.shape[-1])
        logits = x.new_empty(*x.shape[:-1], len(weight) + 1)  # no view: FSDP2 would forbid operations in place on it
        out = logits.view(len(rows), len(weight) + 1)
        torch.mm(rows, weight.T, out=out[:, 1:])
        for block in torch.split(out, max(1, BLOCK // out.shape[1])):
            outputs = block[:, 1:] if bias is None else block[:, 1:].add_(bias)
            diagonal = outputs * s
            outputs.mul_(-r).cumsum_(-1)
            block[:, 0] = 0
            block[:, :-1] += diagonal
        return logits

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, s, r = ctx.saved_tensors
        z, needs = _scan(g, s, r, True), ctx.needs_input_grad
        rows = z.reshape(-1, z.shape[-1])
        dx = z @ weight if needs[0] else None
        dw = rows.T @ x.reshape(-1, x.shape[-1]) if needs[1] else None
        return dx, dw, rows.sum(0) if needs[2] else None, None, None


def _last_size(x: Tensor) -> int:
    size: int | Tensor = x.shape[-1]
    return int(size) if isinstance(size, Tensor) else size  # torch.jit.trace gives a tensor
