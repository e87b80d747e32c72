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
CHUNK_BYTES = {"cuda": 256 << 20, "cpu": 4 << 20}
"""Scratch of a chunk, at most: on a CPU what stays in its cache; on a GPU 32,768 classes of 4,096 samples in half
precision, with which a million classes take 2 % less time than with 160 MB (benchmarks/fused_tune.py times others)."""
OWN_SHARE = {"triton": 0.025, "torch": 0.0125}
"""Scratch beside the weight and its gradient, as a part of both together; what is not in place needs copies."""
EXTRA_SHARE = 0.04
"""All that is taken beside them, in the same measure, but for carries and numbers per class: a twentieth with these."""
ALIGNED = 16
"""Scratch starts at a multiple of so many numbers."""
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

    def padded(self, rows: int) -> int:
        """Return the length of a row of logits in memory."""
        return -(-rows // self.pad) * self.pad

    def numbers(self, rows: int) -> int:
        """Return how many numbers of scratch a chunk takes: its logits, then its composed weight."""
        numbers = self.batch * self.padded(rows) + (rows * self.width if self.folds else 0)
        return -(-numbers // ALIGNED) * ALIGNED


def own_bytes(sizes: Sizes, device: torch.device, form: str) -> int:
    """Return how much scratch may be taken beside the weight and its gradient.

    >>> own_bytes(Sizes(1_000_000, 4096, 512, 2, 2, True), torch.device("cuda"), "triton")
    51200000
    """
    both = 2 * sizes.num_classes * sizes.row
    wide = sizes.batch * sizes.width * max(0, 4 - sizes.item)  # the gradient of x is summed in float32
    return max(_of(OWN_LEAST, device), int(min(OWN_SHARE[form] * both, EXTRA_SHARE * both - wide)))


def kept_bytes(sizes: Sizes, device: torch.device) -> int:
    """Return how large the gradient of x may be for its rounding to have room behind the weight's, which keeps it.

    >>> kept_bytes(Sizes(1_000_000, 4096, 512, 2, 2, True), torch.device("cuda"))
    81920000
    """
    return max(_of(OWN_LEAST, device), int(EXTRA_SHARE * 2 * sizes.num_classes * sizes.row))


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
    size = most_bytes // sizes.per_class if sizes.per_class else sizes.num_classes
    if size < sizes.num_classes:  # where all fit there is no second chunk to be as large
        size = max(grain, whole_units(whole_units(size, wave), grain))
    return tuple((start, min(start + size, sizes.num_classes)) for start in range(0, sizes.num_classes, size))


@functools.lru_cache(maxsize=64)  # every step of a training asks for the same
def borrowing_chunks(
    sizes: Sizes, most_bytes: int, own_bytes: int, grain: int, wave: int = 1
) -> tuple[tuple[int, int], ...]:
    """Split the classes into chunks whose scratch fits the rows of the gradient not yet written and `own_bytes` more.

    The gradient of the rows from `stop` on is written after that of the chunk [start, stop), so until then its memory
    is free, and chunks shrink towards the last class. Products over a number of classes that is no multiple of the
    padding are slow on matrix units: where the last chunk would be one, and large, its odd end goes alone.

    >>> borrowing_chunks(Sizes(40, 3, 1, 4, 4, False), 120, 24, 2)
    ((0, 10), (10, 18), (18, 24), (24, 28), (28, 32), (32, 34), (34, 36), (36, 38), (38, 40))
    """
    chunks = []
    start, last = 0, sizes.num_classes
    while start < last:
        # c classes take c * per_class bytes, within (last - start - c) rows and the own
        size = ((last - start) * sizes.row + own_bytes) // (sizes.per_class + sizes.row)
        size = whole_units(min(size, most_bytes // sizes.per_class), wave)
        stop = min(start + max(grain, whole_units(size, grain)), last)
        if stop % sizes.pad and stop - start > max(wave, grain):
            stop -= stop % grain
        chunks.append((start, stop))
        start = stop
    return tuple(chunks)


class Scratch:
    """Memory for what a chunk needs: at the end of a gradient whose last rows are still free, else of its own.

    Args:
        sizes: What the bytes follow from.
        chunks: All that will be asked for.
        like: Has the precision of the products.
        lender: Contiguous memory, the gradient and `rows_beside` it.
    """

    def __init__(
        self, sizes: Sizes, chunks: Sequence[tuple[int, int]], like: Tensor, lender: Tensor | None = None
    ) -> None:
        self._sizes = sizes
        self._rooms: dict[int, tuple[Tensor, Tensor]] = {}
        self._written = 0 if lender is None else sizes.num_classes * sizes.row
        if lender is None:
            lender = like.new_empty(max((sizes.numbers(stop - start) for start, stop in chunks), default=0))
        size = like.element_size()
        whole = lender.nbytes // (ALIGNED * size) * ALIGNED * size
        self.memory = lender.view(-1).view(torch.uint8)[:whole].view(like.dtype)

    def take(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return room for the logits (batch, c) and for the composed weight (c, width) of a chunk of c classes.

        Chunks of one size share it, down to the tensor objects.
        """
        rows = stop - start
        if rows not in self._rooms:
            batch, width, padded = self._sizes.batch, self._sizes.width, self._sizes.padded(rows)
            first = self.memory.numel() - self._sizes.numbers(rows)
            logits = self.memory.as_strided((batch, rows), (padded, 1), first)
            folded = (rows, width) if self._sizes.folds else (0, 0)
            self._rooms[rows] = logits, self.memory.as_strided(folded, (width, 1), first + batch * padded)
        return self._rooms[rows]

    def rounded(self, wide: Tensor) -> Tensor:
        """Round a tensor, behind the gradient if there is room enough: no chunk needs it any more."""
        if self.memory.nbytes - self._written < wide.numel() * self.memory.element_size():
            return wide.to(self.memory.dtype)
        return self.memory[-wide.numel() :].view(wide.shape).copy_(wide)


def rows_beside(sizes: Sizes, chunks: Sequence[tuple[int, int]], least_bytes: int) -> int:
    """Return how many rows more than it has the gradient must be given for the scratch of every chunk to fit behind it.

    >>> sizes = Sizes(40, 3, 1, 4, 4, False)
    >>> rows_beside(sizes, [(0, 30), (30, 40)], 0), rows_beside(sizes, [(0, 30), (30, 40)], 400)
    (102, 116)
    """
    taken = (
        (sizes.item * sizes.numbers(stop - start), (sizes.num_classes - stop) * sizes.row) for start, stop in chunks
    )
    missing = max(least_bytes, *(scratch - free for scratch, free in taken))
    return -(-(missing + ALIGNED * sizes.item) // sizes.row)


def whole_units(size: int, unit: int) -> int:
    """Return the largest multiple of a unit that is not above a size, and the size where that is nothing.

    >>> whole_units(10, 4), whole_units(3, 4)
    (8, 3)
    """
    return size // unit * unit or size


def _of(table: dict[str, int], device: torch.device) -> int:
    return table["cuda" if device.type == "cuda" else "cpu"]
