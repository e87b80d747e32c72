"""Training images shared among clients that see different classes, as federated learning has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def dirichlet_clients(labels: Tensor, clients: int, concentration: float, seed: int = 0) -> list[Tensor]:
    """Share images among clients, each class in proportions of its own.

    For every class the clients' shares are p ~ Dirichlet(concentration, ..., concentration): near 0 one client has
    almost all of a class, towards infinity all have 1 / clients of it. Every image goes to exactly one client. A client
    that would have none is given one by the client that has most by then, so no client is empty; with many clients and
    a small concentration some have but a single image.

    Args:
        labels: int64, (N,).
        clients: How many, at most N.
        concentration: Positive.
        seed: Of all that is random here.

    Returns:
        For each client its int64 positions, in dataset order. A single client has all of them.

    >>> labels = torch.arange(100) % 2
    >>> [torch.bincount(labels[own], minlength=2).tolist() for own in dirichlet_clients(labels, 3, 0.1, seed=1)]
    [[1, 48], [49, 1], [0, 1]]
    """
    import numpy as np

    if not 1 <= clients <= len(labels):
        raise ValueError(
            f"{len(labels)} training images cannot be shared by {clients} clients, each of which needs one. "
            "Take at least 1 and at most as many clients as images."
        )
    if not 0 < concentration < float("inf"):
        raise ValueError(f"concentration must be a positive finite number, got {concentration!r}. 0.1 is usual.")
    values = labels.cpu().numpy()
    generator = np.random.RandomState(seed)  # its stream never changes between numpy versions
    owners = np.empty(len(values), dtype=np.int64)
    for label in np.unique(values):
        members = generator.permutation(np.flatnonzero(values == label))
        ends = np.round(np.cumsum(_dirichlet(generator, clients, concentration)) * len(members)).astype(np.int64)
        ends[-1] = len(members)
        owners[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    _fill(owners, clients)
    return [torch.from_numpy(np.flatnonzero(owners == client)) for client in range(clients)]


def _dirichlet(generator: Any, clients: int, concentration: float) -> Any:
    """Draw from the symmetric Dirichlet distribution: gamma variates over their sum.

    For a small concentration a they underflow, and numpy's own would divide 0 by 0. So their logarithms are drawn, by
    gamma(a) = gamma(a + 1) U^(1/a).
    """
    import numpy as np

    logs = np.log(generator.gamma(concentration + 1, size=clients))
    # 1 - U lies in (0, 1]: its logarithm is finite
    logs += np.log(1 - generator.uniform(size=clients)) / concentration
    shares = np.exp(logs - logs.max())
    return shares / shares.sum()


def _fill(owners: Any, clients: int) -> None:
    """Give each client without images the last image of the one that has most, in place."""
    import numpy as np

    counts = np.bincount(owners, minlength=clients)
    for client in np.flatnonzero(counts == 0):
        largest = counts.argmax()
        owners[np.flatnonzero(owners == largest)[-1]] = client
        counts[[client, largest]] += 1, -1
