"""The training step captured in CUDA graphs: one launch per step, however busy the host is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maxsep.lab.engine.step import Step

WARM_UP = 3
"""Ordinary steps of a batch size before its graph is captured: libraries choose their kernels, torch.compile
compiles and the optimiser creates its state in them."""


@dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    indices: Tensor
    loss: Tensor


class CapturedStep:
    """Run a step through CUDA graphs, one per batch size (the full one and the short last one).

    The first steps of a size are ordinary training steps and serve as warm-up, so nothing is computed in vain and
    the weights follow the same path as without graphs. The learning rate is read from the optimiser's tensor, the
    batch from a buffer of positions, and random numbers from generators that the graph advances as the ordinary
    step would.

    Everything runs on one side stream, because the default stream cannot be captured and a single stream needs no
    further ordering.

    Args:
        step: The ordinary step; its optimiser must have been built `capturable`.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._seen: dict[int, int] = {}
        self._captured: dict[int, _Captured] = {}

    def at(self, epoch: int, position: int, rate: float) -> None:
        """Set where in training the next call is, and its learning rate."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self.step.at(epoch, position, rate)

    def __call__(self, indices: Tensor) -> Tensor:
        """Train on the images at these positions and give the mean loss of the batch.

        The loss lies in the graph's own memory and is overwritten by the next step: copy it.
        """
        outer = torch.cuda.current_stream()
        self._stream.wait_stream(outer)
        with torch.cuda.stream(self._stream):
            loss = self._run(indices)
        outer.wait_stream(self._stream)
        return loss

    def _run(self, indices: Tensor) -> Tensor:
        size = len(indices)
        self._seen[size] = self._seen.get(size, 0) + 1
        if self._seen[size] <= WARM_UP:
            return self.step(indices)
        if size not in self._captured:
            self._captured[size] = self._capture(indices)
        captured = self._captured[size]
        captured.indices.copy_(indices)
        captured.graph.replay()
        return captured.loss

    def _capture(self, indices: Tensor) -> _Captured:
        """Record a step without running it."""
        static = indices.clone()
        graph = torch.cuda.CUDAGraph()
        # torch registers its default generator itself; augmentation and mixup have their own
        for generator in self.step.generators:
            graph.register_generator_state(generator)
        # no gradient may exist here: those of the captured step must lie in the graph's own memory
        self.step.optimiser.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, stream=self._stream):
            loss = self.step(static)
        return _Captured(graph, static, loss)
