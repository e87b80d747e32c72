"""A small bounded memory of coefficient vectors, which is never filled with tensors that cannot outlive the call."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from maxsep.checks import Basis
from maxsep.ops.modes import is_traced
from maxsep.simplex import coefficients, simplex

MAX_ENTRIES = 16
KEPT_DENSE_UP_TO = 512
"""Beyond this many classes the dense matrix is rebuilt at each use: nothing of size C^2 stays in memory."""

Key = tuple[str, int, torch.dtype, torch.device]
Value = TypeVar("Value")
_entries: OrderedDict[Key, object] = OrderedDict()
_lock = threading.Lock()


def cached_coefficients(
    num_classes: int, dtype: torch.dtype, device: torch.device, rows: tuple[int, int] | None = None
) -> tuple[Tensor, Tensor]:
    """Return (s, r) of `coefficients`, of all rows or some, on a device; computed at the first use.

    >>> s, r = cached_coefficients(10, torch.float32, torch.device("cpu"))
    >>> s.shape
    torch.Size([9])
    """
    key = (f"coefficients {rows or 'all'}", num_classes, dtype, device)
    return _recall(key, lambda: coefficients(num_classes, dtype=dtype, device=device, rows=rows))


def cached_simplex(num_classes: int, dtype: torch.dtype, device: torch.device, basis: Basis = "recursive") -> Tensor:
    """Return the dense matrix on a device; kept only up to `KEPT_DENSE_UP_TO` classes.

    >>> cached_simplex(10, torch.float32, torch.device("cpu")).shape
    torch.Size([9, 10])
    """
    if num_classes > KEPT_DENSE_UP_TO:
        return simplex(num_classes, basis=basis, dtype=dtype, device=device)
    key = (f"simplex {basis}", num_classes, dtype, device)
    return _recall(key, lambda: simplex(num_classes, basis=basis, dtype=dtype, device=device))


def clear_cache() -> None:
    """Forget all coefficients (tests and memory-hungry notebooks).

    >>> clear_cache()
    """
    with _lock:
        _entries.clear()


def _recall(key: Key, compute: Callable[[], Value]) -> Value:
    if _is_tracing() or _is_capturing(key[-1]) or key[-1].type == "meta":
        return compute()
    with _lock:
        if key in _entries:
            _entries.move_to_end(key)
            return _entries[key]  # type: ignore[return-value]  # the key's first word decides the type
    if torch.is_inference_mode_enabled():
        return compute()
    with torch.no_grad():
        value = compute()
    with _lock:
        _entries[key] = value
        while len(_entries) > MAX_ENTRIES:
            _entries.popitem(last=False)
    return value


def _is_tracing() -> bool:
    # A fake tensor in the cache, or a real one inside a fake graph, would break every later call; and torch.jit.trace
    # traces twice and refuses a graph that differs, as one without the computation would.
    return (
        is_traced()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or _get_current_dispatch_mode() is not None
    )


def _is_capturing(device: torch.device) -> bool:
    # What a capture allocates belongs to its graph, and what it reads from here could be evicted before a replay.
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
