"""The two passes over the classes: log-sum-exp first, gradients second."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from maxsep.ops.dispatch import wide_dtype
from maxsep.ops.fused import torch_form
from maxsep.ops.fused.chunks import GRAIN, Scratch, Sizes, equal_chunks, most_bytes, own_bytes, wave
from maxsep.ops.fused.householder import LastClass, basis_factors
from maxsep.ops.fused.in_chunks import gradients_in_chunks
from maxsep.ops.fused.in_place import gradients_in_place, plan_for
from maxsep.ops.fused.logits_side import separated
from maxsep.ops.fused.state import RowState

Factors = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
"""Log-sum-exp, factor of the exponentials, gradients of nll and smooth over C, and what all classes gain, (B,) each."""


class Stream:
    """A layer, what follows it, and how its classes are gone through.

    Args:
        x: Features, (B, D).
        weight: (C, D), or (C-1, D) where P follows.
        offset: Added to the logits, (C,).
        class_weight: Of the smoothing term, (C,).
        target: Class indices, (B,).
        radius: Factor of all logits.
        side: "plain" without P, "weight" or "logits" for what P is applied to, "householder" for P of that basis.
        chunk: Classes at a time; 0 chooses from the memory.
        form: "torch" or "triton".
    """

    def __init__(
        self,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        offset: Tensor | None,
        class_weight: Tensor | None,
        radius: float,
        side: str,
        chunk: int,
        form: str,
    ) -> None:
        if form == "triton":  # the kernels know no strides
            x, weight, target, offset, class_weight = _contiguous(x, weight, target, offset, class_weight)
        self.x, self.weight, self.target, self.offset, self.class_weight = x, weight, target, offset, class_weight
        self.radius, self.side, self.chunk, self.form = radius, side, chunk, form
        self.steps = _steps(form)
        self.wide = wide_dtype(x)
        self.num_classes = weight.shape[0] + (side != "plain")
        self.grain = chunk if chunk and form == "torch" else GRAIN
        self.streamed = self.num_classes - (side == "householder")  # classes that are gone through in chunks
        self.scale = radius if side == "plain" else 1.0
        if side == "householder":
            self.scale, _ = basis_factors(self.num_classes, radius)

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All that was given."""
        return self.x, self.weight, self.target, self.offset, self.class_weight

    @functools.cached_property
    def joins(self) -> bool:
        """Whether a product and what follows it are one step."""
        joins: bool = self.steps.joins(self.x, self.weight)
        return joins

    @functools.cached_property
    def outer_scale(self) -> float:
        """Factor of the products that no kernel has in its epilogue; without one, copies of the weight have it."""
        return 1.0 if self.joins else self.scale

    @functools.cached_property
    def sizes(self) -> Sizes:
        """What the bytes of a chunk follow from; a pass asks, tracing cannot: it depends on where tensors lie."""
        x, weight = self.x, self.weight
        # a weight that no matrix is applied to is used as it lies unless it needs a factor or another precision
        copied = self.side != "logits" and (self.outer_scale != 1 or weight.dtype != x.dtype)
        items = x.element_size(), weight.element_size()
        return Sizes(self.streamed, x.shape[0], x.shape[1], *items, self.side == "weight" or copied, self.steps.PAD)

    def forward(self, smoothing: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return nll, smooth, log-sum-exp, (B,) each, and the carries for the second pass."""
        like = self.x.new_empty(0, dtype=self.wide)
        state = self._state(like, smoothing)
        carries = self._carries()
        carry = like.new_zeros(len(self.x)) if self.side == "logits" else like
        # a product that ends in the log-sum-exp writes no logits
        sizes = replace(self.sizes, batch=0) if self.joins else self.sizes
        chunks = self.chunks_of(sizes, first_pass=True)
        scratch = Scratch(sizes, chunks, self.x)
        joined = self._accumulating(state) if self.joins else None
        for turn, (start, stop) in enumerate(chunks):
            logits, room = scratch.take(start, stop)
            weight = self.folded(start, stop, carries, room)
            parts = self.parts(start, stop)
            if joined:
                joined(weight, *parts, start)
                continue
            self.outputs(weight, logits)
            if self.side == "logits":
                carries[turn] = carry
                logits, carry = separated(logits, carry, self.num_classes, self.radius, start)
            self.steps.accumulate(logits, *parts, self.target, start, state)
        last = self._last_class(carries) if self.side == "householder" else None
        nll, lse, total = self.steps.merged(state, last)
        smooth = torch.zeros_like(lse)
        if total is not None:
            smooth = lse * self._mean_weight() - total / self.num_classes
        return nll, smooth, lse, carries

    def backward(
        self, u: Tensor, v: Tensor | None, lse: Tensor, carries: Tensor, wants: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of x, weight and offset (empty where not wanted) for those of nll, u, and smooth, v."""
        u, v = _contiguous(u, v)
        a = u if v is None else u + v * self._mean_weight()
        wants_x, wants_weight, wants_offset = wants
        columns = lse.new_empty(self.num_classes if wants_offset else 0)
        factors = self._factors(lse, a, u, None if v is None else v / self.num_classes, carries, columns)
        plan = plan_for(self) if wants_x and wants_weight else None
        if plan is not None:
            dx, dw = gradients_in_place(self, plan, factors, carries, columns)
        else:
            dx, dw = gradients_in_chunks(self, factors, carries, columns, wants)
        if wants_offset and self.joins and self.scale != 1:
            columns[: self.streamed] /= self.scale  # the offset comes after the factor
        if wants_weight and self.side == "weight":
            self.steps.adjoint_(dw, self.radius, self.wide)
        # on the sides of the recursive P there is one row more than in the weight
        return dx, dw[: len(self.weight)], columns

    def _factors(
        self, lse: Tensor, a: Tensor, u: Tensor, v: Tensor | None, carries: Tensor, columns: Tensor
    ) -> Factors:
        """Return what the gradients follow from, and write the offset's of the class that no chunk holds."""
        if self.side != "householder":
            return lse, a, u, v, None
        g, shift = self.steps.last_gradients(self._last_class(carries), lse, a, u, v)
        if columns.numel():
            columns[-1] = g.sum()
        return lse, a, u, v, shift

    def chunks_of(self, sizes: Sizes, *, first_pass: bool = False) -> Sequence[tuple[int, int]]:
        """Return equal chunks of all classes."""
        own, most = own_bytes(sizes, self.x.device, self.form), most_bytes(self.x.device)
        unit = wave(self.x.device)
        if self.chunk:
            own = most = self.chunk * sizes.per_class
            unit = 1
        elif self.form == "triton" and first_pass:
            own = max(own, sizes.num_classes * sizes.row)  # what the gradient will take is free in the first pass
        elif self.side == "logits":
            own //= 3  # running sums are copies
        return equal_chunks(sizes, min(own, most), self.grain, unit)

    def _state(self, like: Tensor, smoothing: bool) -> RowState:
        """Return what the first chunk is added to; a product that ends in the log-sum-exp needs no more than room."""
        if self.joins:
            parts = self.steps.parts(self.x, per_class=self._is_per_class)
            return RowState.room(parts, len(self.x), like, with_total=smoothing)
        return RowState.empty(1, len(self.x), like, with_total=smoothing)

    def _accumulating(self, state: RowState) -> Callable[..., None]:
        found: Callable[..., None] = self.steps.accumulating(
            self.x, self.target, state, self.scale, per_class=self._is_per_class
        )
        return found

    @property
    def _is_per_class(self) -> bool:
        return self.offset is not None or self.class_weight is not None

    def _carries(self) -> Tensor:
        if self.side == "householder":
            _, factor = basis_factors(self.num_classes, self.radius)
            summed = self.steps.sum_of_rows(self.weight, self.wide)
            last: Tensor = self.steps.last_logits(self.x, summed, factor, self.offset)
            return last
        if self.side != "weight":
            return self.empty_carries()
        carries: Tensor = self.steps.block_carries(self.weight, self.radius, self.grain, self.wide)
        return carries

    @property
    def _blocks(self) -> int:
        """How many chunks there are at most, which unlike their number does not depend on the batch."""
        return -(-self.num_classes // self.grain)

    def empty_carries(self) -> Tensor:
        """Return a tensor of the shape that the carries have: for tracing, and to be filled on the way."""
        like = self.x.new_empty(0, dtype=self.wide)
        if self.side == "weight":
            return like.new_empty(self._blocks, self.x.shape[1])
        if self.side == "householder":
            return like.new_empty(self.x.shape[0])
        return like.new_empty(self._blocks, self.x.shape[0]) if self.side == "logits" else like

    def folded(self, start: int, stop: int, carries: Tensor, room: Tensor) -> Tensor:
        """Return W' of a chunk; on the logits side W itself, which has one row less in the last one."""
        if self.side == "weight":
            self.steps.fold(self.weight, carries, self.radius, self.grain, start, stop, room)
            return room
        rows = self.weight[start:stop]
        if not self.sizes.folds:
            return rows if rows.dtype == self.x.dtype else rows.to(self.x.dtype)
        return torch.mul(rows, self.outer_scale, out=room)

    def outputs(self, weight: Tensor, out: Tensor) -> None:
        """Write x W'^T of a chunk."""
        if len(weight) < out.shape[1]:  # the last class has no row of its own
            out[:, -1] = 0
        torch.mm(self.x, weight.T, out=out[:, : len(weight)])

    def parts(self, start: int, stop: int) -> tuple[Tensor | None, Tensor | None]:
        """Return the offset and the class weights of a chunk."""
        offset, weight = self.offset, self.class_weight
        return None if offset is None else offset[start:stop], None if weight is None else weight[start:stop]

    def _mean_weight(self) -> Tensor | float:
        return 1.0 if self.class_weight is None else self.class_weight.sum() / self.num_classes

    def _last_class(self, logits: Tensor) -> LastClass:
        return LastClass(logits, self.num_classes, self.target, self.class_weight)


def _contiguous(*tensors: Any) -> tuple[Any, ...]:
    return tuple(None if tensor is None else tensor.contiguous() for tensor in tensors)


def _steps(form: str) -> ModuleType:
    if form == "torch":
        return torch_form
    from maxsep.ops.fused import triton_form

    return triton_form
