"""The second pass in chunks with scratch: behind the gradient of the weight, or of their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from maxsep.ops.fused.chunks import Scratch, borrowing_chunks, kept_bytes, most_bytes, own_bytes, rows_beside, wave
from maxsep.ops.fused.logits_side import separated, unseparated_
from maxsep.ops.fused.products import add_product, product
from maxsep.ops.recording import repeated

if TYPE_CHECKING:
    from maxsep.ops.fused.passes import Factors, Stream


def gradients_in_chunks(
    stream: Stream, factors: Factors, carries: Tensor, columns: Tensor, wants: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the weight that P is folded into, and write that of the offset to `columns`."""
    chunks, scratch, dw = _plan(stream, *wants[:2])
    dx = _pass(stream, factors, carries, wants, (dw, columns), chunks, scratch)
    if dx.untyped_storage().nbytes() > dx.nbytes:
        dx = dx.clone()  # out of the scratch, now that the wide sum is gone
    return dx, dw


def _plan(stream: Stream, wants_x: bool, wants_weight: bool) -> tuple[Sequence[tuple[int, int]], Scratch, Tensor]:
    """Return the chunks of the second pass, their scratch, and room for the gradient of the folded weight.

    Kernels that write in place have their scratch in the rows of the gradient not yet written, and in some more
    behind them, which stay with it as long as it lives: so these are never more than its own. Chunks of a size
    that was asked for could be larger than all that.
    """
    x, sizes = stream.x, stream.sizes
    if wants_weight and stream.form == "triton" and not stream.chunk:
        own = own_bytes(sizes, x.device, stream.form)
        chunks = borrowing_chunks(sizes, most_bytes(x.device), own, stream.grain, wave(x.device))
        rounded = x.nbytes if wants_x and x.dtype != stream.wide else 0
        more = rows_beside(sizes, chunks, rounded if rounded <= kept_bytes(sizes, x.device) else 0)
        if more <= stream.streamed:
            dw = stream.weight.new_empty(stream.streamed + more, x.shape[1])
            return chunks, Scratch(sizes, chunks, x, dw), dw[: stream.streamed]
    equal = stream.chunks_of(sizes)[::-1]
    dw = stream.weight.new_empty(stream.streamed if wants_weight else 0, x.shape[1])
    return equal, Scratch(sizes, equal, x), dw


def _pass(
    stream: Stream,
    factors: Factors,
    carries: Tensor,
    wants: tuple[bool, bool, bool],
    gradients: tuple[Tensor, Tensor],
    chunks: Sequence[tuple[int, int]],
    scratch: Scratch,
) -> Tensor:
    """Write the gradients of the weight that P is folded into and of the offset, and return that of x."""
    x = stream.x
    # on the logits side the first chunk may be the class without a row, which adds nothing to begin with
    begins = torch.zeros if stream.side == "logits" or not chunks else torch.empty
    dx = begins(x.shape if wants[0] else 0, dtype=stream.wide, device=x.device)
    launches = partial(_launch, stream, factors, carries, wants, (dx, *gradients), chunks, scratch)
    if stream.form == "triton":
        repeated(
            launches, (*stream.tensors, carries, *factors, *gradients, dx, scratch.memory),
            tuple(chunks), stream.sizes, stream.radius, stream.side, wants,
        )  # fmt: skip
    else:  # where steps need copies, a recording would keep their memory
        launches()
    del launches
    return scratch.rounded(dx) if wants[0] and dx.dtype != x.dtype else dx


def _launch(
    stream: Stream,
    factors: Factors,
    carries: Tensor,
    wants: tuple[bool, bool, bool],
    gradients: tuple[Tensor, Tensor, Tensor],
    chunks: Sequence[tuple[int, int]],
    scratch: Scratch,
) -> None:
    x, (dx, dw, columns) = stream.x, gradients
    wants_x, wants_weight, wants_offset = wants
    later = dx.new_zeros(len(x)) if stream.side == "logits" else dx
    joined = stream.steps.differentiating(x, stream.target, factors, stream.scale) if stream.joins else None
    for turn, (start, stop) in enumerate(chunks):
        g, room = scratch.take(start, stop)
        weight = stream.folded(start, stop, carries, room)
        sums = columns[start:stop] if wants_offset else None
        parts = stream.parts(start, stop)
        if joined:
            joined(weight, g, *parts, start, sums)
        elif stream.side == "logits":
            stream.outputs(weight, g)
            z, _ = separated(g, carries[len(chunks) - 1 - turn], stream.num_classes, stream.radius, start)
            stream.steps.gradient_(z, *parts, stream.target, start, factors, sums)
            g.copy_(unseparated_(z, later, stream.num_classes, stream.radius, start))
            g = g[:, : len(weight)]
        else:
            stream.outputs(weight, g)
            stream.steps.gradient_(g, *parts, stream.target, start, factors, sums)
        if wants_x and (turn or stream.side == "logits"):
            add_product(dx, g, weight)
        elif wants_x:
            product(g, weight, dx)
        if wants_weight:
            product(g.T, x, dw[start : start + len(weight)], stream.outer_scale)
