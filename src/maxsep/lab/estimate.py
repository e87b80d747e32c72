"""How long a run will take, from the runs that were measured or, before the first one, from a guess."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxsep.lab.spec import Execution, RunSpec

MARGIN = 1.1
"""Measured times are stretched by this much: a budget is better met than just missed."""

_FULL = {"cifar10": (50_000, 10), "cifar100": (50_000, 100), "svhn": (73_257, 10), "digits": (1_196, 10)}
"""Training images and classes of the datasets that are known by name."""

_GUESS = {  # images per second: one H200-class GPU, two CPU cores
    "resnet34": (20_000.0, 20.0),
    "resnet32": (40_000.0, 200.0),
    "convnet": (80_000.0, 800.0),
    "mlp": (50_000.0, 20_000.0),
}
_OTHER = (3_000.0, 10.0)
_OVERHEAD = 0.5
_UNKNOWN_SIZE = 10_000


@dataclass(frozen=True)
class Estimate:
    """Seconds, and what they rest on."""

    seconds: float
    basis: str


class Estimator:
    """Predicts the time of runs from the records in a folder.

    A run's time is its number of training images times the seconds per image of finished runs: those with the same
    network, dataset and precision, or else with the same network. A started run counts its remaining epochs alone.
    """

    def __init__(self, runs: str | Path, execution: Execution) -> None:
        self._runs = Path(runs)
        self._execution = execution
        self._measured: dict[str, tuple[RunSpec, float]] = {}
        self._seen: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Read the runs that finished since the last look."""
        if not self._runs.is_dir():
            return
        for path in self._runs.glob("*/result.json"):
            if path.parent.name in self._seen:
                continue
            self._seen.add(path.parent.name)
            found = _seconds_per_image(read_json(path))
            if found is not None and found[2] == self._on_gpu():
                self._measured[path.parent.name] = found[:2]

    def estimate(self, spec: RunSpec) -> Estimate:
        """Predict how long a run will take from where it stands."""
        images = num_train(spec) * spec.epochs * self._remaining(spec)
        for kind, keys in (("same setting", ("dataset", "precision")), ("same network", ())):
            like = [pace for other, pace in self._measured.values() if _alike(spec, other, ("network", *keys))]
            if like:
                return Estimate(statistics.median(like) * images * MARGIN, f"{len(like)} runs of the {kind}")
        speed = _GUESS.get(spec.network, _OTHER)[0 if self._on_gpu() else 1]
        return Estimate(_OVERHEAD + images / speed * MARGIN, "a first guess")

    def _remaining(self, spec: RunSpec) -> float:
        log = self._runs / spec.name / "metrics.jsonl"
        if not log.is_file():
            return 1.0
        done = sum(1 for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip())
        return max(1 - done / spec.epochs, 1 / spec.epochs)

    def _on_gpu(self) -> bool:
        if self._execution.device != "auto":
            return self._execution.device.startswith("cuda")
        import torch

        return torch.cuda.is_available()


def num_train(spec: RunSpec) -> int:
    """Count a run's training images, as far as the dataset is known without reading it.

    >>> num_train(RunSpec(dataset="cifar10", imbalance=0.01))
    12406
    """
    full, classes = _FULL.get(spec.dataset, (_UNKNOWN_SIZE, 10))
    most = full / classes
    tail = (int(most * spec.imbalance ** (i / (classes - 1)) + 1e-9) for i in range(classes))
    count = full if spec.imbalance == 1 else sum(tail)
    count = round(count * (1 - spec.validation))
    return max(1, count if spec.max_train is None else min(count, spec.max_train))


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object, or nothing if it is not there or not whole."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _seconds_per_image(result: dict[str, Any] | None) -> tuple[RunSpec, float, bool] | None:
    try:
        assert result is not None
        spec = RunSpec.from_dict(result["spec"])
        images = float(result["metrics"].get("num_train") or num_train(spec)) * spec.epochs
        pace = float(result["seconds"]) / images
        on_gpu = not str(result["hardware"]["device"]).lower().startswith("cpu")
    except (AssertionError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None  # a record that cannot be read predicts nothing; the report will name it
    return (spec, pace, on_gpu) if pace > 0 else None


def _alike(one: RunSpec, other: RunSpec, keys: tuple[str, ...]) -> bool:
    return all(getattr(one, key) == getattr(other, key) for key in keys)
