r"""The steps of the streamed loss in plain torch: any device, any precision.

A step works on the classes [start, stop) and carries what later or earlier ones need:

    fold       W'_j = s_j W_j - carry - sum_{start<=i<j} r_i W_i
    accumulate m, l, z_y and sum_j w_j z_j of every sample, as in an online softmax
    gradient   g_j = a exp(z_j - lse) - u [j = y] - v w_j + shift, in place of the logits
    adjoint    dW_i = s_i dW'_i - r_i sum_{j>i} dW'_j, in place, last class first

The suffix of the adjoint is summed as such. That the gradient of cross-entropy sums to zero would allow minus the
prefix, but not in half precision: near the last class r is about 1, and the rounding of all classes would land there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from maxsep.ops.fused.householder import LastClass
from maxsep.ops.fused.state import RowState

PAD = 1


def joins(x: Tensor, weight: Tensor) -> bool:
    """Say that products are a step of their own here."""
    return False


def parts(x: Tensor) -> int:
    """Return 1: the classes are gone through one after the other."""
    return 1


def slice_of_coefficients(
    num_classes: int, radius: float, start: int, stop: int, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Return radius * s_i and radius * r_i of P for the rows [start, stop) as columns; s is 0 in row C-1.

    >>> slice_of_coefficients(3, 1.0, 1, 3, torch.zeros(1))[0]
    tensor([[0.8660],
            [0.0000]])
    """
    k = num_classes - 1
    n = torch.arange(k - start, k - stop, -1, dtype=torch.float64, device=like.device)
    s = (n / (n + 1)).sqrt() * (radius * math.sqrt(num_classes / k))
    return s.to(like.dtype)[:, None], (s / n.clamp(min=1)).to(like.dtype)[:, None]


def block_carries(weight: Tensor, radius: float, grain: int, wide: torch.dtype) -> Tensor:
    """Return sum_{i < b grain} r_i W_i for every block b of classes, (blocks, width)."""
    rows, width = weight.shape
    blocks = -(-(rows + 1) // grain)
    carries = torch.zeros(blocks + 1, width, dtype=wide, device=weight.device)
    step = max(1, _rows_at_a_time(weight) // grain) * grain
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        _, r = slice_of_coefficients(rows + 1, radius, start, stop, carries)
        weighted = weight[start:stop] * r
        block = start // grain + 1
        whole = (stop - start) // grain
        carries[block : block + whole] = weighted[: whole * grain].view(whole, grain, width).sum(1)
        if whole * grain < stop - start:
            carries[block + whole] = weighted[whole * grain :].sum(0)
    return carries[:-1].cumsum_(0)


def fold(weight: Tensor, carries: Tensor, radius: float, grain: int, start: int, stop: int, out: Tensor) -> None:
    """Write rows [start, stop) of radius * P^T weight; start is a multiple of grain."""
    own = min(stop, len(weight)) - start
    s, r = slice_of_coefficients(len(weight) + 1, radius, start, stop, carries)
    piece = weight[start : start + own].to(carries.dtype)
    folded = torch.zeros(stop - start, weight.shape[1], dtype=carries.dtype, device=weight.device)
    folded[1:] = (piece * r[:own])[: stop - start - 1]
    folded.cumsum_(0).add_(carries[start // grain]).neg_()
    folded[:own].addcmul_(piece, s[:own])
    out.copy_(folded)


def adjoint_(gradient: Tensor, radius: float, wide: torch.dtype) -> None:
    """Replace the rows of dW' (C, width) by those of dW, of which the last means nothing."""
    rows, width = gradient.shape
    later = torch.zeros(width, dtype=wide, device=gradient.device)
    step = _rows_at_a_time(gradient)
    for stop in range(rows, 0, -step):
        start = max(0, stop - step)
        s, r = slice_of_coefficients(rows, radius, start, stop, later)
        piece = gradient[start:stop].to(wide)
        until = piece.cumsum(0)
        total = until[-1].clone()
        # r_i times what follows i: in this piece, and later
        torch.addcmul(piece * s, until.sub_(total + later), r, out=piece)
        later += total
        gradient[start:stop] = piece


def sum_of_rows(weight: Tensor, wide: torch.dtype) -> Tensor:
    """Return sum_i W_i, (D,), in the precision of the sums.

    >>> sum_of_rows(torch.ones(300, 2).bfloat16(), torch.float32)
    tensor([300., 300.])
    """
    if weight.dtype == wide or weight.is_cuda:
        return weight.sum(0, dtype=wide)
    # on a CPU torch would make a wide copy of the whole weight
    total = torch.zeros(weight.shape[1], dtype=wide, device=weight.device)
    for piece in torch.split(weight, _rows_at_a_time(weight)):
        total += piece.sum(0, dtype=wide)
    return total


def last_logits(x: Tensor, summed: Tensor, factor: float, offset: Tensor | None) -> Tensor:
    """Return the logits of the class without a row, (B,), for features x, (B, D), and the sum of all rows, (D,).

    >>> last_logits(torch.ones(1, 2), torch.ones(2), -0.5, None)
    tensor([-1.])
    """
    logits = x.to(summed.dtype) @ summed * factor
    return logits if offset is None else logits + offset[-1]


def last_gradients(last: LastClass, lse: Tensor, a: Tensor, u: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gradient at the logits of the class without a row, and what it adds to all others, (B,) each."""
    g = last.gradient(lse, a, u, v)
    return g, g * last.reach


def merged(state: RowState, last: LastClass | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return nll, log-sum-exp and weighted sum of all classes, (B,) each."""
    lse, target_logit, total = state.merged()
    if last is not None:
        lse, target_logit, total = last.merged(lse, target_logit, total)
    return lse - target_logit, lse, total


def accumulate(
    logits: Tensor, offset: Tensor | None, weight: Tensor | None, target: Tensor, start: int, state: RowState
) -> None:
    """Take a chunk of logits, (B, c), into the running maximum, sum of exponentials, target logit and sum."""
    z = _shifted(logits, offset, state.most.dtype)
    index, inside = _within(target, start, z.shape[1])
    state.target += torch.where(inside, z.gather(1, index), 0)[:, 0]
    if state.total is not None:
        state.total += z.sum(1) if weight is None else z @ weight
    most = torch.maximum(state.most[0], z.amax(1))
    # the difference of two infinities is none: with every logit at -inf, any finite reference will do
    reference = torch.where(most.isinf() & (most < 0), 0, most)
    state.sum.mul_((state.most - reference).exp_())
    state.sum += z.sub_(reference[:, None]).exp_().sum(1)
    state.most.copy_(most)


def gradient_(
    logits: Tensor,
    offset: Tensor | None,
    weight: Tensor | None,
    target: Tensor,
    start: int,
    factors: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None],
    columns: Tensor | None,
) -> Tensor:
    """Return the gradient at a chunk of logits, in their place if the precision allows.

    Its sums over samples, without the shift, are written to `columns`.
    """
    lse, a, u, v, shift = factors
    z = _shifted(logits, offset, lse.dtype)
    z.sub_(lse[:, None]).exp_().mul_(a[:, None])
    index, inside = _within(target, start, z.shape[1])
    z.scatter_add_(1, index, torch.where(inside, -u[:, None], 0))
    if v is not None:
        z.sub_(v[:, None]) if weight is None else z.addr_(v, weight, alpha=-1)
    if columns is not None:
        torch.sum(z, 0, out=columns)
    if shift is not None:
        z.add_(shift[:, None])
    return z if z.data_ptr() == logits.data_ptr() else logits.copy_(z)


def _rows_at_a_time(weight: Tensor) -> int:
    """Return how many rows to copy at once: a small part of the weight, but enough to be worth a call."""
    return max(1, max(1 << 15, weight.numel() >> 8) // weight.shape[1])


def _shifted(logits: Tensor, offset: Tensor | None, wide: torch.dtype) -> Tensor:
    z = logits.to(wide)
    return z if offset is None else z.add_(offset)


def _within(target: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    index = (target - start)[:, None]
    return index.clamp(0, size - 1), (index >= 0) & (index < size)
