r"""The second pass with no scratch but the gradient of the weight itself: how, and in which order.

Until the rows of the gradient behind a chunk are written, the gradient G at the chunk's logits may lie there, and its
rows of the composed weight W' where their own gradient will be: first dx += G W', then dW' = G^T x in the place of W'.
So chunks shrink towards the last class, and for the last ones hardly anything would be left. These, the tail, are gone
through twice: for dx before all others, when everything is still free, and for dW' after them, by a kernel that keeps
the gradient at its logits in registers. What the memory of the gradient holds, from the first class to the last:

    tail     G, dx = G W'                 [ G                        |         W' ]
    chunk    G, dx += G W', dW' = G^T x   [ dW', done | W' | W', of the next |  G ]
    tail     dW'                          [ dW', done                | W' -> dW'  ]

G of the chunks lies over W' of the tail, which is therefore made twice.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from maxsep.ops.fused.chunks import ALIGNED, Sizes, most_bytes, whole_units
from maxsep.ops.fused.products import add_product, product
from maxsep.ops.recording import repeated

if TYPE_CHECKING:
    from maxsep.ops.fused.passes import Factors, Stream

LEAST_CHUNK = 512
"""Classes whose logits the rows of the tail must have room for: chunks of fewer take longer to launch than to compute,
and the features' gradient, which has no more numbers a sample than this, is rounded there."""
PREPARED = 2
"""Chunks whose W' is made at once, at least: one launch less for every second, for chunks that are a tenth smaller."""
PREPARED_BYTES = 32 << 20
"""Of W' at once, unless a chunk is more: what the cache of an H200 holds beside the chunk's own reads."""
UNIT = 512
"""Chunks of at least as many classes are a multiple of it; on an H200 that is 3 % faster than multiples of 256, and as
fast as multiples of 4,096, which would be more chunks."""
MOST_TAIL = 0.25
"""Part of the classes, at most, that may be gone through twice."""


@dataclass(frozen=True)
class Plan:
    """In which order the second pass goes through the classes.

    >>> plan = plan_of(Sizes(8192, 8, 8, 2, 2, True), 512, most_bytes=1 << 20, grain=256)
    >>> plan.first_of_tail, plan.pieces, plan.chunks[:3]
    (6144, ((6144, 8192),), ((0, 2560, 5120), (2560, 5120, None), (5120, 5632, 6144)))
    """

    first_of_tail: int
    """The first class that is gone through twice."""
    pieces: tuple[tuple[int, int], ...]
    """Of the tail, for the gradient of the features."""
    chunks: tuple[tuple[int, int, int | None], ...]
    """Of the others; the third number says up to which class W' is made before this chunk, if any is."""


def plan_for(stream: Stream) -> Plan | None:
    """Return the plan of a stream, or None if its kernels, its precision or its number of classes allow none."""
    if stream.chunk or not stream.joins or stream.weight.dtype not in (stream.x.dtype, stream.wide):
        return None
    device, at_once = stream.x.device, stream.steps.classes_at_once(stream.x)
    return plan_of(stream.sizes, at_once, most_bytes(device), stream.grain) if at_once else None


@functools.lru_cache(maxsize=64)  # every step of a training asks for the same
def plan_of(sizes: Sizes, classes_at_once: int, most_bytes: int, grain: int) -> Plan | None:
    """Return the plan for a tail of `classes_at_once`, or a multiple, or None if there are too few classes for one."""
    prepared = PREPARED if sizes.folds else 1
    least = LEAST_CHUNK * (sizes.per_output + prepared * sizes.row) + ALIGNED * sizes.item
    rows = -(-least // (sizes.row * classes_at_once)) * classes_at_once
    # a chunk starts with a block, so the tail may be less than one shorter: what is before it has a block more
    tail = -(-(sizes.num_classes - rows) // grain) * grain
    if sizes.num_classes - tail > MOST_TAIL * sizes.num_classes:
        return None
    room = min(most_bytes, tail * sizes.row) // sizes.per_output
    if room < sizes.padded(sizes.num_classes - tail):
        room = max(grain, whole_units(whole_units(room, UNIT), grain))
    pieces = tuple(_spans(tail, sizes.num_classes, room))
    return Plan(tail, pieces, tuple(_chunks(sizes, prepared, tail, most_bytes, grain)))


def _chunks(
    sizes: Sizes, prepared: int, tail: int, most_bytes: int, grain: int
) -> Iterator[tuple[int, int, int | None]]:
    start = 0
    while start < tail:
        free = (sizes.num_classes - start) * sizes.row - ALIGNED * sizes.item
        size = min(free // (sizes.per_output + prepared * sizes.row), most_bytes // sizes.per_output)
        size = max(grain, whole_units(whole_units(size, UNIT), grain))
        if not sizes.folds:
            yield start, min(start + size, tail), None
            start += size
            continue
        at_once = min((free - size * sizes.per_output) // sizes.row, max(size, PREPARED_BYTES // sizes.row))
        ready = min(tail, start + max(1, at_once // size) * size)
        for begin, end in _spans(start, ready, size):
            yield begin, end, ready if begin == start else None
        start = ready


def _spans(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + size, stop)) for begin in range(start, stop, size)]


class Composed:
    """Rows of W': those of the weight as they lie, or made from them where their own gradient will be."""

    def __init__(self, stream: Stream, carries: Tensor, dw: Tensor) -> None:
        self._stream, self._carries = stream, carries
        # in the first half of every row where the weight is wider than the products
        self._rows = dw.view(stream.x.dtype)[:, : dw.shape[1]] if stream.sizes.folds else stream.weight

    def make(self, start: int, stop: int) -> None:
        """Make the rows of the classes [start, stop), if they are not there."""
        if self._stream.sizes.folds:
            self._stream.folded(start, stop, self._carries, self._rows[start:stop])

    def rows(self, start: int, stop: int) -> Tensor:
        """Return the rows of the classes [start, stop), which are made."""
        return self._rows[start:stop]


def gradients_in_place(
    stream: Stream, plan: Plan, factors: Factors, carries: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the weight that P is folded into, and write that of the offset to `columns`."""
    dw = stream.weight.new_empty(stream.streamed, stream.x.shape[1])
    composed = Composed(stream, carries, dw)
    dx = _until_the_tail(stream, plan, factors, carries, columns, dw, composed)
    tail = plan.first_of_tail, stream.streamed
    composed.make(*tail)
    sums = columns[slice(*tail)] if columns.numel() else None
    stream.steps.weight_gradients(
        stream.x, composed.rows(*tail), dw[slice(*tail)], stream.target, factors, stream.scale,
        *stream.parts(*tail), tail[0], sums,
    )  # fmt: skip
    return dx, dw


def _until_the_tail(
    stream: Stream, plan: Plan, factors: Factors, carries: Tensor, columns: Tensor, dw: Tensor, composed: Composed
) -> Tensor:
    """Go through the tail for the features, and through all before it for both; return dx."""
    x = stream.x
    dx = torch.empty(x.shape, dtype=stream.wide, device=x.device)
    launches = functools.partial(_launch_until_the_tail, stream, plan, factors, columns, dw, composed, dx)
    given = (*stream.tensors, carries, *factors, columns, dw, dx)
    repeated(launches, given, plan, stream.sizes, stream.radius, stream.side)
    if x.dtype == stream.wide:
        return dx
    del dx, given, launches  # before there is another of its size
    return _rounded(dw, x).clone()


def _launch_until_the_tail(
    stream: Stream, plan: Plan, factors: Factors, columns: Tensor, dw: Tensor, composed: Composed, dx: Tensor
) -> None:
    x, memory = stream.x, dw.view(stream.x.dtype).view(-1)
    differentiate = stream.steps.differentiating(x, stream.target, factors, stream.scale)
    for turn, (start, stop) in enumerate(plan.pieces):
        composed.make(start, stop)
        rows, g = composed.rows(start, stop), _room(memory, stream.sizes, stop - start, behind=False)
        differentiate(rows, g, *stream.parts(start, stop), start, None)
        _add_features(dx, g, rows, stream.sizes.pad, first=turn == 0)
    wants_sums = columns.numel() > 0
    for start, stop, ready in plan.chunks:
        if ready is not None:
            composed.make(start, ready)
        rows, g = composed.rows(start, stop), _room(memory, stream.sizes, stop - start, behind=True)
        sums = columns[start:stop] if wants_sums else None
        differentiate(rows, g, *stream.parts(start, stop), start, sums)
        add_product(dx, g, rows)
        product(g.T, x, dw[start:stop])
    if x.dtype != stream.wide:
        _rounded(dw, x).copy_(dx)


def _rounded(dw: Tensor, x: Tensor) -> Tensor:
    """Return room for the gradient of x in its own precision, at the end of memory."""
    return dw.view(x.dtype).view(-1)[-x.numel() :].view(x.shape)


def _add_features(dx: Tensor, g: Tensor, rows: Tensor, pad: int, *, first: bool) -> None:
    """Add G W' to dx; an odd end of classes by itself, for beside it the others would be slow on matrix units."""
    even = len(rows) // pad * pad or len(rows)
    if first:
        product(g[:, :even], rows[:even], dx)
    else:
        add_product(dx, g[:, :even], rows[:even])
    if even < len(rows):
        add_product(dx, g[:, even:], rows[even:])


def _room(memory: Tensor, sizes: Sizes, classes: int, *, behind: bool) -> Tensor:
    """Return room for the gradient at a chunk of logits, (batch, classes), at the begin of memory or at its end."""
    row = sizes.padded(classes)
    first = (memory.numel() - sizes.batch * row) // ALIGNED * ALIGNED if behind else 0
    return memory.as_strided((sizes.batch, classes), (row, 1), first)
