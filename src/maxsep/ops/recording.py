"""Many launches that are one from the second time on: a CUDA graph of them, found again by what they work on.

A training repeats itself: from step to step the allocator hands out the same addresses. What is launched for the same
addresses, shapes and numbers is recorded when it comes a second time, and from then on replayed, which costs the host
one launch. A recording knows addresses, not tensors: it keeps none of them alive, and whatever lies there is what it
works on.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SETTING = "MAXSEP_RECORDINGS"
"""The variable of the environment that says how many recordings there are at a time, 0 for none."""
MOST = 8
"""If it says nothing."""
PATIENCE = 256
"""Runs that a recording must not have been asked for before another one may have its place."""
REMEMBERED = 64
"""Runs that were made once, and would be recorded the next time."""

Launches = Callable[[], None]


def repeated(launches: Launches, tensors: Sequence[Tensor | None], *numbers: Hashable) -> None:
    """Run launches for CUDA tensors, the first of which is one; as a recording where they come again.

    Args:
        launches: Reads and writes these tensors only, and waits for nothing. What it allocates must be gone with it.
        tensors: All that it works on.
        numbers: All else that decides what is launched.
    """
    first = tensors[0]
    assert first is not None
    if not first.is_cuda or not most() or torch.cuda.is_current_stream_capturing():
        launches()
        return
    stream = torch.cuda.current_stream(first.device)
    known = (t if t is None else (t.data_ptr(), t.dtype, t.shape, t.stride()) for t in tensors)
    _recordings.run((stream.device, stream.cuda_stream, *_settings(), *numbers, *known), launches, stream)


@functools.cache
def most() -> int:
    """Return how many recordings there are at a time.

    >>> most()
    8
    """
    given = os.environ.get(SETTING, str(MOST))
    if not given.isdecimal():
        raise ValueError(
            f"{SETTING} must be how many CUDA graphs of repeated launches are kept, got {given!r}. "
            "Set it to 0 for none, to a positive number, or not at all."
        )
    return int(given)


@dataclass
class _Recording:
    key: Hashable
    replay: Launches
    turn: int
    """When it was asked for last."""


class Recordings:
    """Recordings by their keys: made at the second run, a few at a time.

    Args:
        record: Makes what replays launches, for a stream.

    >>> recordings = Recordings(lambda launches, stream: lambda: print("replayed"))
    >>> for _ in range(3):
    ...     recordings.run("key", lambda: print("launched"), None)
    launched
    replayed
    replayed
    """

    def __init__(self, record: Callable[[Launches, torch.cuda.Stream], Launches]) -> None:
        self._record = record
        self._made: dict[Hashable, _Recording] = {}
        self._seen: dict[Hashable, None] = {}
        self._turn = 0
        self._fails = False
        self._lock = threading.Lock()  # every GPU has a thread of its own for gradients

    def run(self, key: Hashable, launches: Launches, stream: torch.cuda.Stream) -> None:
        """Run launches, which are the same for the same key, on the current stream."""
        with self._lock:
            self._turn += 1
            recording = self._made.get(key)
            if recording is None and self._came_before(key) and self._may_record():
                recording = self._recorded(key, launches, stream)
            if recording is not None:
                recording.turn = self._turn
                recording.replay()
                return
        launches()

    def _came_before(self, key: Hashable) -> bool:
        if key in self._seen:
            return True
        if len(self._seen) == REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = None
        return False

    def _may_record(self) -> bool:
        return not self._fails and (len(self._made) < most() or self._turn - self._oldest().turn >= PATIENCE)

    def _oldest(self) -> _Recording:
        return min(self._made.values(), key=lambda recording: recording.turn)

    def _recorded(self, key: Hashable, launches: Launches, stream: torch.cuda.Stream) -> _Recording | None:
        try:
            found = _Recording(key, self._record(launches, stream), self._turn)
        except RuntimeError as problem:
            self._fails = True
            warnings.warn(
                f"a CUDA graph could not be recorded ({problem}). Kernels are launched one by one, which is slower on "
                f"the host and gives the same values. With {SETTING}=0 none is tried.",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        if len(self._made) == most():  # only now: recordings share memory that goes with the last of them
            del self._made[self._oldest().key]
        self._made[key] = found
        del self._seen[key]
        return found


@dataclass
class _Place:
    """Where launches of a stream are recorded: what recordings allocate is shared, for they run one after the other."""

    stream: torch.cuda.Stream
    pool: Any
    graphs: weakref.WeakSet[torch.cuda.CUDAGraph]
    """That are there; with the last of them the pool is gone."""


class Graphs:
    """Records launches as CUDA graphs."""

    def __init__(self) -> None:
        self._places: dict[tuple[torch.device, int], _Place] = {}

    def __call__(self, launches: Launches, stream: torch.cuda.Stream) -> Launches:
        """Record launches for a stream, and return what replays them on the current one."""
        place = self._place(stream)
        # made now, for this thread: while it records, nothing may ask the GPU for memory
        torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(place.stream):
            graph.capture_begin(place.pool, capture_error_mode="thread_local")  # other threads may go on
            try:
                launches()
            finally:
                graph.capture_end()
        place.graphs.add(graph)
        return graph.replay

    def _place(self, stream: torch.cuda.Stream) -> _Place:
        key = stream.device, stream.cuda_stream
        place = self._places.get(key)
        if place is None or not place.graphs:
            aside = torch.cuda.Stream(stream.device)  # type: ignore[no-untyped-call]
            place = self._places[key] = _Place(aside, torch.cuda.graph_pool_handle(), weakref.WeakSet())
        return place


def _settings() -> tuple[Hashable, ...]:
    """Return what torch lets change in its products between two runs."""
    products = torch.backends.cuda.matmul
    return (
        products.allow_bf16_reduced_precision_reduction,
        products.allow_fp16_reduced_precision_reduction,
        products.allow_fp16_accumulation,
        torch.are_deterministic_algorithms_enabled(),
    )


_recordings = Recordings(Graphs())
