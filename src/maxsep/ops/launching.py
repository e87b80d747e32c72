"""Launches that cost little: most kernels are shorter than Triton takes to launch them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

KNOWN = ((3, 6), (3, 7))
"""Versions of Triton of which it is known how a compiled kernel is launched, and that compile what is for Hopper. The
first was measured on an H200; with the second everything was compiled."""

_launchers: dict[Any, Launcher] = {}


@functools.cache
def is_known() -> bool:
    """Say whether this version of Triton is one of those that were tried, and its GPUs are NVIDIA's.

    For others it looks at more of an argument, such as the size of a tensor, and their capabilities mean other things.
    """
    import triton

    return torch.version.hip is None and tuple(map(int, triton.__version__.split(".")[:2])) in KNOWN


def launch(
    kernel: Any, grid: tuple[int, ...], pointers: Sequence[Tensor | None], numbers: Sequence[float], **options: Any
) -> None:
    """Launch a kernel of pointers, the first of which is a tensor, numbers and constants."""
    assert pointers[0] is not None
    launcher(kernel, pointers[0].device, options)(grid, (), pointers, numbers)


def launcher(kernel: Any, device: torch.device, options: dict[str, Any]) -> Launcher:
    """Return what launches a kernel with such options on a device, which must be the current one."""
    key = (kernel.fn, device, *options.items())
    found = _launchers.get(key)
    if found is None:
        found = _launchers[key] = Launcher(kernel, options)
    return found


class Launcher:
    """Launches a kernel as it was compiled before, if it was for arguments of the same kind.

    With every launch Triton looks at all arguments to find out for what the kernel is compiled, in Python: on the host
    of an H200 a product took some 50 us to launch so, and half of it directly. What it looks at is looked at here too,
    but in one sweep: types, alignments of 16 bytes, and of integers whether they are one, multiples of 16, or wide.

    Pitfall: who changes Triton's settings in a running process (its debug mode, or an instrumentation) meets them only
    in kernels of a kind that was not launched before. Hooks of a kernel are asked for with every launch.

    Args:
        kernel: Takes descriptors, pointers, numbers and constants, in this order.
        options: Its constants, and what the compiler wants to know.
    """

    def __init__(self, kernel: Any, options: dict[str, Any]) -> None:
        self._kernel, self._options = kernel, options
        self._constants = [options[name] for name in kernel.arg_names if name in options]
        self._compiled: dict[Any, Any] = {}

    def __call__(
        self,
        grid: tuple[int, ...],
        described: Sequence[Any],
        pointers: Sequence[Tensor | None],
        numbers: Sequence[float],
    ) -> None:
        """Launch a grid of programs."""
        kinds = (
            *[matrix.base.dtype for matrix in described],
            *[p if p is None else p.dtype if p.data_ptr() % 16 == 0 else (p.dtype,) for p in pointers],
            *[(n == 1, n % 16 == 0, n >> 31) if type(n) is int else type(n) for n in numbers],
        )
        compiled = self._compiled.get(kinds)
        if compiled is not None and not self._kernel.pre_run_hooks:
            compiled[(*grid, 1, 1)](*described, *pointers, *numbers, *self._constants)
            return
        compiled = self._kernel[grid](*described, *pointers, *numbers, **self._options)
        if compiled is not None and is_known():  # an interpreter compiles nothing
            self._compiled[kinds] = compiled


class Described:
    """The description of a matrix for the copy engine, which becomes that of another one of its kind: see `at`.

    It is checked only once, so rows of all of them must start at multiples of 16 bytes.
    """

    def __init__(self, describe: Callable[[Tensor, list[int]], Any], block: list[int]) -> None:
        self._describe, self._block = describe, block
        self._last: Any = None

    def at(self, matrix: Tensor) -> Any:
        """Return the description of a matrix; that of the one before is no longer one."""
        last = self._last
        if last is None:
            self._last = last = self._describe(matrix, self._block)
        elif last.base is not matrix:
            last.base, last.shape, last.strides = matrix, list(matrix.shape), list(matrix.stride())
        return last
