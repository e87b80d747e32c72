"""Launches of Triton kernels without Triton's own look-up: about 0.05 ms less Python each, on the host of an H200.

A kernel is compiled for the types of its arguments and for what divides them. Triton describes them by text in every
launch; here a tuple of the same facts finds the compiled kernel.
"""

import functools
from typing import Any

import torch
from torch import Tensor

KNOWN = ((3, 6), (3, 7))  # versions of Triton that compile the kernels in Gluon, and launch compiled kernels as below
_compiled: dict[Any, Any] = {}


def launch(kernel: Any, grid: tuple[int, ...], device: torch.device, *arguments: Any, **constants: Any) -> None:
    """Run `kernel[grid](*arguments, **constants)` on a device; all arguments but the constants are positional."""
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(kernel, grid, device, *arguments, **constants)
        return
    key = (kernel.fn, device.index, *constants.values(), *map(_specialisation, arguments))
    compiled = _compiled.get(key)
    if compiled is None:
        compiled = kernel[grid](*arguments, **constants)
        if hasattr(compiled, "packed_metadata") and is_known_triton():  # the interpreter on a CPU compiles nothing
            _compiled[key] = compiled
        return
    values = [constants[name] for name in kernel.arg_names[len(arguments) :]]
    compiled[(*grid, 1, 1)[:3]](*arguments, *values)


@functools.cache
def is_known_triton() -> bool:
    """Return whether Triton is of a known version, for NVIDIA: for AMD it also specialises on the size of a storage."""
    import triton

    return torch.version.hip is None and tuple(map(int, triton.__version__.split(".")[:2])) in KNOWN


def _specialisation(argument: Any) -> Any:
    """Return what a kernel is compiled for; at least as fine as Triton's own distinctions."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return argument == 1, argument % 16 == 0, -(1 << 31) <= argument < 1 << 31
    if argument is None or isinstance(argument, float):
        return type(argument)
    return argument.base.dtype, *argument.block_shape  # a descriptor, whose layout follows from these
