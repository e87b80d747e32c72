"""The order of the images, one training step on a batch, and the same step captured in CUDA graphs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from maxsep.lab.data import ImageSet
from maxsep.lab.engine.losses import total_weight
from maxsep.lab.engine.model import derive
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


class Order:
    """The order of the training images, whose labels are (N,).

    Instance sampling draws a permutation an epoch from a generator; the last batch of an epoch may be short. Balanced
    sampling is one long sequence for the whole run, a pure function of labels, spec and seed, so there is nothing to
    save: an epoch is the next part of it, and has one batch more than the images would fill, all of them full.
    """

    def __init__(self, spec: RunSpec, labels: Tensor) -> None:
        self.num_train, self.batch_size = len(labels), spec.batch_size
        self.steps = -(-self.num_train // spec.batch_size)
        self.images = self.num_train
        """Images of an epoch, repetitions included."""
        self._sequence: Tensor | None = None
        if spec.sampler == "class_balanced":
            self.steps += 1
            self.images = self.steps * spec.batch_size
            seed = derive(spec.seed, "balanced order")
            self._sequence = class_balanced(labels.cpu(), spec.epochs * self.images, seed)

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Return the positions of an epoch's images, in order."""
        if self._sequence is None:
            return torch.randperm(self.num_train, generator=generator)
        return self._sequence[epoch * self.images : (epoch + 1) * self.images]

    def sizes(self) -> Tensor:
        """Return the number of images of every batch of an epoch."""
        sizes = torch.full((self.steps,), self.batch_size, dtype=torch.float64)
        sizes[-1] = self.images - self.batch_size * (self.steps - 1)
        return sizes


def class_balanced(labels: Tensor, length: int, seed: int, consecutive: int = 4) -> Tensor:
    """Draw positions so that every class comes equally often, however few images it has.

    All classes take turns in random order, which is drawn anew when all have had one. A class at its turn gives the
    next `consecutive` images of its own list, which is shuffled anew at its end.
    """
    generator = torch.Generator().manual_seed(seed)
    present = torch.bincount(labels).nonzero()[:, 0]
    turns = -(-length // (consecutive * len(present)))
    # sorting noise gives a permutation a row: when each class has its turn
    when = torch.rand(turns, len(present), generator=generator).argsort(dim=1)
    drawn = torch.empty(turns, len(present), consecutive, dtype=torch.int64)
    for column, label in enumerate(present):
        members = (labels == label).nonzero()[:, 0]
        rounds = -(-turns * consecutive // len(members))
        shuffled = members[torch.rand(rounds, len(members), generator=generator).argsort(dim=1)].flatten()
        drawn[torch.arange(turns), when[:, column]] = shuffled[: turns * consecutive].view(turns, consecutive)
    return drawn.flatten()[:length]


@dataclass
class Step:
    """A training step, called once for each batch."""

    spec: RunSpec
    fabric: Any
    model: nn.Module  # the pipeline as Fabric has set it up
    network: nn.Module  # the bare network inside it
    optimiser: Optimizer  # as Fabric has set it up
    loss: nn.Module
    images: ImageSet  # the training split, on the device or on the host
    augment: Augmentation
    generators: tuple[torch.Generator, torch.Generator]  # of the augmentation and of mixup
    accumulate: int = 1
    epoch: int = 0
    position: int = 0
    rate: float = math.nan
    _set: tuple[float, bool] = (math.nan, False)  # what the optimiser has: the rate, and whether the backbone is frozen

    def at(self, epoch: int, position: int, rate: float) -> None:
        """Set the epoch, the position in it and the learning rate of the next call."""
        self.epoch, self.position = epoch, position
        freezes = self.spec.is_frozen(epoch)
        if (rate, freezes) != self._set:
            self.rate, self._set = rate, (rate, freezes)
            set_learning_rate(self.optimiser, rate, freezes=freezes)

    def __call__(self, indices: Tensor) -> Tensor:
        """Train on the images at these positions and return the mean loss of the whole batch."""
        world, count = self.fabric.world_size, min(self.accumulate, -(-len(indices) // self.fabric.world_size))
        parts = indices[self.fabric.global_rank :: world].tensor_split(count) if world * count > 1 else (indices,)
        self.optimiser.zero_grad(set_to_none=True)
        losses = []
        for number, part in enumerate(parts, start=1):
            # gradients travel between processes once, with the last part
            keeps = world > 1 and number < count
            with self.fabric.no_backward_sync(self.model) if keeps else nullcontext():
                losses.append(self.add_gradient(part, indices))
        return self._update(functools.reduce(torch.add, losses), indices)

    def add_gradient(self, part: Tensor, batch: Tensor) -> Tensor:
        """Add the gradient of a part of a batch; return its share of the batch's mean loss, times the processes.

        Without images of its own for a short last batch a process takes part with one of weight 0.
        """
        images, target = self.images.batch(part if len(part) else batch[:1])
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
        if self.fabric.world_size > 1 or len(part) < len(batch):
            labels = self.images.labels
            part_weight, whole = (total_weight(self.loss, labels[places.to(labels.device)]) for places in (part, batch))
            weight = part_weight * self.fabric.world_size / whole
            loss = loss * (weight.to(loss) if isinstance(weight, Tensor) else weight)
        # checking each step is free on a CPU; on a GPU it would wait for the device, so each epoch is checked there
        if self.fabric.device.type == "cpu" and self.fabric.world_size == 1:
            self._check_loss(loss.detach(), logits.detach(), part)
        self.fabric.backward(loss)
        value: Tensor = loss.detach()
        return value

    def _update(self, total: Tensor, indices: Tensor) -> Tensor:
        """Do the step with the gradient of the batch; return its mean loss."""
        checks = self.fabric.device.type == "cpu"
        if self.fabric.world_size > 1:
            total = self.fabric.all_reduce(total, reduce_op="mean")
            if checks:
                self._check_loss(total, total[None, None], indices[:1])
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
    without graphs. The graph reads the learning rate from the tensor of a `capturable` optimiser and the batch from a
    buffer of indices, and advances the generators as the eager step would. All work runs on one side stream, because
    the default stream cannot be captured.
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
        """Train on the images at these positions; return their mean loss, which the next step overwrites."""
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


class CompiledAugmentation:
    """Run an augmentation of hundreds of small operations as a few kernels, with the same random numbers and pixels.

    Batches below `batch_size` stay eager: compiling for them would take longer than it saves.
    """

    def __init__(self, augment: Any, batch_size: int, backend: str = "inductor") -> None:
        self._augment: Augmentation = augment
        self._draw, self._batch_size = augment.draw, batch_size
        # without it Inductor contracts a * b + c, which rounds some bytes differently
        exact: dict[str, Any] | None = {"emulate_precision_casts": True} if backend == "inductor" else None
        self._apply: Callable[[Tensor, Any], Tensor] = torch.compile(
            augment.apply, dynamic=False, fullgraph=True, backend=backend, options=exact
        )

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment uint8 images (B, C, H, W) with random numbers from a generator on the same device."""
        if len(images) < self._batch_size:
            return self._augment(images, generator)
        return self._apply(images, self._draw(images, generator))
