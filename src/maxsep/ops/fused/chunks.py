"""How many classes at a time: chunks that keep the promise of memory, and where their scratch lies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GRAIN = 256
"""Classes in a block of the running sum; chunks start at its multiples, which also suits matrix units."""
CHUNK_BYTES = {"cuda": 128 << 20, "cpu": 4 << 20}
"""Scratch of a chunk, at most: on a CPU what stays in its cache, on a GPU what hides the launch of a kernel (not yet
measured there: benchmarks/fused_tune.py does it)."""
OWN_SHARE = {"triton": 0.025, "torch": 0.0125}
"""Scratch beside the weight and its gradient, as a part of both together; what is not in place needs copies."""
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
        return self.item * (self.batch + (self.width if self.folds else 0))

    @property
    def row(self) -> int:
        """Bytes of one row of the gradient."""
        return self.width * self.weight_item


def own_bytes(sizes: Sizes, device: torch.device, form: str) -> int:
    """Return how much scratch may be taken beside the weight and its gradient.

    >>> own_bytes(Sizes(1_000_000, 4096, 512, 2, 2, True), torch.device("cuda"), "triton")
    51200000
    """
    return max(_of(OWN_LEAST, device), int(OWN_SHARE[form] * 2 * sizes.num_classes * sizes.row))


def most_bytes(device: torch.device) -> int:
    """Return the scratch of the largest chunk that is worth while on a device.

    >>> most_bytes(torch.device("cpu"))
    4194304
    """
    return _of(CHUNK_BYTES, device)


def equal_chunks(sizes: Sizes, most_bytes: int, grain: int) -> list[tuple[int, int]]:
    """Split the classes into chunks whose scratch takes at most `most_bytes`, but hold at least `grain` classes.

    >>> equal_chunks(Sizes(10, 1, 1, 4, 4, False), 16, 2)
    [(0, 4), (4, 8), (8, 10)]
    """
    size = _whole(most_bytes // sizes.per_class, grain) if sizes.per_class else sizes.num_classes
    return [(start, min(start + size, sizes.num_classes)) for start in range(0, sizes.num_classes, size)]


def borrowing_chunks(sizes: Sizes, most_bytes: int, own_bytes: int, grain: int) -> list[tuple[int, int]]:
    """Split the classes, last ones first, into chunks whose scratch fits the rows of the gradient not yet written.

    The gradient of the rows [0, start) is written after that of the chunk [start, stop), so until then its memory is
    free. Towards the first class less and less of it is, and chunks shrink until their scratch fits `own_bytes`.

    >>> borrowing_chunks(Sizes(40, 3, 1, 4, 4, False), 120, 24, 2)
    [(30, 40), (24, 30), (18, 24), (14, 18), (12, 14), (10, 12), (8, 10), (6, 8), (4, 6), (2, 4), (0, 2)]
    """
    chunks = []
    stop = sizes.num_classes
    while stop:
        # scratch of c classes within the stop - c rows below: c * per_class <= (stop - c) * row, but for the padding
        below = stop * sizes.row - sizes.item * sizes.batch * (sizes.pad - 1)
        borrowed = max(0, below) // (sizes.per_class + sizes.row)
        size = min(max(borrowed, own_bytes // sizes.per_class), max(1, most_bytes // sizes.per_class))
        start = max(0, -(-(stop - size) // grain) * grain)
        if start >= stop:
            start = (stop - 1) // grain * grain
        chunks.append((start, stop))
        stop = start
    return chunks


class Scratch:
    """One piece of memory for what a chunk needs: taken from the front of another tensor where that is free."""

    def __init__(self, sizes: Sizes, chunks: list[tuple[int, int]], lender: Tensor | None, like: Tensor) -> None:
        self._sizes, self._lender = sizes, None if lender is None else lender.view(-1).view(torch.uint8)
        own = [self._bytes(stop - start) for start, stop in chunks if not self._fits(start, stop)]
        self._own = torch.empty(max(own, default=0), dtype=torch.uint8, device=like.device)
        self._dtype = like.dtype

    def take(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return room for the logits (batch, c) and for the composed weight (c, width) of a chunk of c classes."""
        rows, sizes = stop - start, self._sizes
        lender = self._lender if self._lender is not None and self._fits(start, stop) else self._own
        room = lender[: self._bytes(rows)].view(self._dtype)
        padded = -(-rows // sizes.pad) * sizes.pad
        logits = room[: sizes.batch * padded].view(sizes.batch, padded)[:, :rows]
        return logits, room[sizes.batch * padded :].view(rows, sizes.width) if sizes.folds else room[:0].view(0, 0)

    def _bytes(self, rows: int) -> int:
        padded = -(-rows // self._sizes.pad) * self._sizes.pad
        return self._sizes.item * (self._sizes.batch * padded + (rows * self._sizes.width if self._sizes.folds else 0))

    def _fits(self, start: int, stop: int) -> bool:
        return self._lender is not None and self._bytes(stop - start) <= start * self._sizes.row


def _of(table: dict[str, int], device: torch.device) -> int:
    return table["cuda" if device.type == "cuda" else "cpu"]


def _whole(size: int, grain: int) -> int:
    return max(grain, size // grain * grain)
