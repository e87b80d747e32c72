"""How `kernels/hopper.py` and `kernels/hopper_tail.py` are launched: on a Hopper GPU, where rows fit on a processor."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from maxsep.ops.kernels import hopper, hopper_tail

ROWS, HALF, COLS, SLICE = (number.value for number in (hopper.ROWS, hopper.HALF, hopper.COLS, hopper.SLICE))
CLASSES = hopper_tail.CLASSES.value
MOST_WIDTH = 512
"""Features of which 64 samples fit into the registers of a group."""
HELD, HELD_BESIDE = 8, 4
"""Slices of samples in registers, and how many where numbers of classes are taken there too: else they do not fit."""
SHARED_MEMORY = 232_448
SPARE = 1 << 10
"""Bytes for barriers and for what the groups are given."""
MOST_STAGES = 14
LINES = 2
"""Sums over samples that the gradient makes of each block of samples: one for each group."""
TAIL_ROWS, TAIL_BUFFERS = 32, 4
"""Samples that `weight_gradients` takes at once, and blocks of their gradients that are in shared memory."""
TAIL_HELD = 6
"""Slices of W' in the registers of the group that makes logits: as many as fit with all options."""
TAIL_STAGES = 12
"""Blocks of samples that are on their way or in use, at most; where rows are long, memory has fewer."""
accumulate_product, gradient_product = hopper.accumulate_product, hopper.gradient_product
weight_gradients = hopper_tail.weight_gradients


def suits(x: Tensor, *, forward: bool, per_class: bool) -> bool:
    """Say whether samples have whole slices and fit, and whether this is faster than `tile_form`.

    On an H200 with 4,096 samples and 14,336 classes it is, but for the log-sum-exp of some widths: with 128 features it
    has 313 TFLOP/s beside 326, and with numbers of classes and 128 or 256 features 210 beside 268 and 368 beside 434.
    With a few hundred samples, or classes, either may be the faster by a tenth (results/product_forms_gpu.json).
    """
    width = x.shape[1]
    if forward and per_class:
        return width in (SLICE, MOST_WIDTH)
    return width % SLICE == 0 and 0 < width <= MOST_WIDTH and not (forward and width == 2 * SLICE)


def suits_tail(x: Tensor) -> bool:
    """Say whether `weight_gradients` takes such samples: each half of their features is a factor of products."""
    return x.shape[1] in (2 * SLICE, 4 * SLICE, 8 * SLICE)


def described(matrix: Tensor, block: list[int]) -> TensorDescriptor:
    """Describe a matrix to the copy engine."""
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), block, _layout(*block, matrix.dtype))


@functools.cache
def _layout(rows: int, cols: int, dtype: torch.dtype) -> Any:
    return gl.NVMMASharedLayout.get_default_for([rows, cols], gl.bfloat16 if dtype == torch.bfloat16 else gl.float16)


def blocks(*, forward: bool) -> tuple[list[list[int]], list[int], list[int]]:
    """Return what the copy engine takes at once of samples, for both groups and for one, of classes and gradients."""
    return [[ROWS, SLICE], [HALF, SLICE]], [COLS, SLICE], [HALF, COLS]


def programs_at_once(*, forward: bool) -> int:
    """Return how many programs a processor runs at once: each takes all of its shared memory."""
    return 1


def options(width: int, *, forward: bool, per_class: bool, columns: bool) -> dict[str, Any]:
    """Return what the kernels are compiled for.

    A group that has its turn must find all slices of it in the ring, and turns are equal parts of a tile.

    >>> options(512, forward=True, per_class=False, columns=False)
    {'WIDTH': 512, 'STAGES': 14, 'HELD': 8, 'TURN': 8, 'num_warps': 4}
    """
    slices = width // SLICE
    held = min(slices, HELD_BESIDE if per_class else HELD)
    room = SHARED_MEMORY - SPARE - ROWS * (width - held * SLICE) * 2
    if not forward:
        room -= ROWS * COLS * 2  # results on their way out
    if columns:
        room -= 8 * COLS * 4  # a sum of each warp
    stages = min(MOST_STAGES, room // (COLS * SLICE * 2))
    turn = max(turn for turn in range(1, slices + 1) if slices % turn == 0 and turn <= stages)
    return {"WIDTH": width, "STAGES": stages, "HELD": held, "TURN": turn, "num_warps": 4}


def tail_options(width: int) -> dict[str, Any]:
    """Return what `weight_gradients` is compiled for.

    >>> tail_options(512)
    {'WIDTH': 512, 'ROWS': 32, 'STAGES': 6, 'BUFFERS': 4, 'HELD': 6, 'num_warps': 4}
    """
    rows, buffers, held = TAIL_ROWS, TAIL_BUFFERS, min(width // SLICE, TAIL_HELD)
    room = SHARED_MEMORY - 2 * SPARE - 2 * CLASSES * (buffers * rows + width - held * SLICE)
    stages = min(TAIL_STAGES, room // (2 * rows * width))
    return {"WIDTH": width, "ROWS": rows, "STAGES": stages, "BUFFERS": buffers, "HELD": held, "num_warps": 4}


def tail_factors(x: Tensor, rows: Tensor, options: dict[str, Any]) -> tuple[Any, ...]:
    """Return samples and rows of W' as the kernel takes them: descriptions, pointers and numbers."""
    return (described(x, [options["ROWS"], x.shape[1] // 2]),), (rows,), (rows.stride(0),)
