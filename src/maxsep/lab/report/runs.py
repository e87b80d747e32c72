"""Read run folders: every folder becomes a run or a problem, none is dropped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxsep.lab.run import Run

_MARKS = ("spec.json", "result.json", "metrics.jsonl", "failure.json", "weights.safetensors", "resume")
_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError)
DETECTION_METRICS = ("auroc", "aupr", "fpr95", "oscr")


@dataclass(frozen=True)
class Problem:
    """A folder, or a file of a run, that holds no usable result, and why."""

    folder: Path
    kind: str
    """unfinished, failed, broken, duplicate; detection or features for a file of a usable run."""
    reason: str

    @property
    def label(self) -> str:
        """The name of a run folder, or of a file with that of its run folder."""
        return self.folder.name if self.folder.suffix != ".json" else f"{self.folder.parent.name}/{self.folder.name}"


@dataclass(frozen=True)
class Collection:
    """The finished runs of some folders, what was measured in each, and what could not be read."""

    runs: tuple[Run, ...]
    values: dict[str, dict[str, float]]
    """By name of a run and metric; detection adds metrics such as `svhn energy auroc`."""
    problems: tuple[Problem, ...]


def collect(*folders: str | Path) -> Collection:
    """Read every run below some folders, each of which is a run folder or holds run folders."""
    runs: dict[str, Run] = {}
    values: dict[str, dict[str, float]] = {}
    problems: list[Problem] = []
    for root in map(Path, folders):
        if not root.is_dir():
            raise ValueError(f"{root} is not a folder. Give a run folder, or a folder that holds run folders.")
        for folder in sorted(_run_folders(root)):
            run = Run(folder)
            try:
                problem, measured = _check(run), {} if run.state != "finished" else dict(_measured(run))
                name = "" if problem else run.spec.name
            except _ERRORS as error:
                problem = Problem(folder, "broken", _one_line(error))
            if problem is None and name in runs:
                if (first := runs[name].folder).resolve() == folder.resolve():
                    continue
                problem = Problem(folder, "duplicate", f"the same run as {first}, which is used")
            if problem is not None:
                problems.append(problem)
                continue
            runs[name], values[name] = run, measured
            problems += _read_files(run, measured)
    return Collection(tuple(runs.values()), values, tuple(problems))


def _run_folders(root: Path) -> Iterator[Path]:
    if any((root / mark).exists() for mark in _MARKS):
        yield root
        return
    for child in root.iterdir():
        if child.is_dir():
            yield from _run_folders(child)


def _check(run: Run) -> Problem | None:
    """The reason why a run has no result, if it has none."""
    if run.state == "failed":
        return Problem(run.folder, "failed", " ".join(str((run.read("failure.json") or {})["error"]).split()))
    if run.state == "finished":
        top1 = run.metrics["top1"]
        if not isinstance(top1, int | float) or not 0 <= top1 <= 1:
            raise ValueError(f"top1 must be a fraction in [0, 1], got {top1!r}")
        return None
    spec = run.read("spec.json")
    if spec is None:
        raise ValueError("neither result.json nor spec.json is there")
    epochs = spec.get("epochs", "?")
    return Problem(run.folder, "unfinished", f"{len(run.history)} of {epochs} epochs done; train it again to resume")


def _measured(run: Run) -> Iterator[tuple[str, float]]:
    """Every finite number of a run; the calibration error only if it is that of the probabilities of the loss."""
    _ = run.history  # a torn log is a problem of the run
    for name, value in run.metrics.items():
        stale = name == "ece" and run.metrics.get("softmax_scale", 1.0) != run.spec.softmax_scale
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and not stale:
            yield name, float(value)


def _read_files(run: Run, measured: dict[str, float]) -> Iterable[Problem]:
    """Add what `detection.json` measured; name the files that cannot be read."""
    for name, read in (("detection", _detection), ("features", _features)):
        try:
            measured.update(read(run))
        except _ERRORS as error:
            vars(run)[name] = None  # no section reads it again
            yield Problem(run.folder / f"{name}.json", name, f"cannot be read: {_one_line(error)}")


def _detection(run: Run) -> dict[str, float]:
    """Detection metrics: the mean over draws of outliers where there are draws, else of all images."""
    found = {}
    for outliers, content in (run.detection or {"sets": {}})["sets"].items():
        if not isinstance(content["origin"], str) or not isinstance(content["count"], int):
            raise ValueError(f"the set {outliers} has no origin or count")
        for score, numbers in content["scores"].items():
            for metric in DETECTION_METRICS:
                drawn = numbers["draws"][metric]["mean"] if metric in numbers.get("draws", ()) else None
                found[f"{outliers} {score} {metric}"] = _fraction(numbers["full"][metric] if drawn is None else drawn)
        for shape in content["histograms"].values():
            if not len(shape["edges"]) - 1 == len(shape["known"]) == len(shape["outside"]):
                raise ValueError(f"a histogram of {outliers} has other bins than edges")
            _finite([*shape["edges"], *shape["known"], *shape["outside"], shape["gap"]])
    return found


def _features(run: Run) -> dict[str, float]:
    """Check that features can be drawn."""
    for epoch, found in (run.features or {"epochs": {}})["epochs"].items():
        if len(found["known"]) != len(found["labels"]) or not found["known"] or not found["unknown"]:
            raise ValueError(f"epoch {int(epoch)} lacks points or labels")
        _finite([value for point in (*found["known"], *found["unknown"]) for value in point])
    return {}


def _fraction(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"a detection metric must be a fraction in [0, 1], got {value!r}")
    return float(value)


def _finite(values: list[Any]) -> None:
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise ValueError("there is something other than finite numbers")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"there is no field {text}" if isinstance(error, KeyError) else text
