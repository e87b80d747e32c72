"""How many classes at a time: chunks that keep the promise of memory, and where their scratch lies."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GRAIN = 256
"""Classes in a block of the running sum; chunks start at its multiples, which also suits matrix units."""
WAVE = {"cuda": 4096, "cpu": GRAIN}
"""Chunks of at least as many classes are a multiple of it. At 512 features the gradient of 4,096 rows of the weight has
128 tiles of 128 x 128, which keep 97 % of an H200's 132 processors busy; 14,336 rows would keep 85 %."""
CHUNK_BYTES = {"cuda": 160 << 20, "cpu": 4 << 20}
"""Scratch of a chunk, at most: on a CPU what stays in its cache; on a GPU 16,384 classes of 4,096 samples and 512
features in half precision, which hides the launch of a kernel (benchmarks/fused_tune.py times others)."""
OWN_SHARE = {"triton": 0.025, "torch": 0.0125}
"""Scratch beside the weight and its gradient, as a part of both together; what is not in place needs copies."""
EXTRA_SHARE = 0.04
"""All that is taken beside them, in the same measure, but for carries and numbers per class: a twentieth with these."""
OWN_LEAST = {"cuda": 4 << 20, "cpu": 1 << 18}
"""Bytes of scratch that are never too many."""


@dataclass(frozen=True)
class Sizes:
    """What the bytes of a chunk follow from."""

    num_classes: int
    batch: int
    width: int
    item: int
    """Bytes of a number in the products."""
    weight_item: int
    """Bytes of a number in the weight and its gradient."""
    folds: bool
    """Whether a chunk of the composed weight is needed beside the logits."""

    pad: int = 1
    """Classes that a row of logits is a multiple of."""

    @property
    def per_class(self) -> int:
        """Bytes of scratch that one class of a chunk takes."""
        return self.per_output + self.per_folded

    @property
    def per_output(self) -> int:
        """Bytes of the logits of one class."""
        return self.item * self.batch

    @property
    def per_folded(self) -> int:
        """Bytes of the composed weight of one class."""
        return self.item * self.width if self.folds else 0

    @property
    def row(self) -> int:
        """Bytes of one row of the gradient."""
        return self.width * self.weight_item


def own_bytes(sizes: Sizes, device: torch.device, form: str) -> int:
    """Return how much scratch may be taken beside the weight and its gradient.

    >>> own_bytes(Sizes(1_000_000, 4096, 512, 2, 2, True), torch.device("cuda"), "triton")
    51200000
    """
    both = 2 * sizes.num_classes * sizes.row
    wide = sizes.batch * sizes.width * max(0, 4 - sizes.item)  # the gradient of x is summed in float32
    return max(_of(OWN_LEAST, device), int(min(OWN_SHARE[form] * both, EXTRA_SHARE * both - wide)))


def most_bytes(device: torch.device) -> int:
    """Return the scratch of the largest chunk that is worth while on a device.

    >>> most_bytes(torch.device("cpu"))
    4194304
    """
    return _of(CHUNK_BYTES, device)


def wave(device: torch.device) -> int:
    """Return what large chunks are a multiple of on a device.

    >>> wave(torch.device("cuda"))
    4096
    """
    return _of(WAVE, device)


def equal_chunks(sizes: Sizes, most_bytes: int, grain: int, wave: int = 1) -> tuple[tuple[int, int], ...]:
    """Split the classes into chunks whose scratch takes at most `most_bytes`, but hold at least `grain` classes.

    >>> equal_chunks(Sizes(10, 1, 1, 4, 4, False), 16, 2)
    ((0, 4), (4, 8), (8, 10))
    """
    size = sizes.num_classes
    if sizes.per_class:
        size = max(grain, _whole(_whole(most_bytes // sizes.per_class, wave), grain))
    return tuple((start, min(start + size, sizes.num_classes)) for start in range(0, sizes.num_classes, size))


@functools.lru_cache(maxsize=64)  # every step of a training asks for the same
def borrowing_chunks(
    sizes: Sizes, most_bytes: int, own_bytes: int, grain: int, wave: int = 1
) -> tuple[tuple[int, int], ...]:
    """Split the classes, last ones first, into chunks whose scratch fits the rows of the gradient not yet written.

    The gradient of the rows [0, start) is written after that of the chunk [start, stop), so until then its memory is
    free. Towards the first class less and less of it is, and chunks shrink until their logits fit `own_bytes`; the
    composed weight beside them is smaller and still borrows. Products over a number of classes that is no multiple of
    the padding are slow on matrix units: where the first chunk would be one, and large, its odd end goes first, alone.

    >>> borrowing_chunks(Sizes(40, 3, 1, 4, 4, False), 120, 24, 2)
    ((30, 40), (24, 30), (18, 24), (14, 18), (12, 14), (10, 12), (8, 10), (6, 8), (4, 6), (2, 4), (0, 2))
    """
    chunks = []
    stop = sizes.num_classes
    while stop:
        # scratch of c classes within the stop - c rows below: c * per_class <= (stop - c) * row, but for the padding
        padding = sizes.per_output * (sizes.pad - 1)
        borrowed = max(0, stop * sizes.row - padding) // (sizes.per_class + sizes.row)
        beside = min(own_bytes // sizes.per_output, stop * sizes.row // (sizes.per_folded + sizes.row))
        size = max(borrowed, beside, own_bytes // sizes.per_class)
        size = _whole(min(size, max(1, most_bytes // sizes.per_class)), wave)
        start = max(0, -(-(stop - size) // grain) * grain)
        is_slow = stop % sizes.pad > 0 and stop - start >= wave > 1
        if is_slow or start >= stop:
            start = (stop - 1) // grain * grain
        chunks.append((start, stop))
        stop = start
    return tuple(chunks)


class Scratch:
    """Memory for what a chunk needs: at the front of another tensor where that is free, else of its own.

    Args:
        sizes: What the bytes follow from.
        chunks: All that will be asked for.
        lender: The gradient, whose rows before a chunk are free.
        like: Has the precision of the products.
        spare: What is free throughout; taken in place of own memory if it suffices.
    """

    def __init__(
        self,
        sizes: Sizes,
        chunks: Sequence[tuple[int, int]],
        lender: Tensor | None,
        like: Tensor,
        spare: Tensor | None = None,
    ) -> None:
        self._sizes, self._lends = sizes, lender is not None
        self._rooms: dict[tuple[int, bool, bool], tuple[Tensor, Tensor]] = {}
        need = max((self._own_numbers(start, stop) for start, stop in chunks), default=0)
        self._own = like.new_empty(need) if spare is None or spare.numel() < need else spare.view(-1)
        self._lender, self._nothing = self._own, like.new_empty(0, 0)
        if lender is not None:
            whole = lender.nbytes // like.element_size() * like.element_size()
            self._lender = lender.view(-1).view(torch.uint8)[:whole].view(like.dtype)

    def take(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return room for the logits (batch, c) and for the composed weight (c, width) of a chunk of c classes.

        Chunks of one size share it, down to the tensor objects.
        """
        key = stop - start, self._fits(start, stop), self._folded_fits(start, stop)
        if key not in self._rooms:
            self._rooms[key] = self._room(*key)
        return self._rooms[key]

    def _room(self, rows: int, fits: bool, folded_fits: bool) -> tuple[Tensor, Tensor]:
        batch, width = self._sizes.batch, self._sizes.width
        padded = self._padded(rows)
        logits = (self._lender if fits else self._own).as_strided((batch, rows), (padded, 1))
        if not self._sizes.folds:
            return logits, self._nothing
        if folded_fits and not fits:
            return logits, self._lender.as_strided((rows, width), (width, 1))
        return logits, (self._lender if fits else self._own).as_strided((rows, width), (width, 1), batch * padded)

    def _padded(self, rows: int) -> int:
        return -(-rows // self._sizes.pad) * self._sizes.pad

    def _numbers(self, rows: int) -> int:
        return self._sizes.batch * self._padded(rows) + (rows * self._sizes.width if self._sizes.folds else 0)

    def _own_numbers(self, start: int, stop: int) -> int:
        if self._fits(start, stop):
            return 0
        if self._folded_fits(start, stop):
            return self._sizes.batch * self._padded(stop - start)
        return self._numbers(stop - start)

    def _fits(self, start: int, stop: int) -> bool:
        return self._lends and self._sizes.item * self._numbers(stop - start) <= start * self._sizes.row

    def _folded_fits(self, start: int, stop: int) -> bool:
        return self._lends and (stop - start) * self._sizes.per_folded <= start * self._sizes.row


def _of(table: dict[str, int], device: torch.device) -> int:
    return table["cuda" if device.type == "cuda" else "cpu"]


def _whole(size: int, unit: int) -> int:
    """Return the largest multiple of a unit that is not above a size, and the size where that is nothing."""
    return size // unit * unit or size
