"""One training step: gather, augment, normalise, forward, loss, backward, optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from maxsep.lab.data import ImageSet
from maxsep.lab.engine.losses import Loss
from maxsep.lab.engine.nonfinite import Where, check_gradients, check_loss
from maxsep.lab.engine.optimisers import set_learning_rate
from maxsep.lab.spec import RunSpec
from maxsep.losses import mixup

Augmentation = Callable[[Tensor, torch.Generator], Tensor]


@dataclass
class Step:
    """A training step on images that lie on the device, or are brought there; called once per batch.

    Args:
        spec: For the message if a loss is not finite.
        fabric: Runs the backward pass and talks to the other processes.
        model: The pipeline as Fabric has set it up (and torch.compile, if asked for).
        network: The bare network inside it, for the names of its parameters.
        optimiser: As Fabric has set it up.
        loss: Maps logits and labels to a scalar.
        images: The training split.
        augment: Changes a whole uint8 batch.
        generator: What the augmentation draws from.
        mixing: What mixup draws from.
    """

    spec: RunSpec
    fabric: Any
    model: nn.Module
    network: nn.Module
    optimiser: Optimizer
    loss: Loss
    images: ImageSet
    augment: Augmentation
    generator: torch.Generator
    mixing: torch.Generator
    epoch: int = 0
    position: int = 0
    rate: float = math.nan

    def __post_init__(self) -> None:
        """Decide once whether every step may be waited for: on the CPU it costs nothing, on a GPU the pipeline."""
        self.watch = self.fabric.device.type == "cpu"
        # a scaler of half-precision gradients meets infinite ones by design, and skips the step itself
        self.watch_gradients = self.watch and self.spec.precision != "16-mixed"

    @property
    def generators(self) -> tuple[torch.Generator, ...]:
        """The generators that a captured step must advance."""
        return self.generator, self.mixing

    def at(self, epoch: int, position: int, rate: float) -> None:
        """Set where in training the next call is, and its learning rate."""
        self.epoch, self.position = epoch, position
        if rate != self.rate:
            self.rate = rate
            set_learning_rate(self.optimiser, rate)

    def __call__(self, indices: Tensor) -> Tensor:
        """Train on the images at these positions and give the mean loss of the whole batch."""
        world = self.fabric.world_size
        if world == 1:
            return self.update(indices)
        share = indices[self.fabric.global_rank :: world]
        # a rank for which the short last batch has no image takes part with one that weighs nothing
        weight = len(share) * world / len(indices)
        return self.update(share if len(share) else indices[:1], weight)

    def update(self, indices: Tensor, weight: float = 1.0) -> Tensor:
        """Do the step itself. With several processes `weight` makes their mean the mean over all images."""
        images, target = self.images.batch(indices)
        images = self.augment(images, self.generator)
        if self.spec.mixup:
            # bytes mix as what they are normalised to, because the shares sum to 1
            images = images.to(torch.get_default_dtype())
            images, first, second, share = mixup(images, target, self.spec.mixup, self.mixing)
            logits = self.model(images)
            loss = share * self.loss(logits, first) + (1 - share) * self.loss(logits, second)
        else:
            logits = self.model(images)
            loss = self.loss(logits, target)
        total = loss.detach()
        if self.fabric.world_size > 1:
            loss = loss * weight
            total = self.fabric.all_reduce(loss.detach(), reduce_op="mean")
        where = Where(self.epoch, self.position, self.rate)
        if self.watch:
            check_loss(self.spec, where, total, logits.detach(), indices)
        self.optimiser.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        if self.watch_gradients:
            check_gradients(self.spec, where, self.network)
        self.optimiser.step()
        return total
