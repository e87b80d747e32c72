"""A small bounded memory of coefficient vectors, which is never filled with tensors that cannot outlive the call."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from maxsep.simplex import coefficients, simplex

MAX_ENTRIES = 16
DENSE_LIMIT = 512
"""Beyond this many classes the dense matrix is rebuilt at each use: nothing of size C^2 stays in memory."""

Key = tuple[str, int, torch.dtype, torch.device]
Value = TypeVar("Value")
_entries: OrderedDict[Key, object] = OrderedDict()
_lock = threading.Lock()


def cached_coefficients(num_classes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (s, r) of `coefficients` on a device, computed at the first use.

    >>> s, r = cached_coefficients(10, torch.float32, torch.device("cpu"))
    >>> s.shape
    torch.Size([9])
    """
    key = ("coefficients", num_classes, dtype, device)
    return _recall(key, lambda: coefficients(num_classes, dtype=dtype, device=device))


def cached_simplex(num_classes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the dense matrix on a device; kept only up to `DENSE_LIMIT` classes.

    >>> cached_simplex(10, torch.float32, torch.device("cpu")).shape
    torch.Size([9, 10])
    """
    if num_classes > DENSE_LIMIT:
        return simplex(num_classes, dtype=dtype, device=device)
    key = ("simplex", num_classes, dtype, device)
    return _recall(key, lambda: simplex(num_classes, dtype=dtype, device=device))


def clear_cache() -> None:
    """Forget all coefficients (tests and memory-hungry notebooks).

    >>> clear_cache()
    """
    with _lock:
        _entries.clear()


def _recall(key: Key, compute: Callable[[], Value]) -> Value:
    if _is_tracing() or key[-1].type == "meta":
        return compute()
    with _lock:
        if key in _entries:
            _entries.move_to_end(key)
            return _entries[key]  # type: ignore[return-value]  # the key's first word decides the type
    if torch.is_inference_mode_enabled() or _is_capturing(key[-1]):
        return compute()
    with torch.no_grad():
        value = compute()
    with _lock:
        _entries[key] = value
        while len(_entries) > MAX_ENTRIES:
            _entries.popitem(last=False)
    return value


def _is_tracing() -> bool:
    # A fake tensor in the cache, or a real one inside a fake graph, would break every later call.
    return (
        torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or _get_current_dispatch_mode() is not None
    )


def _is_capturing(device: torch.device) -> bool:
    # Memory allocated during CUDA-graph capture belongs to the graph and is overwritten by its replays.
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
