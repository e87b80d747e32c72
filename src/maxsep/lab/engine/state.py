"""Where a run stands, and how it is taken to a resume point and back, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from maxsep.lab.engine.checkpoint import CheckpointError, Point


@dataclass
class State:
    """The position of a run and what it has measured so far.

    Args:
        losses: One loss per step of the epoch, on the device.
        epoch: Epochs that are complete.
        step: Steps of the current epoch that are done.
        permutation: The current epoch's order of images; None before it is drawn.
        history: The lines of `metrics.jsonl`.
        epoch_seconds: Time spent in the steps of the current epoch.
        total_seconds: Time spent in all, evaluation and saving included.
        resumed: How often the run was taken up again.
        started: When it began, ISO 8601.
    """

    losses: Tensor
    epoch: int = 0
    step: int = 0
    permutation: Tensor | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    epoch_seconds: float = 0.0
    total_seconds: float = 0.0
    resumed: int = 0
    started: str = ""


_SCALARS = (
    "epoch",
    "step",
    "history",
    "epoch_seconds",
    "total_seconds",
    "resumed",
    "started",
)


def pack(
    state: State, network: nn.Module, optimiser: Optimizer, random: Mapping[str, Tensor], facts: dict[str, Any]
) -> Point:
    """Collect everything that decides the rest of the run.

    Args:
        state: Position and measurements.
        network: Its whole state dict is kept, buffers included.
        optimiser: Its state; the groups' numbers follow from the spec.
        random: Generator states by name, one row per process.
        facts: Versions and threads, compared when the run is taken up again.
    """
    tensors = {f"random.{name}": value for name, value in random.items()}
    tensors["losses"] = state.losses
    if state.permutation is not None:
        tensors["permutation"] = state.permutation
    for index, values in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{key}": value for key, value in values.items() if value is not None}
    scalars = {name: getattr(state, name) for name in _SCALARS}
    return Point(dict(network.state_dict()), tensors, scalars | {"facts": facts})


def unpack(point: Point, state: State, network: nn.Module, optimiser: Optimizer) -> dict[str, Tensor]:
    """Put a resume point back, in place, and give the generator states that it holds.

    Raises:
        CheckpointError: The point belongs to another network or another number of steps.
    """
    _check(point.model, network, point.tensors["losses"], state.losses)
    network.load_state_dict(point.model)
    _restore_optimiser(point.tensors, optimiser)
    for name in _SCALARS:
        setattr(state, name, point.state[name])
    state.losses.copy_(point.tensors["losses"])
    state.permutation = point.tensors.get("permutation")
    prefix = "random."
    return {key.removeprefix(prefix): t for key, t in point.tensors.items() if key.startswith(prefix)}


def _check(model: dict[str, Tensor], network: nn.Module, losses: Tensor, expected_losses: Tensor) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in model.items()}
    if found != expected:
        differing = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise CheckpointError(
            f"the resume point holds another network: {', '.join(differing[:5])} differ in name or shape. "
            "Delete the run's resume folder to start from the beginning."
        )
    if losses.shape != expected_losses.shape:
        raise CheckpointError(
            f"the resume point was made with {len(losses)} steps per epoch, the data now give "
            f"{len(expected_losses)}. The training data have changed: delete the run's folder and train anew."
        )


def _restore_optimiser(tensors: Mapping[str, Tensor], optimiser: Optimizer) -> None:
    values: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimiser."):
            _, index, key = name.split(".", 2)
            values.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict({"state": values, "param_groups": optimiser.state_dict()["param_groups"]})
    for parameter, entries in optimiser.state.items():
        for key, value in entries.items():
            # the fused kernels want the memory order of the parameter; files know one order only
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                entries[key] = torch.empty_like(parameter).copy_(value)


class RandomStates:
    """All generators of a run: the order of images, the augmentation, mixup, and torch's own (for dropout).

    Args:
        order: On the CPU, so that the order of images does not depend on the device.
        augmentation: On the device.
        device: Where dropout draws.
        mixup: On the device; a new one by default.
    """

    def __init__(
        self,
        order: torch.Generator,
        augmentation: torch.Generator,
        device: torch.device,
        mixup: torch.Generator | None = None,
    ) -> None:
        self.order = order
        self.augmentation = augmentation
        self.device = device
        self.mixup = mixup or torch.Generator(device)

    def get(self) -> dict[str, Tensor]:
        """Read all states as byte tensors."""
        states = {
            "order": self.order.get_state(),
            "augmentation": self.augmentation.get_state(),
            "mixup": self.mixup.get_state(),
            "torch": torch.get_rng_state(),
        }
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states

    def set(self, states: Mapping[str, Tensor]) -> bool:
        """Put states back; say whether all could be, which those of another kind of device cannot."""
        self.order.set_state(states["order"])
        torch.set_rng_state(states["torch"])
        if states["augmentation"].numel() != self.augmentation.get_state().numel():
            return False
        self.augmentation.set_state(states["augmentation"])
        if "mixup" in states:  # points of earlier versions have none
            self.mixup.set_state(states["mixup"])
        if self.device.type == "cuda" and "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], self.device)
        return True
