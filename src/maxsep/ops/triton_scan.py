"""x -> radius * P^T x and its adjoint by one kernel each: torch operators that launch `maxsep.ops.kernels.rows`.

`separate_rows` and `adjoint_rows` are the operators, or the short way to the same code (`adjoint_pair`). Sums are made
in float32 in a fixed order: the same input gives the same bits. Any strides are read as they are; only leading
dimensions that cannot be seen as one are copied first. The C-1 outputs may have padding behind them, up to a multiple
of 8: it does not count, and its gradient is zero.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from maxsep.ops.adjoint_pair import adjoint_pair
from maxsep.ops.launching import launch as launch_kernel
from maxsep.ops.row_plan import Layout, Plan, Tile, as_matrix, layout_of, plan_rows, power_of_two

IS_INSTALLED = importlib.util.find_spec("triton") is not None
MOST_CLASSES = 2**30
"""The kernels count classes in 32 bits."""
OLDEST = (7, 0)
"""The compute capability from which on Triton has code for a GPU: Volta's."""


def check_triton(x: Tensor) -> None:
    """Raise where there is no Triton, or x is not on a CUDA device."""
    if not IS_INSTALLED:
        raise RuntimeError(
            "impl='triton' needs the package triton, which is not installed. Install it "
            "(pip install 'maxsep[kernels]') or leave impl out: every form gives the same values."
        )
    if x.device.type != "cuda" and not is_interpreting():
        raise RuntimeError(
            f"impl='triton' is for CUDA tensors, x is on '{x.device}'. "
            "Leave impl out: every form gives the same values."
        )
    if x.is_cuda and not is_supported(x.device.index):
        raise RuntimeError(
            f"impl='triton' is for GPUs of compute capability {OLDEST[0]}.{OLDEST[1]} or higher, x is on '{x.device}', "
            "which is older. Leave impl out: every form gives the same values."
        )


def takes(x: Tensor) -> bool:
    """Return whether the kernel is there for a tensor: on a GPU that Triton knows, of 16 or 32 bits, not exported."""
    return (
        IS_INSTALLED
        and x.is_cuda
        and is_supported(x.device.index)
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and x.shape[-1] < MOST_CLASSES
        and not torch.compiler.is_exporting()
    )


def is_supported(index: int | None) -> bool:
    """Return whether Triton has code for a CUDA device.

    Where there is none, a tensor that is on one is a pretended one, of which a compiler asks: it counts as new.
    """
    return _capability(index) >= OLDEST


@functools.cache
def _capability(index: int | None) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index) if torch.cuda.is_available() else OLDEST


# What torch.compiler.assume_constant_result does, without importing the compiler: a graph is made for a device.
is_supported._dynamo_marked_constant = True  # type: ignore[attr-defined]


def choose_tile(rows: int, num_classes: int, itemsize: int, column_major: bool) -> Tile:
    """Return how much of the matrix a program holds at once.

    Compiled for an H100 or H200 these tiles take about 64 registers per thread, up to 70 where loads are staged, so
    that 7 or 8 programs fit on each multiprocessor and about 1,000 rows on the device. On an H200, with 1,024 rows of
    100,000 classes, the percentages of a copy's bandwidth, forward and backward, were (the first is the choice;
    `benchmarks/head_gpu.py --parts sweep`):

        bfloat16   1 x 1024, 4 warps, 3 stages   83.8, 84.7      float32   1 x 1024, 4 warps, 1 stage    80.0, 85.7
                   1 x 2048, 8 warps, 3 stages   76.5, 75.9                1 x 1024, 4 warps, 3 stages   71.5, 81.6
                   1 x 1024, 4 warps, 1 stage    68.8, 68.3

    A transposed matrix and several short rows per program were not compared.
    """
    if column_major:
        return Tile(32, 32, 4)
    block = min(1024, power_of_two(num_classes))
    stages = 3 if itemsize == 2 and num_classes > 4096 else 1  # small elements need more loads under way
    return Tile(max(1, min(power_of_two(rows), 1024 // block)), block, 4, stages)


def scale_of(radius: float, k: int) -> float:
    """Return a = radius sqrt(C/k), which all coefficients share."""
    return radius * math.sqrt((k + 1) / k)


def launch(x: Tensor, out: Tensor, k: int, radius: float, adjoint: bool) -> None:
    """Write the product of x to `out`, each of two dimensions or such that the leading ones are seen as one."""
    from maxsep.ops.kernels import rows as kernels

    x, out, factor = as_matrix(x), as_matrix(out), scale_of(radius, k)
    plan, stages = launch_plan(layout_of(x, out), k)
    kernel, width = (kernels.adjoint, k + 1) if adjoint else (kernels.forward, k)
    with on_device_of(x):
        partial = plan.sums_of_shares(x, width, k, factor, weighted=not adjoint)
        numbers = (x.shape[0], k, factor, *plan.source, *plan.target, *plan.shares)
        launch_kernel(kernel, plan.grid, (x, out, partial), numbers, STAGES=stages, **plan.options)


@functools.lru_cache(maxsize=512)
def launch_plan(layout: Layout, k: int) -> tuple[Plan, int]:
    """Return what is the same in every launch for such matrices; whoever changes tiles has to clear this cache."""
    tile = choose_tile(layout.shape[0], k + 1, layout.itemsize, layout.is_column_major)
    return plan_rows(layout, k, tile), tile.stages


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Make a tensor's device the one that kernels are launched on."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return _HERE
    return torch.cuda.device(x.device)


_HERE: AbstractContextManager[object] = nullcontext()


def is_interpreting() -> bool:
    """Return whether Triton is asked to interpret its programs, which then run on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


separate_op, adjoint_op, separate_rows, adjoint_rows = adjoint_pair("separate", launch)
