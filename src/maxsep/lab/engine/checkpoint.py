"""Resume points: everything that decides the rest of a run, written whole and verified before it is used.

A resume point is a folder `save_N` with `model.safetensors`, `train_state.safetensors`, `state.json` and the manifest
of `maxsep.files`. It contains no pickle.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.optim import Optimizer

from maxsep.files import read_json, verify_folder, write_file, write_folder
from maxsep.lab.engine.processes import sharded_like, whole
from maxsep.lab.run import encode_tensors

KEEP = 2
_MODEL, _TENSORS, _STATE = _FILES = ("model.safetensors", "train_state.safetensors", "state.json")
_SCALARS = ("epoch", "step", "history", "epoch_seconds", "total_seconds", "resumed", "started")


class CheckpointError(ValueError):
    """A resume point cannot be written or cannot be used."""


@dataclass
class State:
    """The position of a run and what it has measured so far."""

    losses: Tensor  # one for each step of the epoch, on the device
    epoch: int = 0  # complete epochs
    step: int = 0  # complete steps of the current epoch
    permutation: Tensor | None = None  # of the current epoch, once it is drawn
    history: list[dict[str, Any]] = field(default_factory=list)  # the lines of metrics.jsonl
    epoch_seconds: float = 0.0  # in the steps of the current epoch
    total_seconds: float = 0.0  # evaluation and saving included
    resumed: int = 0  # how often
    started: str = ""  # ISO 8601


class Point(NamedTuple):
    """The content of a resume point: the network's state dict, all other tensors, and plain JSON values."""

    model: dict[str, Tensor]
    tensors: dict[str, Tensor]
    state: dict[str, Any]


class Generators(NamedTuple):
    """The generators of a run besides torch's own (for dropout); the order's is on the CPU of every machine."""

    order: torch.Generator
    augmentation: torch.Generator
    mixup: torch.Generator

    def get(self) -> dict[str, Tensor]:
        """Return all states, torch's own included, as byte tensors."""
        states = {name: generator.get_state() for name, generator in self._asdict().items()}
        device = self.augmentation.device
        cuda = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
        return states | {"torch": torch.get_rng_state()} | cuda

    def set(self, states: Mapping[str, Tensor]) -> bool:
        """Restore states; return False if those of the device are of another kind of device and stay as they are."""
        self.order.set_state(states["order"])
        torch.set_rng_state(states["torch"])
        if states["augmentation"].numel() != self.augmentation.get_state().numel():
            return False
        self.augmentation.set_state(states["augmentation"])
        self.mixup.set_state(states["mixup"])
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], self.augmentation.device)
        return True


def pack(
    state: State, network: nn.Module, optimiser: Optimizer, random: Mapping[str, Tensor], facts: dict[str, Any]
) -> Point:
    """Collect everything that decides the rest of the run.

    `random` holds generator states by name, one row for each process; `facts` the versions, threads and so on that are
    compared when the run is resumed. The numbers of the optimiser's groups follow from the spec. Sharded tensors are
    gathered, for which all processes must call it.
    """
    tensors = {f"random.{name}": value for name, value in random.items()} | {"losses": state.losses}
    if state.permutation is not None:
        tensors["permutation"] = state.permutation
    for index, values in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{key}": value for key, value in values.items() if value is not None}
    scalars = {name: getattr(state, name) for name in _SCALARS}
    return Point(whole(network.state_dict()), whole(tensors), scalars | {"facts": facts})


def unpack(point: Point, state: State, network: nn.Module, optimiser: Optimizer) -> dict[str, Tensor]:
    """Restore a resume point in place and return its generator states; refuse one of another network or data."""
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    saved = {name: tuple(tensor.shape) for name, tensor in point.model.items()}
    if differing := sorted(name for name in expected | saved if expected.get(name) != saved.get(name)):
        raise CheckpointError(f"the resume point holds another network: {', '.join(differing[:5])} differ.")
    losses = point.tensors["losses"]
    if losses.shape != state.losses.shape:
        steps = f"{len(losses)} steps per epoch, the data now give {len(state.losses)}"
        raise CheckpointError(f"the training data have changed: the resume point was made with {steps}.")
    current = network.state_dict()
    network.load_state_dict({name: sharded_like(value, current[name]) for name, value in point.model.items()})
    _restore_optimiser(_below("optimiser.", point.tensors), optimiser)
    for name in _SCALARS:
        setattr(state, name, point.state[name])
    state.losses.copy_(losses)
    state.permutation = point.tensors.get("permutation")
    return _below("random.", point.tensors)


def _restore_optimiser(tensors: Mapping[str, Tensor], optimiser: Optimizer) -> None:
    values: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split(".", 1)
        values.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict({"state": values, "param_groups": optimiser.state_dict()["param_groups"]})
    for parameter, entries in optimiser.state.items():
        for key, value in entries.items():
            # the fused kernels need the memory order of the parameter; files know one order only
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                entries[key] = torch.empty_like(parameter).copy_(sharded_like(value, parameter))


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def save_point(folder: Path, point: Point) -> Path:
    """Write a resume point durably, then delete all but the last two.

    A failed write leaves earlier points untouched and nothing of its own; it is tried once more before it is an error.
    """
    contents = (encode_tensors(point.model), encode_tensors(point.tensors), json.dumps(point.state).encode())

    def write(temporary: Path) -> None:
        for name, content in zip(_FILES, contents, strict=True):
            write_file(temporary / name, content)

    points = _points(folder)
    path = folder / f"save_{_number(points[-1]) + 1 if points else 0:06d}"
    try:
        write_folder(path, write)
    except OSError:
        try:
            write_folder(path, write)
        except OSError as error:
            size = sum(map(len, contents))
            message = f"cannot write the resume point {path} ({size:,} bytes): {error}. Earlier ones are intact."
            raise CheckpointError(message) from error
    for old in _points(folder)[:-KEEP]:
        shutil.rmtree(old)
    return path


def load_point(folder: Path) -> Point | None:
    """Read the newest resume point that verifies, with a warning if newer ones are damaged; None if there is none."""
    problems: list[str] = []
    for path in reversed(_points(folder)):
        try:
            point = read_point(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warnings.warn(f"{problem} Resuming from the point before it.", RuntimeWarning, stacklevel=2)
        return point
    if problems:
        raise CheckpointError(f"every resume point is damaged: {' '.join(problems)} Delete {folder} to start again.")
    return None


def read_point(path: Path) -> Point:
    """Read one resume point; raise CheckpointError if a byte of it has changed or a weight is not finite."""
    try:
        verify_folder(path, _FILES)
        model, tensors = (load((path / name).read_bytes()) for name in (_MODEL, _TENSORS))
        state = read_json(path / _STATE)
    except Exception as error:  # whatever the parsers raise, the file is at fault
        raise CheckpointError(f"{path} cannot be used: {error}.") from error
    for name, tensor in model.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{path / _MODEL}: the tensor {name} is not finite.")
    return Point(model, tensors, state)


def clean(folder: Path) -> None:
    """Remove what interrupted saves have left; only for the process that holds the run's lock."""
    for stale in folder.glob(".save_*"):
        shutil.rmtree(stale)


def _points(folder: Path) -> list[Path]:
    points = [path for path in folder.glob("save_*") if path.name.removeprefix("save_").isdigit()]
    return sorted(points, key=_number)


def _number(path: Path) -> int:
    return int(path.name.removeprefix("save_"))
