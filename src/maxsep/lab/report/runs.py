"""Read run folders: every folder becomes a run or a problem, none is dropped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxsep.lab.data import fingerprints_differ
from maxsep.lab.run import Run
from maxsep.lab.search import FOLDER

_MARKS = ("spec.json", "result.json", "metrics.jsonl", "failure.json", "weights.safetensors", "resume")
_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError)
_METRICS = ("auroc", "aupr", "fpr95", "oscr")


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
                problem, measured = _without_result(run), {}
                if problem is None:
                    measured = _measured(run)
                    if (first := runs.get(run.spec.name)) is not None:
                        problem = Problem(folder, "duplicate", f"the same run as {first.folder}, which is used")
            except _ERRORS as error:
                problem = Problem(folder, "broken", _one_line(error))
            if problem is None:
                runs[run.spec.name], values[run.spec.name] = run, measured
                problems += _read_files(run, measured)
            elif problem.kind != "duplicate" or first is None or first.folder.resolve() != folder.resolve():
                problems.append(problem)
    return Collection(tuple(runs.values()), values, tuple(problems))


def check_data(
    runs: Sequence[Run], class_counts: Sequence[int] = (), num_test: int | None = None, files: str | None = None
) -> None:
    """Raise if runs have not seen the same images: a folder may change between calls.

    The other arguments are what a run would see now, if known; `files` is the fingerprint of the pictures.
    """
    seen = {(tuple(run.metrics["class_counts"]), run.metrics["num_test"]) for run in runs}
    for counts, tests in sorted(seen)[:1]:
        seen.add((tuple(class_counts) or counts, tests if num_test is None else num_test))
    if len(seen) > 1 or fingerprints_differ(files, *(run.metrics.get("files") for run in runs)):
        images = "; ".join(f"{sum(counts):,} training and {tests:,} test images" for counts, tests in sorted(seen))
        raise ValueError(
            f"the images of {runs[0].spec.dataset} have changed since some of these runs were trained ({images}). "
            "Name another folder with --runs to compare anew."
        )


def _run_folders(root: Path) -> Iterator[Path]:
    if any((root / mark).exists() for mark in _MARKS):
        yield root
    else:
        for child in root.iterdir():
            yield from _run_folders(child) if child.is_dir() and child.name != FOLDER else ()


def _without_result(run: Run) -> Problem | None:
    """Say why a run has no result, if it has none."""
    if run.state == "finished":
        return None
    if run.state == "failed":
        return Problem(run.folder, "failed", " ".join(str((run.read("failure.json") or {})["error"]).split()))
    epochs = f"{len(run.history)} of {run.spec.epochs} epochs done"
    return Problem(run.folder, "unfinished", f"{epochs}; train it again to resume")


def _measured(run: Run) -> dict[str, float]:
    """Return every finite number of a run; the calibration error only if it is of the probabilities of the loss."""
    run.verify()
    _ = run.history  # a damaged log is a problem of the run
    _fraction(run.metrics["top1"])
    numbers = {name: value for name, value in run.metrics.items() if type(value) in (int, float)}
    if run.metrics.get("softmax_scale", 1.0) != run.spec.softmax_scale:
        numbers.pop("ece", None)
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def _read_files(run: Run, measured: dict[str, float]) -> Iterator[Problem]:
    """Add what `detection.json` measured; name the files that cannot be read."""
    for name, read in (("detection", _detection), ("features", _features)):
        try:
            measured.update(read(run))
        except _ERRORS as error:
            vars(run)[name] = None  # no section reads it again
            yield Problem(run.folder / f"{name}.json", name, f"cannot be read: {_one_line(error)}")


def _detection(run: Run) -> dict[str, float]:
    """Read detection metrics: the mean over draws of outliers where there are draws, else of all images."""
    values = {}
    for outliers, content in (run.detection or {"sets": {}})["sets"].items():
        _finite([content["count"], len(content["origin"])])
        for score, numbers in content["scores"].items():
            draws = numbers.get("draws", {})
            for metric in _METRICS:
                value = draws[metric]["mean"] if metric in draws else numbers["full"][metric]
                values[f"{outliers} {score} {metric}"] = _fraction(value)
        for shape in content["histograms"].values():
            _finite([*shape["edges"], *shape["known"], *shape["outside"], shape["gap"]])
            if not len(shape["edges"]) - 1 == len(shape["known"]) == len(shape["outside"]):
                raise ValueError(f"a histogram of {outliers} has other bins than edges")
    return values


def _features(run: Run) -> dict[str, float]:
    """Check that features can be drawn."""
    for epoch, points in (run.features or {"epochs": {}})["epochs"].items():
        if len(points["known"]) != len(points["labels"]) or not points["known"] or not points["unknown"]:
            raise ValueError(f"epoch {int(epoch)} lacks points or labels")
        _finite([value for point in (*points["known"], *points["unknown"]) for value in point])
    return {}


def _fraction(value: Any) -> float:
    _finite([value], 0, 1)
    return float(value)


def _finite(values: list[Any], low: float = -math.inf, high: float = math.inf) -> None:
    wrong = [v for v in values if not isinstance(v, int | float) or not math.isfinite(v) or not low <= v <= high]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no finite number from {low:g} to {high:g}")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"there is no field {text}" if isinstance(error, KeyError) else text
