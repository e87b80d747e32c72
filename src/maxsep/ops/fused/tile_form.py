"""How the products of `kernels/products.py` are launched: on any GPU with a copy engine, and in the interpreter."""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from maxsep.ops.kernels import products
from maxsep.ops.kernels import weight_gradients as tail

FORWARD_TILE = {"ROWS": 128, "COLS": 128, "INNER": 64, "num_warps": 8, "num_stages": 3}
BACKWARD_TILE = {"ROWS": 128, "COLS": 128, "INNER": 64, "num_warps": 8, "num_stages": 3}
"""For an H200: 14,336 classes of 4,096 samples and 512 features take 100 us and 107 us (benchmarks/fused_tune.py)."""
LINES = 1
"""Sums over samples that the gradient makes of each block of samples."""
TAIL_TILE = {"CLASSES": 64, "ROWS": 64, "STAGES": 2, "num_warps": 8}
"""For an H200, with 512 features: 32 samples at a time take half as long again (in a run without a record)."""
CLASSES = TAIL_TILE["CLASSES"]
accumulate_product, gradient_product = products.accumulate_product, products.gradient_product
weight_gradients = tail.weight_gradients


def described(matrix: Tensor, block: list[int]) -> TensorDescriptor:
    """Describe a matrix to the copy engine."""
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), block)


def blocks(*, forward: bool) -> tuple[list[list[int]], list[int], list[int]]:
    """Return what the copy engine takes at once of samples, classes and gradients."""
    tile = _tile(forward)
    rows, cols, inner = tile["ROWS"], tile["COLS"], tile["INNER"]
    return [[rows, inner]], [cols, inner], [rows, cols // 2]


def programs_at_once(*, forward: bool) -> int:
    """Return how many programs a processor runs at once: two if their accumulators fit."""
    tile = _tile(forward)
    return 2 if tile["ROWS"] * tile["COLS"] <= 128 * 128 else 1


def options(width: int, *, forward: bool, per_class: bool, columns: bool) -> dict[str, Any]:
    """Return what the kernels are compiled for."""
    return {"WIDTH": width, **_tile(forward)}


def tail_options(width: int) -> dict[str, Any]:
    """Return what `weight_gradients` is compiled for."""
    return {"WIDTH": width, "SPREAD": max(16, triton.next_power_of_2(width)), **TAIL_TILE}


def tail_factors(x: Tensor, rows: Tensor, options: dict[str, Any]) -> tuple[Any, ...]:
    """Return samples and rows of W' as the kernel takes them: descriptions, pointers and numbers."""
    spread = options["SPREAD"]
    return (described(x, [options["ROWS"], spread]), described(rows, [options["CLASSES"], spread])), (), ()


def _tile(forward: bool) -> dict[str, int]:
    return FORWARD_TILE if forward else BACKWARD_TILE
