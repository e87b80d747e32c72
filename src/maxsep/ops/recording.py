"""Many launches that are one from the second time on: a CUDA graph of them, found again by what they work on.

A training repeats itself: from step to step the allocator hands out the same addresses. What is launched for the same
addresses, shapes and numbers is recorded when it comes a second time, and from then on replayed, which costs the host
one launch. A recording knows addresses, not tensors: it keeps none of them alive, and whatever lies there is what it
works on.

Pitfall: while one thread records, which takes some milliseconds, others may launch what they like on that GPU, but not
wait for all of it (torch.cuda.synchronize), and with torch 2.11 draw no random numbers on it: both raise there.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

SETTING = "MAXSEP_RECORDINGS"
"""The variable of the environment that says how many recordings there are at a time, 0 for none."""
MOST = 8
"""If it says nothing."""
REMEMBERED = 64
"""Runs that were made once, and would be recorded the next time."""
PATIENCE = REMEMBERED
"""Runs that a recording must not have been asked for before another one may have its place. In a cycle of that length
none gives way, and of a longer one nothing is remembered: either way none is made again and again."""
TRIES = 3
"""How often there may be too little memory before nothing is recorded any more."""

Launches = Callable[[], None]


class Maker(Protocol):
    """Makes recordings."""

    def prepare(self, stream: torch.cuda.Stream) -> None:
        """Take what recordings for a stream will need."""

    def record(self, launches: Launches, stream: torch.cuda.Stream) -> Launches:
        """Return what replays launches on the current stream."""

    def make_room(self) -> None:
        """Give memory back that nobody uses."""


_thread = threading.local()


@contextmanager
def launched() -> Iterator[None]:
    """Record nothing in this block: what a compiler runs may lie in memory that it hands out anew.

    >>> with launched():
    ...     _thread.launches
    True
    """
    before, _thread.launches = getattr(_thread, "launches", False), True
    try:
        yield
    finally:
        _thread.launches = before


def repeated(launches: Launches, tensors: Sequence[Tensor | None], *numbers: Hashable) -> None:
    """Run launches for CUDA tensors, the first of which is one; as a recording where they come again.

    Args:
        launches: Reads and writes these tensors only, and waits for nothing. What it allocates must be gone with it.
        tensors: All that it works on.
        numbers: All else that decides what is launched.
    """
    first = tensors[0]
    assert first is not None
    if not first.is_cuda or not _may_record() or torch.cuda.is_current_stream_capturing():
        launches()
        return
    stream = torch.cuda.current_stream(first.device)
    known = (t if t is None else (t.data_ptr(), t.dtype, t.shape, t.stride()) for t in tensors)
    recordings_of(stream.device).run((stream.cuda_stream, *_settings(), *numbers, *known), launches, stream)


@functools.cache
def recordings_of(device: torch.device) -> Recordings:
    """Return the recordings of a GPU; others need not wait for it."""
    return Recordings(Graphs())


def _may_record() -> bool:
    return most() > 0 and _is_known() and not getattr(_thread, "launches", False)


@functools.cache
def _is_known() -> bool:
    """Say whether graphs have memory of their own here, as with the allocator that torch has for NVIDIA's GPUs."""
    return torch.version.hip is None and torch.cuda.get_allocator_backend() == "native"


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
        maker: Makes what replays launches. Memory that it needs for that it takes at the first run, not as a surprise
            at a later one.

    >>> class Maker:
    ...     def prepare(self, stream):
    ...         print("prepared for", stream)
    ...
    ...     def record(self, launches, stream):
    ...         return lambda: print("replayed")
    ...
    ...     def make_room(self):
    ...         pass
    >>> recordings = Recordings(Maker())
    >>> for _ in range(3):
    ...     recordings.run("key", lambda: print("launched"), "a stream")
    prepared for a stream
    launched
    replayed
    replayed
    """

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._made: dict[Hashable, _Recording] = {}
        self._seen: dict[Hashable, None] = {}
        self._turn = 0
        self._failures = 0
        self._lock = threading.Lock()  # every GPU has a thread of its own for gradients

    @property
    def count(self) -> int:
        """How many recordings there are."""
        return len(self._made)

    def run(self, key: Hashable, launches: Launches, stream: torch.cuda.Stream) -> None:
        """Run launches, which are the same for the same key, on the current stream."""
        with self._lock:
            self._turn += 1
            recording = self._made.get(key)
            if recording is None and self._failures < TRIES:
                recording = self._recorded(key, launches, stream)
            if recording is not None:
                recording.turn = self._turn
                recording.replay()
                return
        launches()

    def _has_room(self) -> bool:
        return len(self._made) < most() or self._turn - self._oldest().turn >= PATIENCE

    def _oldest(self) -> _Recording:
        return min(self._made.values(), key=lambda recording: recording.turn)

    def _recorded(self, key: Hashable, launches: Launches, stream: torch.cuda.Stream) -> _Recording | None:
        """Return a recording of what came before; remember what did not."""
        try:
            if key not in self._seen:
                self._maker.prepare(stream)
                self._remember(key)
                return None
            if not self._has_room():
                return None
            replay = self._maker.record(launches, stream)
        except RuntimeError as problem:
            self._fail(problem)
            return None
        if len(self._made) == most():
            del self._made[self._oldest().key]
        found = self._made[key] = _Recording(key, replay, self._turn)
        del self._seen[key]
        return found

    def _fail(self, problem: RuntimeError) -> None:
        """Make room if it was memory that lacked, and give up after a while, or at once if it was something else."""
        self._failures += 1
        if isinstance(problem, torch.OutOfMemoryError):
            self._maker.make_room()
        else:
            self._failures = TRIES
        if self._failures == TRIES:
            warnings.warn(
                f"a CUDA graph could not be recorded ({problem}). From now on kernels are launched one by one, which "
                f"takes the host longer. With {SETTING}=0 in the environment no recording is tried.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _remember(self, key: Hashable) -> None:
        if len(self._seen) == REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = None


@dataclass(frozen=True)
class _Place:
    """Where launches of a stream are recorded: what recordings allocate is shared, for they run one after the other."""

    stream: torch.cuda.Stream
    pool: Any
    first: torch.cuda.CUDAGraph
    """With its last graph a pool would be gone: this one stays."""


class Graphs:
    """Records launches as CUDA graphs."""

    def __init__(self) -> None:
        self._places: dict[tuple[torch.device, int], _Place] = {}

    def prepare(self, stream: torch.cuda.Stream) -> None:
        """Take the memory that recordings for a stream will keep: the workspace of cuBLAS for where they are made."""
        key = stream.device, stream.cuda_stream
        if key in self._places:
            return
        aside = torch.cuda.Stream(stream.device)  # type: ignore[no-untyped-call]
        pool = torch.cuda.graph_pool_handle()
        a = torch.zeros(16, 16, device=stream.device)
        b = a @ a  # loads what may not be loaded while it is recorded
        first = _recorded(lambda: torch.mm(a, a, out=b), aside, pool)
        self._places[key] = _Place(aside, pool, first)

    def record(self, launches: Launches, stream: torch.cuda.Stream) -> Launches:
        """Record launches for a stream, and return what replays them on the current one."""
        self.prepare(stream)
        place = self._places[stream.device, stream.cuda_stream]
        return _recorded(launches, place.stream, place.pool).replay

    def make_room(self) -> None:
        """Give the allocator's spare memory back: while it records, it does not do so by itself."""
        torch.cuda.empty_cache()


def _recorded(launches: Callable[[], Any], stream: torch.cuda.Stream, pool: Any) -> torch.cuda.CUDAGraph:
    # made now, for this thread: while it records, nothing may ask the GPU for memory
    torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        try:
            graph.capture_begin(pool, capture_error_mode="thread_local")  # other threads may go on
            try:
                launches()
            finally:
                graph.capture_end()
        except BaseException:
            # old versions leave this undone where recording fails, others say that it is done
            with suppress(RuntimeError, AttributeError):
                torch._C._cuda_endAllocateToPool(stream.device.index, pool)
            raise
    return graph


def _settings() -> tuple[Hashable, ...]:
    """Return what torch lets change in its products between two runs."""
    products = torch.backends.cuda.matmul
    return (
        products.fp32_precision,
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction(),
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction(),
        products.allow_fp16_accumulation,
        torch.backends.cuda.preferred_blas_library(),
        torch.are_deterministic_algorithms_enabled(),
    )
