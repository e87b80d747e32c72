"""In which order the training images come: each once an epoch, or every class equally often."""

from __future__ import annotations

import torch
from torch import Tensor

from maxsep.lab.engine.seeds import derive
from maxsep.lab.spec import RunSpec

CONSECUTIVE = 4
"""Images that a class gives when it is its turn."""


class Order:
    """The order of images of a run.

    Instance sampling draws a permutation an epoch from a generator; the last batch of an epoch may be short. Balanced
    sampling is one long sequence for the whole run, a pure function of labels, spec and seed, so there is nothing to
    save: an epoch is the next part of it, and has one batch more than the images would fill, all of them full.

    Args:
        spec: Names the sampler, the batch size, the number of epochs and the seed.
        labels: The training labels, (N,).
    """

    def __init__(self, spec: RunSpec, labels: Tensor) -> None:
        self.num_train = len(labels)
        self.batch_size = spec.batch_size
        self.steps = -(-self.num_train // spec.batch_size)
        self.images = self.num_train
        """How many images an epoch trains on, repetitions included."""
        self._sequence: Tensor | None = None
        if spec.sampler == "class_balanced":
            self.steps += 1
            self.images = self.steps * spec.batch_size
            seed = derive(spec.seed, "balanced order")
            self._sequence = class_balanced(labels.cpu(), spec.epochs * self.images, seed)

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Give the positions of an epoch's images, in order."""
        if self._sequence is None:
            return torch.randperm(self.num_train, generator=generator)
        return self._sequence[epoch * self.images : (epoch + 1) * self.images]

    def sizes(self) -> Tensor:
        """Give the number of images of every batch of an epoch."""
        sizes = torch.full((self.steps,), self.batch_size, dtype=torch.float64)
        sizes[-1] = self.images - self.batch_size * (self.steps - 1)
        return sizes


def class_balanced(labels: Tensor, length: int, seed: int, consecutive: int = CONSECUTIVE) -> Tensor:
    """Draw positions so that every class comes equally often, however few images it has.

    All classes take turns in random order, which is drawn anew when all have had one. A class at its turn gives the
    next `consecutive` images of its own list, which is shuffled anew when it is at its end.

    Args:
        labels: int64, (N,), on the CPU; classes without images have no turn.
        length: How many positions to draw.
        seed: Of all that is random here.
        consecutive: Images of a turn.

    Returns:
        int64 positions, (length,).

    >>> labels = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])
    >>> torch.bincount(labels[class_balanced(labels, 80, seed=0)]).tolist()
    [40, 40]
    """
    generator = torch.Generator().manual_seed(seed)
    present = torch.bincount(labels).nonzero()[:, 0]
    turns = -(-length // (consecutive * len(present)))
    # sorting noise gives a permutation a row: when, among all, each class has its turn
    when = torch.rand(turns, len(present), generator=generator).argsort(dim=1)
    drawn = torch.empty(turns, len(present), consecutive, dtype=torch.int64)
    for place, label in enumerate(present):
        members = (labels == label).nonzero()[:, 0]
        rounds = -(-turns * consecutive // len(members))
        shuffled = members[torch.rand(rounds, len(members), generator=generator).argsort(dim=1)].flatten()
        drawn[torch.arange(turns), when[:, place]] = shuffled[: turns * consecutive].view(turns, consecutive)
    return drawn.flatten()[:length]
