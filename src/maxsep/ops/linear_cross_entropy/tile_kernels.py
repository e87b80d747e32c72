"""Triton kernels for a product x W^T that ends in its log-sum-exp or its gradient, on GPUs with a copy engine.

Tiles come through tensor descriptors. A program keeps one block of samples and visits every SPLITS-th tile of classes;
the loops over tiles and over features are flattened into one, so that the next tile is loaded while the exponentials of
this one are taken. Exponentials are powers of two, whose factor log2(e) is part of one multiply-add.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from maxsep.ops.launch import launch

LOG2_E = tl.constexpr(1.4426950408889634)
BLOCK_B, BLOCK_V, BLOCK_D = 128, 128, 64
TILE = {"BLOCK_B": BLOCK_B, "BLOCK_V": BLOCK_V, "BLOCK_D": BLOCK_D, "num_warps": 8, "num_stages": 3}
PROGRAMS_PER_SM = 2  # the epilogue of one hides behind the products of the other


@triton.jit(do_not_specialize=["batch", "num_classes", "splits"])
def lse_kernel(
    x_desc, w_desc, offset, target, maxima, exp_sums, target_logit, batch, num_classes, splits,
    OFFSET: tl.constexpr, D: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute the online log-sum-exp of BLOCK_B rows over every splits-th tile of classes, (splits, B) each."""
    split = tl.program_id(0) % splits
    first_b = tl.program_id(0) // splits * BLOCK_B
    offs_b = first_b + tl.arange(0, BLOCK_B)
    index = tl.load(target + offs_b, mask=offs_b < batch, other=-1).to(tl.int32)
    running_max = tl.full([BLOCK_B], -float("inf"), tl.float32)
    sum_exp = tl.zeros([BLOCK_B], tl.float32)
    picked = tl.zeros([BLOCK_B], tl.float32)
    for tile in tl.range(split, tl.cdiv(num_classes, BLOCK_V), splits, flatten=True):
        z = tl.zeros([BLOCK_B, BLOCK_V], tl.float32)
        for d in range(0, D, BLOCK_D):
            z = tl.dot(x_desc.load([first_b, d]), w_desc.load([tile * BLOCK_V, d]).T, z)
        offs_v = tile * BLOCK_V + tl.arange(0, BLOCK_V)
        if OFFSET:
            z += tl.load(offset + offs_v, mask=offs_v < num_classes, other=0.0)[None, :]
        picked += tl.sum(tl.where(index[:, None] == offs_v[None, :], z, 0.0), 1)
        z = tl.where((offs_v < num_classes)[None, :], z, -float("inf"))
        new_max = tl.maximum(running_max, tl.max(z, 1))
        reference = tl.where(new_max == -float("inf"), 0.0, new_max) * LOG2_E
        sum_exp = sum_exp * tl.exp2(running_max * LOG2_E - reference)
        sum_exp += tl.sum(tl.exp2(z * LOG2_E - reference[:, None]), 1)
        running_max = new_max
    place = split.to(tl.int64) * batch + offs_b
    tl.store(maxima + place, running_max, mask=offs_b < batch)
    tl.store(exp_sums + place, sum_exp, mask=offs_b < batch)
    tl.store(target_logit + place, picked, mask=offs_b < batch)


@triton.jit(do_not_specialize=["batch", "num_classes", "start", "splits"])
def grad_kernel(
    x_desc, w_desc, out_desc, offset, target, lse, grad_lse, grad_target, batch, num_classes, start, splits,
    OFFSET: tl.constexpr, D: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write grad_lse exp(z - lse) + grad_target [class = target] for the classes from `start` on."""
    first_b = tl.program_id(0) // splits * BLOCK_B
    offs_b = first_b + tl.arange(0, BLOCK_B)
    inside = offs_b < batch
    index = (tl.load(target + offs_b, mask=inside, other=-1) - start).to(tl.int32)
    # +inf beyond the batch: such rows get no gradient, whatever the offset
    reference = tl.load(lse + offs_b, mask=inside, other=float("inf")) * LOG2_E
    factor = tl.load(grad_lse + offs_b, mask=inside, other=0.0)
    pull = tl.load(grad_target + offs_b, mask=inside, other=0.0)
    for tile in tl.range(tl.program_id(0) % splits, tl.cdiv(num_classes, BLOCK_V), splits, flatten=True):
        z = tl.zeros([BLOCK_B, BLOCK_V], tl.float32)
        for d in range(0, D, BLOCK_D):
            z = tl.dot(x_desc.load([first_b, d]), w_desc.load([start + tile * BLOCK_V, d]).T, z)
        offs_v = tile * BLOCK_V + tl.arange(0, BLOCK_V)
        if OFFSET:
            z += tl.load(offset + start + offs_v, mask=offs_v < num_classes, other=0.0)[None, :]
        g = tl.exp2(z * LOG2_E - reference[:, None]) * factor[:, None]
        # the target is subtracted in float32, before rounding: p - 1 of a confident sample is small
        g += tl.where(index[:, None] == offs_v[None, :], pull[:, None], 0.0)
        # stored in two halves, whose staging buffer leaves room for a second program
        left, right = tl.split(tl.permute(tl.reshape(g, [BLOCK_B, 2, BLOCK_V // 2]), [0, 2, 1]))
        out_desc.store([first_b, tile * BLOCK_V], left.to(out_desc.dtype))
        out_desc.store([first_b, tile * BLOCK_V + BLOCK_V // 2], right.to(out_desc.dtype))


@triton.jit(do_not_specialize=["batch", "num_classes", "splits"])
def merge_kernel(
    maxima, exp_sums, logit_parts, target, lse, target_logit, batch, num_classes, splits,
    SPLITS: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """Merge the partial results of all splits, (splits, B) each, into log-sum-exp and target logit, (B,)."""
    offs_b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    split = tl.arange(0, SPLITS)
    mask = (split < splits)[:, None] & (offs_b < batch)[None, :]
    place = split.to(tl.int64)[:, None] * batch + offs_b[None, :]
    split_max = tl.load(maxima + place, mask=mask, other=-float("inf"))
    row_max = tl.max(split_max, 0)
    reference = tl.where(row_max == -float("inf"), 0.0, row_max)
    exp_sum = tl.load(exp_sums + place, mask=mask, other=0.0) * tl.exp2((split_max - reference[None, :]) * LOG2_E)
    tl.store(lse + offs_b, row_max + tl.log(tl.sum(exp_sum, 0)), mask=offs_b < batch)
    index = tl.load(target + offs_b, mask=offs_b < batch, other=0)
    picked = tl.sum(tl.load(logit_parts + place, mask=mask, other=0.0), 0)
    is_class = (index >= 0) & (index < num_classes)
    tl.store(target_logit + offs_b, tl.where(is_class, picked, float("nan")), mask=offs_b < batch)


def logsumexp(x: Tensor, weight: Tensor, offset: Tensor | None, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp and the target's logit of every sample, (B,) float32 each; NaN where it is no class."""
    batch, num_classes = len(x), len(weight)
    blocks, splits = grid_of(batch, num_classes, x.device, PROGRAMS_PER_SM)
    parts = [x.new_empty(splits, batch, dtype=torch.float32) for _ in range(3)]
    launch(
        lse_kernel, (blocks * splits,), x.device,
        describe(x, BLOCK_B, BLOCK_D), describe(weight, BLOCK_V, BLOCK_D), offset, target, *parts,
        batch, num_classes, splits, OFFSET=offset is not None, D=x.shape[1], **TILE,
    )  # fmt: skip
    return merge_splits(parts, target, num_classes)


def merge_splits(parts: list[Tensor], target: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Merge maxima, sums of exponentials and target logits of all splits, (splits, B) each."""
    splits, batch = parts[0].shape
    lse, target_logit = (parts[0].new_empty(batch) for _ in range(2))
    launch(
        merge_kernel, (-(-batch // 64),), target.device, *parts, target, lse, target_logit, batch, num_classes, splits,
        SPLITS=triton.next_power_of_2(splits), BLOCK_B=64, num_warps=4,
    )  # fmt: skip
    return lse, target_logit


def gradient(
    x: Tensor, weight: Tensor, offset: Tensor | None, target: Tensor, factors: tuple[Tensor, Tensor, Tensor]
) -> Callable[[Tensor, int], None]:
    """Return a function that writes the gradient at the logits of the classes from `start` on to `out` (B, V)."""
    descriptors = describe(x, BLOCK_B, BLOCK_D), describe(weight, BLOCK_V, BLOCK_D)

    def write(out: Tensor, start: int) -> None:
        batch, size = out.shape
        blocks, splits = grid_of(batch, size, x.device, PROGRAMS_PER_SM)
        launch(
            grad_kernel, (blocks * splits,), x.device,
            *descriptors, describe(out, BLOCK_B, BLOCK_V // 2), offset, target, *factors, batch, size, start, splits,
            OFFSET=offset is not None, D=x.shape[1], **TILE,
        )  # fmt: skip

    return write


def describe(matrix: Tensor, rows: int, columns: int) -> Any:
    """Describe a matrix to the copy engine, which moves blocks of rows x columns."""
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


def grid_of(batch: int, num_classes: int, device: torch.device, programs_per_sm: int) -> tuple[int, int]:
    """Return the number of blocks of samples and how many programs share each, so that no multiprocessor is idle."""
    blocks = -(-batch // BLOCK_B)
    splits = max(1, multiprocessors(device) * programs_per_sm // blocks)
    return blocks, min(splits, -(-num_classes // BLOCK_V))


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; a few for the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
