"""x -> radius * P^T (W x + b): the trained layer and the matrix together, in the order that moves the fewest bytes.

P^T may be applied to the C outputs of each of B samples or to the C rows of the weight: B C numbers or C D; the
smaller of the two is taken. On a GPU the C-1 outputs of the layer are padded (`padding`).

A CPU hands the memory of large tensors back as soon as they are freed and has to clear it anew for the next one, which
costs more than the arithmetic of the scan. So for a large batch the layer writes its C-1 outputs to where the logits
will be, and the running sum is made in place, block by block. The Householder basis takes the two steps there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.checks import Basis
from maxsep.ops.dispatch import logits_dtype, separate
from maxsep.ops.layer_node import Step, linear_then
from maxsep.ops.modes import is_autocasting, is_traced, is_transformed
from maxsep.ops.padding import linear_gradients
from maxsep.ops.scan import BLOCK, _Adjoint, scaled_coefficients
from maxsep.ops.triton_householder import householder_adjoint_rows, householder_rows
from maxsep.ops.triton_scan import adjoint_rows, separate_rows, takes


def separate_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, radius: float, basis: Basis = "recursive"
) -> Tensor:
    """Apply a linear layer to C-1 outputs and then the matrix; x (..., D), weight (C-1, D), result (..., C).

    >>> x, weight = torch.randn(2, 4), torch.randn(2, 4)
    >>> torch.allclose(separate_linear(x, weight, None, 0.5), separate(x @ weight.T, 0.5))
    True
    """
    if _weight_is_smaller(x, weight):
        folded = separate(weight.T, radius, basis=basis).T
        return F.linear(x, folded, None if bias is None else separate(bias, radius, basis=basis))
    result: Tensor
    if basis == "recursive" and _in_one_buffer(x, weight):
        s, r = scaled_coefficients(weight.shape[0] + 1, radius, x)
        result = _SeparateLinear.apply(x, weight, bias, s, r)  # type: ignore[no-untyped-call]
    elif takes(x) and takes(weight) and not is_transformed():
        result = linear_then(_STEPS[basis], x, weight, bias, radius, logits_dtype(x))
    else:
        result = separate(F.linear(x, weight, bias), radius, basis=basis)
    return result


def _step(forward: Callable[..., Tensor], adjoint: Callable[..., Tensor]) -> Step:
    return Step(
        function=lambda z, padding, radius, dtype: forward(z, radius, dtype, padding),
        forward=lambda z, padding, radius, dtype: (forward(z, radius, dtype, padding), ()),
        backward=lambda g, kept, z_dtype, padding, radius, dtype: adjoint(g, radius, z_dtype, padding),
    )


_STEPS = {
    "recursive": _step(separate_rows, adjoint_rows),
    "householder": _step(householder_rows, householder_adjoint_rows),
}


def _weight_is_smaller(x: Tensor, weight: Tensor) -> bool:
    # Where products round to 16 bits P stays behind them, since it works in float32. A batch that is still a symbol
    # is not asked for its size: a traced graph is to serve every batch.
    if is_traced() or is_autocasting(x.device.type) or not _is_plain(x, weight):
        return False
    samples, features = math.prod(x.shape[:-1]), x.shape[-1]
    return (samples - features) * weight.shape[0] > BLOCK and not is_transformed()


def _in_one_buffer(x: Tensor, weight: Tensor) -> bool:
    if is_traced() or x.device.type != "cpu" or not _is_plain(x, weight):
        return False
    large = math.prod(x.shape[:-1]) * weight.shape[0] > BLOCK
    return large and not is_autocasting("cpu") and not is_transformed()


def _is_plain(x: Tensor, weight: Tensor) -> bool:
    known = all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in (x, weight))
    return known and x.device == weight.device and x.dtype == weight.dtype in (torch.float32, torch.float64)


class _SeparateLinear(torch.autograd.Function):
    """Differentiable any number of times: the backward pass is made of differentiable operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, s: Tensor, r: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, s, r)
        rows = x.reshape(-1, x.shape[-1])
        out = x.new_empty(len(rows), len(weight) + 1)
        outputs = out[:, 1:]
        if bias is None:
            torch.mm(rows, weight.T, out=outputs)
        else:
            torch.addmm(bias, rows, weight.T, out=outputs)
        for part in torch.split(out, max(1, BLOCK // out.shape[1])):
            own = part[:, 1:] * s
            part[:, 1:].mul_(-r).cumsum_(-1)
            part[:, 0] = 0
            part[:, :-1] += own
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, s, r = ctx.saved_tensors
        z: Tensor = _Adjoint.apply(g, s, r)  # type: ignore[no-untyped-call]
        return *linear_gradients(z, x, weight, ctx.needs_input_grad), None, None
