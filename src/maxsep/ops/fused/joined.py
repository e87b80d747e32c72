"""Products that end in the log-sum-exp or in the gradient: by which kernels, and their launches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from maxsep.ops.fused import tile_form
from maxsep.ops.fused.state import RowState
from maxsep.ops.launching import Described, Launcher, is_known, launcher
from maxsep.ops.triton_scan import is_interpreting


def joins(x: Tensor, weight: Tensor) -> bool:
    """Say whether the product and what follows it can be one kernel: half precision, and a copy engine to feed it."""
    if any(tensor.data_ptr() % 16 or x.shape[1] * tensor.element_size() % 16 for tensor in (x, weight)):
        return False
    if is_interpreting():
        return True
    half = x.dtype in (torch.float16, torch.bfloat16)
    return half and torch.cuda.get_device_capability(x.device)[0] >= 9


def form_of(x: Tensor, *, forward: bool, per_class: bool = False) -> ModuleType:
    """Return how products are taken: for the log-sum-exp, with numbers of classes or not, or for the gradient."""
    hopper = None if is_interpreting() else _hopper_form(x.device)
    return tile_form if hopper is None or not hopper.suits(x, forward=forward, per_class=per_class) else hopper


def form_of_tail(x: Tensor) -> ModuleType:
    """Return how the gradient of the last classes' rows is made."""
    hopper = None if is_interpreting() else _hopper_form(x.device)
    return tile_form if hopper is None or not hopper.suits_tail(x) else hopper


@functools.cache
def _hopper_form(device: torch.device) -> ModuleType | None:
    """Return the form for Hopper, if this is one and Triton can compile it: its language for that is experimental."""
    if torch.cuda.get_device_capability(device)[0] != 9 or not is_known():
        return None
    from maxsep.ops.fused import hopper_form

    return hopper_form


def parts(x: Tensor, *, per_class: bool = False) -> int:
    """Return into how many parts of classes the log-sum-exp splits its work, so that no processor is idle."""
    return _splits(x, form_of(x, forward=True, per_class=per_class), forward=True)


def accumulating(
    x: Tensor, target: Tensor, state: RowState, scale: float = 1.0, *, per_class: bool = False
) -> Callable[..., None]:
    """Return what takes the logits of a chunk of classes, scale x folded^T, into the state without writing them.

    It is called with folded, offset and weight of the chunk and its first class. All that chunks share is made here:
    a launch is short enough for Python's part of it to count. `per_class` says whether there will be an offset or a
    weight; the state has `parts` for that.
    """
    (batch, width), splits = x.shape, len(state.most)
    form = form_of(x, forward=True, per_class=per_class)
    of_samples, of_classes, _ = form.blocks(forward=True)
    samples = [form.described(x, block) for block in of_samples]
    classes = Described(form.described, of_classes)
    grid = (_row_blocks(x, form, forward=True) * splits,)

    @functools.cache
    def chosen(offset: bool, weight: bool) -> Launcher:
        options = {"OFFSET": offset, "WEIGHT": weight, "TOTAL": state.total is not None}
        options |= form.options(width, forward=True, per_class=offset or weight, columns=False)
        return launcher(form.accumulate_product, x.device, options)

    def accumulate_product(folded: Tensor, offset: Tensor | None, weight: Tensor | None, start: int) -> None:
        pointers = (offset, weight, target, state.most, state.sum, state.target, state.total)
        chosen(offset is not None, weight is not None)(
            grid, (*samples, classes.at(folded)), pointers, (scale, start, folded.shape[0], batch, splits)
        )

    return accumulate_product


def differentiating(
    x: Tensor, target: Tensor, factors: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], scale: float = 1.0
) -> Callable[..., None]:
    """Return what writes the gradient at a chunk of x folded^T, and its sums over samples, unshifted, into `columns`.

    The logits are scale x folded^T, so it is scale times the gradient at these.

    It is called with folded, the room for the gradient, offset and weight of the chunk, its first class and `columns`.
    """
    (batch, width), form, (_, _, _, v, shift) = x.shape, form_of(x, forward=False), factors
    of_samples, of_classes, of_gradients = form.blocks(forward=False)
    samples = [form.described(x, block) for block in of_samples]
    classes, gradients = Described(form.described, of_classes), Described(form.described, of_gradients)
    row_blocks, most_splits, cols = _row_blocks(x, form, forward=False), _splits(x, form, forward=False), of_classes[0]

    @functools.cache
    def chosen(offset: bool, weight: bool, columns: bool) -> Launcher:
        options = {"OFFSET": offset, "WEIGHT": weight}
        options |= {"SMOOTH": v is not None, "SHIFT": shift is not None, "COLUMNS": columns}
        options |= form.options(width, forward=False, per_class=offset or weight, columns=columns)
        return launcher(form.gradient_product, x.device, options)

    def gradient_product(
        folded: Tensor, out: Tensor, offset: Tensor | None, weight: Tensor | None, start: int, columns: Tensor | None
    ) -> None:
        size = folded.shape[0]
        splits = min(most_splits, -(-size // cols))
        partial = None if columns is None else columns.new_empty(form.LINES * row_blocks, size)
        chosen(offset is not None, weight is not None, columns is not None)(
            (row_blocks * splits,), (*samples, classes.at(folded), gradients.at(out)),
            (offset, weight, target, *factors, partial), (scale, start, size, batch, splits),
        )  # fmt: skip
        if columns is not None and partial is not None:
            torch.sum(partial, 0, out=columns)

    return gradient_product


def _row_blocks(x: Tensor, form: ModuleType, *, forward: bool) -> int:
    (rows, _), *_ = form.blocks(forward=forward)[0]
    return -(-len(x) // int(rows))


def _splits(x: Tensor, form: ModuleType, *, forward: bool) -> int:
    """Return how many programs share a block of samples, so that no processor is idle."""
    programs = processors(x.device) * int(form.programs_at_once(forward=forward))
    return max(1, programs // _row_blocks(x, form, forward=forward))


@functools.cache
def processors(device: torch.device) -> int:
    """Return how many multiprocessors a GPU has; few for the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
