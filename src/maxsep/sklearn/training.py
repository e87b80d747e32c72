"""SGD on samples in memory: weighted mini-batches, a generator of its own, early stopping, no global state."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from maxsep.sklearn.samples import Samples

__all__ = ["Best", "DrawnFrom", "Training", "own_modes"]


@contextmanager
def own_modes() -> Iterator[None]:
    """Compute as in a fresh program wherever the call stands: inside no_grad, inference mode or autocast.

    >>> with torch.inference_mode(), own_modes():
    ...     torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    (True, False)
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield


class DrawnFrom(TorchFunctionMode):
    """Inside, what would draw from torch's global generator draws from this one: layers and heads start from it.

    Seeding the global generator and putting it back would do in one thread; a mode belongs to the thread it is in.

    >>> with DrawnFrom(torch.Generator().manual_seed(0)):
    ...     first = nn.Linear(2, 3).weight
    >>> with DrawnFrom(torch.Generator().manual_seed(0)):
    ...     first.equal(nn.Linear(2, 3).weight)
    True
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Pass the generator to whatever draws and was given none."""
        kwargs = dict(kwargs or {})
        if ("generator" in kwargs or func in _DRAWING) and kwargs.get("generator") is None:
            kwargs["generator"] = self.generator
        return func(*args, **kwargs)


_DRAWING = {torch.rand, torch.randn, torch.randint, torch.randperm, Tensor.uniform_, Tensor.normal_}
"""The functions of torch.nn.init name their generator anyway."""


class Training:
    """Cross-entropy of logits + shift, minimised by SGD.

    loss = mean_i weight_i * cross-entropy(network(x_i) + shift, y_i), in every mini-batch.

    Args:
        network: Standardised features to logits.
        shift: Added to the logits of every sample, (C,): zero, or the log-priors of the classes.
        batch_size: Samples in a step, at most; the parts of an epoch are as equal as can be.
        generator: Shuffles, on the CPU.
        options: Of torch.optim.SGD.
        state: What `state()` of an earlier training of the same network gave: its momentum.

    >>> samples = Samples(torch.eye(2), torch.tensor([0, 1]), torch.ones(2))
    >>> training = Training(nn.Linear(2, 2), torch.zeros(2), 2, torch.Generator(), {"lr": 1.0}, {})
    >>> losses = [training.epoch(samples) for _ in range(3)]
    >>> losses[2] < losses[0]
    True
    """

    def __init__(
        self,
        network: nn.Module,
        shift: Tensor,
        batch_size: int,
        generator: torch.Generator,
        options: dict[str, Any],
        state: dict[int, dict[str, Any]],
    ) -> None:
        self.network = network
        self.shift = shift
        self.batch_size = batch_size
        self.generator = generator
        self.optimiser = torch.optim.SGD(network.parameters(), **options)
        # today's options with the momentum of earlier calls
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})

    def loss(self, samples: Samples) -> Tensor:
        """Return the weighted mean loss of some samples, a scalar."""
        values = F.cross_entropy(self.network(samples.x) + self.shift, samples.target, reduction="none")
        return (samples.weight * values).mean()

    def epoch(self, samples: Samples) -> float:
        """Go through all samples once, in a new order; return the mean of the losses before each step."""
        count = len(samples.target)
        parts = math.ceil(count / self.batch_size)
        order = torch.randperm(count, generator=self.generator, device="cpu").to(samples.target.device)
        total = torch.zeros((), dtype=torch.float64, device="cpu").to(samples.weight)
        self.network.train()
        for rows in order.tensor_split(parts) if parts > 1 else [slice(None)]:
            batch = Samples(*(values[rows] for values in samples))
            loss = self.loss(batch)
            self.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's is not annotated
            self.optimiser.step()
            total += loss.detach() * len(batch.target) / count
        return total.item()

    @torch.no_grad()
    def validate(self, samples: Samples) -> float:
        """Return the mean loss of held-out samples."""
        self.network.eval()
        return self.loss(samples).item()

    def state(self) -> dict[int, dict[str, Any]]:
        """Return the momentum of every parameter, on the CPU."""
        state = self.optimiser.state_dict()["state"]
        return {
            place: {name: value.cpu() if isinstance(value, Tensor) else value for name, value in values.items()}
            for place, values in state.items()
        }


class Best:
    """The network of the epoch with the smallest held-out loss, and when to stop waiting for a better one.

    >>> network = nn.Linear(1, 1)
    >>> best = Best(network, patience=2)
    >>> [best.is_over_after(loss) for loss in (1.0, 0.5, 0.7, 0.6)]
    [False, False, False, True]
    """

    def __init__(self, network: nn.Module, patience: int) -> None:
        self.network = network
        self.patience = patience
        self.curve: list[float] = []
        self._kept = network.state_dict()

    def is_over_after(self, loss: float) -> bool:
        """Take the held-out loss of an epoch, and say whether patience is at its end."""
        if loss < min(self.curve, default=math.inf):
            self._kept = copy.deepcopy(self.network.state_dict())
        self.curve.append(loss)
        return len(self.curve) - 1 - self.curve.index(min(self.curve)) >= self.patience

    def restore(self) -> None:
        """Give the network the weights of the best epoch."""
        self.network.load_state_dict(self._kept)
