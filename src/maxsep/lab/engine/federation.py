"""Federated averaging (McMahan et al., 2017): what happens at the borders between the clients of a round."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from maxsep.lab.engine.rounds import Rounds
from maxsep.lab.engine.step import Step


class FederatedStep:
    """Run steps of clients that take turns, and make their weights the common ones at the end of a round.

    Before a client's first step the network gets the common weights w and the optimiser forgets its state; after the
    last step of the last client

        w = sum_k n_k / N w_k

    with n_k the images of client k and w_k what it has made of w. w is all parameters and all floating-point buffers,
    such as the statistics of batch normalisation; whole numbers, which count batches, count on. Sums are in float64.

    Inside a round the network's weights are a client's, and what else is needed is in no resume point: a run may be
    saved and stopped where a round ends only.

    Args:
        step: The ordinary step.
        order: Says whose turn it is.
        optimiser: Whose state a client starts without.
    """

    def __init__(self, step: Step, order: Rounds, optimiser: Optimizer) -> None:
        self.step = step
        self.order = order
        self.optimiser = optimiser
        self.values = shared_values(step.network)
        self._common = [value.clone() for value in self.values]
        self._sums = [torch.zeros_like(value, dtype=torch.float64) for value in self.values]

    def at(self, epoch: int, position: int, rate: float) -> None:
        """Set where in training the next call is, and its learning rate."""
        self.step.at(epoch, position, rate)

    def __call__(self, indices: Tensor) -> Tensor:
        """Train on a client's images at these positions and give their mean loss."""
        position = self.step.position
        done, of = self.order.place(position)
        if done == 0:
            self._begin(self.order.client(position))
        loss = self.step(indices)
        if done == of - 1:
            self._end(self.order.client(position))
        return loss

    @torch.no_grad()
    def _begin(self, client: int) -> None:
        for value, common in zip(self.values, self._common, strict=True):
            if client == 0:
                common.copy_(value)
            else:
                value.copy_(common)
        self.optimiser.state.clear()

    @torch.no_grad()
    def _end(self, client: int) -> None:
        share = len(self.order.clients[client]) / self.order.num_train
        for value, total in zip(self.values, self._sums, strict=True):
            if client == 0:
                total.copy_(value).mul_(share)  # not added to 0, which would lose the sign of a zero
            else:
                total.add_(value, alpha=share)
        if client == len(self.order.clients) - 1:
            for value, total in zip(self.values, self._sums, strict=True):
                value.copy_(total)
            self.optimiser.state.clear()  # the last client's, of which a resume point needs nothing


def shared_values(network: nn.Module) -> list[Tensor]:
    """List what clients share: all parameters and all floating-point buffers, as they lie in the network.

    >>> len(list(nn.BatchNorm1d(3).buffers())), len(shared_values(nn.BatchNorm1d(3)))
    (3, 4)
    """
    buffers = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
    return [*network.parameters(), *buffers]
