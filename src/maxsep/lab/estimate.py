"""How long a run will take: from finished runs, or from a table of guesses before the first one; times as text."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from maxsep.lab.data import Dataset, held_counts, long_tail_counts
from maxsep.lab.environment import pick_device
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

MARGIN = 1.1
"""Factor on measured times: a budget is better met than just missed."""
COMPARABLE = 10
"""Runs with fewer images than a tenth of another's say nothing about its speed: starting takes most of their time."""

_START = (40.0, 1.0)
"""Seconds to read the data and to build everything, in a guess: on a GPU, which compiles, and on a CPU."""
_SPEED = {  # images per second: one H200-class GPU, two CPU cores (resnet32: one)
    "resnet34": (20_000.0, 20.0),
    "resnet32": (40_000.0, 320.0),
    "convnet": (80_000.0, 800.0),
    "vgg32": (50_000.0, 150.0),
    "vit": (40_000.0, 150.0),
    "wrn40_2": (25_000.0, 60.0),
    "mlp": (50_000.0, 20_000.0),
    "resnet50": (2_500.0, 4.0),
    "resnet152": (1_000.0, 1.5),
}
_OTHER_SPEED = (3_000.0, 10.0)


@dataclass(frozen=True)
class Estimate:
    """Seconds, and what they are based on."""

    seconds: float
    basis: str


class Estimator:
    """Predict the time of runs from the finished ones in a folder.

    The estimate is the number of training images times the median seconds per image, start included, of finished runs
    of comparable size: those with the same network, dataset and precision, or else with the same network. A started run
    counts what is left after its last resume point; epochs logged beyond that point are trained again. `on_gpu` says
    what other machines train on.
    """

    def __init__(self, runs: str | Path, execution: Execution, on_gpu: bool | None = None) -> None:
        self._runs = Path(runs)
        is_cuda = execution.device == "cuda" or pick_device(execution.device).type == "cuda"  # of a cluster, perhaps
        self._on_gpu = is_cuda if on_gpu is None else on_gpu
        self._measured: dict[str, tuple[RunSpec, float, float] | None] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the runs that were finished since the last call."""
        for path in self._runs.glob("*/result.json"):
            if path.parent.name not in self._measured:
                self._measured[path.parent.name] = _measure(Run(path.parent), self._on_gpu)

    def estimate(self, spec: RunSpec) -> Estimate:
        """Predict how long a run will take from where it stands."""
        whole = num_train(spec) * spec.trained_epochs
        left = whole * self._remaining(spec)
        comparable = [m for m in self._measured.values() if m is not None and m[2] * COMPARABLE >= whole]
        for kind, keys in (("same setting", ("network", "dataset", "precision")), ("same network", ("network",))):
            alike = [m for m in comparable if all(getattr(m[0], key) == getattr(spec, key) for key in keys)]
            if paces := [seconds / images for _, seconds, images in alike]:
                basis = f"{len(paces)} run{'' if len(paces) == 1 else 's'} of the {kind}"
                return Estimate(statistics.median(paces) * left * MARGIN, basis)
        guesses = _START, _SPEED.get(spec.network, _OTHER_SPEED)
        start, speed = (guess[0 if self._on_gpu else 1] for guess in guesses)
        return Estimate(start + left / speed * MARGIN, "a first guess")

    def _remaining(self, spec: RunSpec) -> float:
        """Return the part of a run that its newest readable resume point leaves; 1 without one."""
        for point in sorted(Run(self._runs / spec.name).resume.glob("save_*/state.json"), reverse=True):
            with suppress(ValueError, KeyError, TypeError, OSError):
                done = int((Run(point.parent).read(point.name) or {})["epoch"])
                return max(1 - done / spec.trained_epochs, 1 / spec.trained_epochs)
        return 1.0


def num_train(spec: RunSpec, sizes: Sequence[int] | None = None) -> int:
    """Count a run's training images without reading them; `sizes` are those of its dataset's classes, if known."""
    available = sizes or Dataset.parse(spec.dataset).train_counts() or [1000] * 10
    kept = list(map(min, available, long_tail_counts(max(available), len(available), spec.imbalance)))
    for fraction in (spec.validation, spec.calibration):  # cut class by class, one after the other, as `prepare` does
        kept = [n - held for n, held in zip(kept, held_counts(kept, fraction), strict=True)] if fraction else kept
    return max(1, min(sum(kept), sum(kept) if spec.max_train is None else spec.max_train))


def parse_budget(text: str | float) -> float:
    """Read a time budget in seconds from text with units, such as `25m`, `1h30m` or `90s`; a number is in seconds."""
    seconds = 0.0 if isinstance(text, str) else float(text)
    number = r"(\d+\.?\d*|\.\d+)"
    units = rf"(?:{number}d)?(?:{number}h)?(?:{number}m(?:in)?)?(?:{number}s)?"
    if isinstance(text, str) and (pieces := re.fullmatch(units, text.strip().lower())):
        seconds = sum(float(n or 0) * unit for n, unit in zip(pieces.groups(), (86400, 3600, 60, 1), strict=True))
    if not seconds > 0:
        raise ValueError(f"a time budget must be a positive time with its unit: 25m, 1h30m, 90s or 2h, got {text!r}.")
    return seconds


def format_seconds(seconds: float) -> str:
    """Write a time for people."""
    whole, minutes = round(seconds), round(seconds / 60)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{minutes // 60} h {minutes % 60:02d} min"


def _measure(run: Run, on_gpu: bool) -> tuple[RunSpec, float, float] | None:
    """Return a run's spec, seconds and images; None for another kind of device. The report names what is damaged."""
    with suppress(OSError, AttributeError, KeyError, TypeError, ValueError):
        seconds = float(run.result.get("wall_seconds") or run.result["seconds"])
        images = float(run.metrics.get("num_train") or num_train(run.spec)) * run.spec.trained_epochs
        if str(run.result["hardware"]["device"]).lower().startswith("cpu") != on_gpu and seconds > 0 and images > 0:
            return run.spec, seconds, images
    return None
