"""The order of images in federated averaging: the clients of a round one after the other."""

from __future__ import annotations

import bisect
from itertools import accumulate

import torch
from torch import Tensor

from maxsep.lab.data import dirichlet_clients
from maxsep.lab.engine.order import Order
from maxsep.lab.spec import RunSpec


class Rounds(Order):
    """The order of images of a run with clients, where an epoch is a round.

    A round is one sequence of batches: all those of the first client, then all those of the second, and so on. A client
    goes `local_epochs` times through its own images, shuffled anew each time; no batch has images of two clients or of
    two local epochs, so many are short. One client with one local epoch has the order of ordinary training.

    Args:
        spec: Says how many clients, how they share the images, and the batch size.
        labels: The training labels, (N,).

    >>> rounds = Rounds(RunSpec(clients=2, concentration=100.0, local_epochs=2, batch_size=4), torch.arange(12) % 2)
    >>> rounds.sizes().long().tolist(), rounds.ends
    ([4, 2, 4, 2, 4, 2, 4, 2], [4, 8])
    """

    def __init__(self, spec: RunSpec, labels: Tensor) -> None:
        super().__init__(spec, labels)
        self.clients = dirichlet_clients(labels, spec.clients, spec.concentration, spec.subset_seed)
        """The positions of every client's images."""
        self.local_epochs = spec.local_epochs
        steps = (-(-len(own) // spec.batch_size) * spec.local_epochs for own in self.clients)
        self.ends = list(accumulate(steps))
        """For each client the step of the round before which it has finished."""
        self.steps = self.ends[-1]
        self.images = self.num_train * spec.local_epochs

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Give the positions of a round's images, in order."""
        passes = (own for own in self.clients for _ in range(self.local_epochs))
        return torch.cat([own[torch.randperm(len(own), generator=generator)] for own in passes])

    def sizes(self) -> Tensor:
        """Give the number of images of every batch of a round."""
        sizes = [
            min(self.batch_size, len(own) - start)
            for own in self.clients
            for _ in range(self.local_epochs)
            for start in range(0, len(own), self.batch_size)
        ]
        return torch.tensor(sizes, dtype=torch.float64)

    def client(self, position: int) -> int:
        """Say whose turn it is at a step of a round."""
        return bisect.bisect_right(self.ends, position)

    def place(self, position: int) -> tuple[int, int]:
        """Say which step of its client's turn a position is, of how many: every client's rate falls over its own."""
        client = self.client(position)
        start = self.ends[client - 1] if client else 0
        return position - start, self.ends[client] - start
