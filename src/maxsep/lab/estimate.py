"""How long a run will take, from the runs that were measured or, before the first one, from a guess."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from maxsep.lab.data import Dataset, held_counts, long_tail_counts
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

MARGIN = 1.1
"""Measured times are stretched by this much: a budget is better met than just missed."""

COMPARABLE = 10
"""A run that saw fewer images than a tenth of another's says nothing about its pace: a start is most of its time."""

WALL = "wall.json"
"""Written by a grid into a run folder: the whole time of the call that trained it, reading the data included."""

_START = {"cifar10": 10.0, "cifar100": 10.0, "svhn": 12.0, "digits": 1.0, "imagenet": 60.0, "imagenet_lt": 60.0}
"""Seconds to read and check a dataset and to build everything, until it was measured."""
_OTHER_START = 10.0
_COMPILE = 30.0

_GUESS = {  # images per second: one H200-class GPU, two CPU cores
    "resnet34": (20_000.0, 20.0),
    "resnet32": (40_000.0, 200.0),
    "convnet": (80_000.0, 800.0),
    "vgg32": (50_000.0, 150.0),
    "wrn40_2": (25_000.0, 60.0),
    "mlp": (50_000.0, 20_000.0),
    "resnet50": (2_500.0, 4.0),
    "resnet152": (1_000.0, 1.5),
}
_OTHER = (3_000.0, 10.0)
_UNKNOWN = [1000] * 10


@dataclass(frozen=True)
class Estimate:
    """Seconds, and what they rest on."""

    seconds: float
    basis: str


@dataclass(frozen=True)
class _Measured:
    """What one finished run tells: its training time, the images it saw, and the time around training."""

    spec: RunSpec
    seconds: float
    images: float
    start: float | None


class Estimator:
    """Predicts the time of runs from the records in a folder.

    A run's time is a start plus its number of training images times the seconds per image of finished runs: those
    with the same network, dataset and precision, or else with the same network, and only those of comparable size.
    The start (reading data, building, all that is not training) is what a grid measured around its runs. A started
    run counts what is left after its last resume point; epochs logged beyond that point are trained again.
    """

    def __init__(self, runs: str | Path, execution: Execution) -> None:
        self._runs = Path(runs)
        self._execution = execution
        self._measured: dict[str, _Measured] = {}
        self._seen: set[str] = set()
        self._sizes: dict[str, list[int]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the runs that finished since the last look."""
        if not self._runs.is_dir():
            return
        for path in self._runs.glob("*/result.json"):
            if path.parent.name in self._seen:
                continue
            self._seen.add(path.parent.name)
            found = _measure(path)
            if found is not None and found[1] == self._on_gpu():
                self._measured[path.parent.name] = found[0]

    def estimate(self, spec: RunSpec) -> Estimate:
        """Predict how long a run will take from where it stands."""
        if spec.dataset not in self._sizes:  # the files of a folder are counted once
            self._sizes[spec.dataset] = class_sizes(spec.dataset)
        whole = num_train(spec, self._sizes[spec.dataset]) * spec.epochs
        left = whole * self._remaining(spec)
        start = self._start(spec)
        for kind, keys in (("same setting", ("dataset", "precision")), ("same network", ())):
            like = [m for m in self._measured.values() if _alike(spec, m.spec, ("network", *keys))]
            like = [m for m in like if m.images * COMPARABLE >= whole]
            if like:
                pace = statistics.median(m.seconds / m.images for m in like)
                basis = f"{len(like)} run{'' if len(like) == 1 else 's'} of the {kind}"
                return Estimate((start + pace * left) * MARGIN, basis)
        speed = _GUESS.get(spec.network, _OTHER)[0 if self._on_gpu() else 1]
        compiling = _COMPILE if self._execution.compile else 0.0
        return Estimate(start + compiling + left / speed * MARGIN, "a first guess")

    def _start(self, spec: RunSpec) -> float:
        """Seconds around training: measured on the same dataset, or else a constant."""
        known = [m.start for m in self._measured.values() if m.spec.dataset == spec.dataset and m.start is not None]
        return statistics.median(known) if known else _START.get(spec.dataset, _OTHER_START)

    def _remaining(self, spec: RunSpec) -> float:
        """The part of a run that its newest resume point leaves; all of it without one."""
        points = sorted((self._runs / spec.name / "resume").glob("save_*/state.json"), reverse=True)
        for point in points:
            with suppress(ValueError, KeyError, TypeError, OSError):
                done = int((Run(point.parent).read(point.name) or {})["epoch"])
                return max(1 - done / spec.epochs, 1 / spec.epochs)
        return 1.0

    def _on_gpu(self) -> bool:
        if self._execution.device != "auto":
            return self._execution.device.startswith("cuda")
        import torch

        return torch.cuda.is_available()


def class_sizes(dataset: str, root: str | Path | None = None) -> list[int]:
    """Give the training images of every class without reading one; files of a folder are counted.

    >>> class_sizes("svhn")[:3]
    [4948, 13861, 10585]
    """
    return Dataset.parse(dataset).train_counts(root) or _UNKNOWN


def num_train(spec: RunSpec, sizes: Sequence[int] | None = None) -> int:
    """Count a run's training images, as far as the dataset is known without reading it.

    Args:
        spec: The run.
        sizes: What `class_sizes` says of its dataset, if that is known already.

    >>> num_train(RunSpec(dataset="cifar10", imbalance=0.01))
    12406
    """
    have = class_sizes(spec.dataset) if sizes is None else sizes
    want = long_tail_counts(max(have), len(have), spec.imbalance)
    kept = list(map(min, have, want))
    for fraction in (spec.validation, spec.calibration):  # cut class by class, one after the other, as `prepare` does
        kept = [n - held for n, held in zip(kept, held_counts(kept, fraction), strict=True)] if fraction else kept
    return max(1, min(sum(kept), sum(kept) if spec.max_train is None else spec.max_train))


def write_wall(folder: Path, seconds: float) -> None:
    """Keep the whole time of the call that trained a run, beside its record."""
    (folder / WALL).write_text(json.dumps({"schema": 1, "seconds": seconds}) + "\n", encoding="utf-8")


def _measure(path: Path) -> tuple[_Measured, bool] | None:
    """Read a run's record, and whether it ran on a GPU."""
    run = Run(path.parent)
    try:
        result, spec, wall = run.result, run.spec, run.read(WALL)
        images = float(result["metrics"].get("num_train") or num_train(spec)) * spec.epochs
        seconds = float(result["seconds"])
        start = None if wall is None else max(0.0, float(wall["seconds"]) - seconds)
        on_gpu = not str(result["hardware"]["device"]).lower().startswith("cpu")
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        return None  # a record that cannot be read predicts nothing; the report will name it
    return (_Measured(spec, seconds, images, start), on_gpu) if seconds > 0 and images > 0 else None


def _alike(one: RunSpec, other: RunSpec, keys: tuple[str, ...]) -> bool:
    return all(getattr(one, key) == getattr(other, key) for key in keys)
