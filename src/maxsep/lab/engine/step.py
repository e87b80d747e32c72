"""One training step, from the indices of a batch to the optimiser, and the same step captured in CUDA graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from maxsep.lab.data import ImageSet
from maxsep.lab.engine.optim import set_learning_rate
from maxsep.lab.spec import RunSpec
from maxsep.losses import mixup

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
WARM_UP = 3
"""Eager steps of a batch size before its graph is captured: libraries choose their kernels, torch.compile compiles and
the optimiser creates its state in them."""


class NonFiniteError(FloatingPointError):
    """A loss or a gradient became infinite or not a number, in `epoch` at `step`, both counted from 0."""

    def __init__(self, message: str, epoch: int, step: int) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.step = step

    def __reduce__(self) -> tuple[type[NonFiniteError], tuple[str, int, int]]:
        return type(self), (str(self), self.epoch, self.step)


def check_losses(spec: RunSpec, losses: Tensor, *, epoch: int, rate: float) -> None:
    """Raise NonFiniteError if any loss of an epoch, on the CPU, is not finite."""
    bad = (~torch.isfinite(losses)).nonzero()
    if len(bad):
        step = int(bad[0, 0])
        raise _error(spec, epoch, step, rate, f"the training loss became {losses[step].item()}")


def _error(spec: RunSpec, epoch: int, step: int, rate: float, problem: str) -> NonFiniteError:
    if epoch == step == 0:
        cause = "the images, the normalisation or the initial weights, as it is the first step"
    elif spec.radius > 1:
        cause = f"the radius {spec.radius:g} with the learning rate {rate:g}: gradients grow with radius^2"
    else:
        cause = f"the learning rate {rate:g}; lower it or add a warm-up to the schedule"
    # people count from 1, as the progress bar does
    message = f"{problem} at epoch {epoch + 1}/{spec.epochs}, step {step + 1}. The likely cause: {cause}."
    return NonFiniteError(message, epoch, step)


@dataclass
class Step:
    """A training step, called once for each batch.

    Args:
        spec: Decides mixup and clipping.
        fabric: Runs the backward pass and communicates with the other processes.
        model: The pipeline as Fabric has set it up, compiled or not.
        network: The bare network inside it.
        optimiser: As Fabric has set it up.
        loss: Maps logits and labels to a scalar.
        images: The training split, on the device or on the host.
        augment: Changes a uint8 batch.
        generators: Of the augmentation and of mixup.
    """

    spec: RunSpec
    fabric: Any
    model: nn.Module
    network: nn.Module
    optimiser: Optimizer
    loss: nn.Module
    images: ImageSet
    augment: Augmentation
    generators: tuple[torch.Generator, torch.Generator]
    epoch: int = 0
    position: int = 0
    rate: float = math.nan

    def at(self, epoch: int, position: int, rate: float) -> None:
        """Set the epoch, the position in it and the learning rate of the next call."""
        self.epoch, self.position = epoch, position
        if rate != self.rate:
            self.rate = rate
            set_learning_rate(self.optimiser, rate)

    def __call__(self, indices: Tensor) -> Tensor:
        """Train on the images at these positions and return the mean loss of the whole batch."""
        world = self.fabric.world_size
        if world == 1:
            return self.update(indices)
        share = indices[self.fabric.global_rank :: world]
        # a rank for which the short last batch has no image takes part with one of weight 0
        weight = len(share) * world / len(indices)
        return self.update(share if len(share) else indices[:1], weight)

    def update(self, indices: Tensor, weight: float = 1.0) -> Tensor:
        """Do the step. With several processes `weight` makes their mean the mean over all images."""
        images, target = self.images.batch(indices)
        augmentation, mixing = self.generators
        images = self.augment(images, augmentation)
        if self.spec.mixup:
            # bytes mix like the normalised images, because the shares sum to 1
            images = images.to(torch.get_default_dtype())
            images, first, second, share = mixup(images, target, self.spec.mixup, mixing)
            logits = self.model(images)
            loss = share * self.loss(logits, first) + (1 - share) * self.loss(logits, second)
        else:
            logits = self.model(images)
            loss = self.loss(logits, target)
        total: Tensor = loss.detach()
        if self.fabric.world_size > 1:
            loss = loss * weight
            total = self.fabric.all_reduce(loss.detach(), reduce_op="mean")
        # checking each step is free on a CPU; on a GPU it would wait for the device, so each epoch is checked there
        checks = self.fabric.device.type == "cpu"
        if checks:
            self._check_loss(total, logits.detach(), indices)
        self.optimiser.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        if checks:
            self._check_gradients()
        if self.spec.clip_norm:  # computes on the device alone, so a CUDA graph can contain it
            nn.utils.clip_grad_norm_(self.network.parameters(), self.spec.clip_norm)
        self.optimiser.step()
        return total

    def _check_loss(self, loss: Tensor, logits: Tensor, indices: Tensor) -> None:
        if not torch.isfinite(loss):
            bad = indices[~torch.isfinite(logits).all(dim=1)].tolist()
            images = f" ({len(bad)} of {len(indices)} images have infinite logits, such as {bad[:5]})" if bad else ""
            problem = f"the training loss became {loss.item()}{images}"
            raise _error(self.spec, self.epoch, self.position, self.rate, problem)

    def _check_gradients(self) -> None:
        for name, parameter in self.network.named_parameters():
            grad = parameter.grad
            # a finite sum has finite terms; the more expensive test settles sums that overflow
            if grad is None or bool(torch.isfinite(grad.sum())) or bool(torch.isfinite(grad).all()):
                continue
            problem = f"the gradient of {name} is not finite"
            raise _error(self.spec, self.epoch, self.position, self.rate, problem)


class CapturedStep:
    """Run a step through CUDA graphs, one for each batch size (the full one and the short last one).

    The first steps of a size are eager training steps and serve as warm-up, so the weights follow the same path as
    without graphs. The graph reads the learning rate from the optimiser's tensor, the batch from a buffer of indices,
    and advances the generators as the eager step would. All work runs on one side stream, because the default stream
    cannot be captured.

    Args:
        step: The eager step; its optimiser must have been built `capturable`.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._seen: dict[int, int] = {}
        self._captured: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    def at(self, epoch: int, position: int, rate: float) -> None:
        """Set the epoch, the position in it and the learning rate of the next call."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self.step.at(epoch, position, rate)

    def __call__(self, indices: Tensor) -> Tensor:
        """Train on the images at these positions and return the mean loss of the batch.

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
        graph, static, loss = self._captured[size]
        static.copy_(indices)
        graph.replay()
        return loss

    def _capture(self, indices: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
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
        return graph, static, loss


class Drawing(Protocol):
    """An augmentation whose random part and whose work can be called apart, as all of `maxsep.lab.data` can."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Draw and apply."""

    def draw(self, images: Tensor, generator: torch.Generator) -> Any:
        """Draw the parameters of a batch."""

    def apply(self, images: Tensor, draw: Any, /) -> Tensor:
        """Apply drawn parameters."""


class CompiledAugmentation:
    """Run an augmentation of hundreds of small operations as a few kernels, with the same random numbers and pixels.

    Args:
        augment: The eager augmentation.
        batch_size: Smaller batches stay eager: compiling for them would take longer than it saves.
        backend: Of torch.compile.
    """

    def __init__(self, augment: Drawing, batch_size: int, backend: str = "inductor") -> None:
        self.augment = augment
        self.batch_size = batch_size
        # without it Inductor contracts a * b + c, which rounds some bytes differently
        exact: dict[str, Any] | None = {"emulate_precision_casts": True} if backend == "inductor" else None
        self._apply = torch.compile(augment.apply, dynamic=False, fullgraph=True, backend=backend, options=exact)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment uint8 images (B, C, H, W) with random numbers from a generator on the same device."""
        if len(images) < self.batch_size:
            return self.augment(images, generator)
        result: Tensor = self._apply(images, self.augment.draw(images, generator))
        return result
