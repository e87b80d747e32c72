"""Read run folders: every folder becomes a record or a problem, none is dropped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from maxsep.lab.report.beside import check_detection, check_features
from maxsep.lab.spec import RunSpec

_Beside = Literal["detection", "features"]
_BESIDE = get_args(_Beside)
"""Files beside a result, by name."""
_MARKS = ("spec.json", "result.json", "metrics.jsonl", "failure.json", "weights.safetensors", "resume")


@dataclass(frozen=True)
class Record:
    """A finished run."""

    folder: Path
    spec: RunSpec
    metrics: dict[str, Any]
    history: tuple[dict[str, Any], ...] = ()
    execution: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    started: str = ""
    finished: str = ""
    resumed: int = 0
    detection: dict[str, Any] | None = None
    """What `detection.json` says, if it is there and whole."""
    features: dict[str, Any] | None = None
    """Likewise `features.json`."""

    def value(self, metric: str) -> float | None:
        """A metric as a finite number, or nothing."""
        found = self.metrics.get(metric)
        if isinstance(found, int | float) and math.isfinite(found):
            return float(found)
        return None


@dataclass(frozen=True)
class Problem:
    """A folder, or a file beside runs, that holds no usable result, and why."""

    folder: Path
    kind: Literal["unfinished", "failed", "broken", "duplicate", "detection", "features"]
    reason: str

    @property
    def is_run(self) -> bool:
        """Whether a run's own result is missing, and not something beside it."""
        return self.kind not in _BESIDE

    @property
    def label(self) -> str:
        """The name of a run folder, or of a file with that of its run folder."""
        return self.folder.name if self.is_run else f"{self.folder.parent.name}/{self.folder.name}"


@dataclass(frozen=True)
class Collection:
    """All that was found in some folders."""

    records: tuple[Record, ...]
    problems: tuple[Problem, ...]


def collect(*folders: str | Path) -> Collection:
    """Read every run below some folders, each of which is a run folder or holds run folders.

    A run that is not finished, has failed or cannot be read becomes a `Problem` with its reason.
    """
    records: dict[str, Record] = {}
    problems: list[Problem] = []
    for given in folders:
        root = Path(given)
        if not root.is_dir():
            raise ValueError(f"{root} is not a folder. Give a run folder, or a folder that holds run folders.")
        for folder in sorted(_run_folders(root)):
            found = read_run(folder)
            if isinstance(found, Problem):
                problems.append(found)
            elif found.spec.name in records:
                first = records[found.spec.name].folder
                if first.resolve() != folder.resolve():
                    problems.append(Problem(folder, "duplicate", f"the same run as {first}, which is used"))
            else:
                records[found.spec.name] = found
                problems += _beside(found)
    return Collection(tuple(records.values()), tuple(problems))


def read_run(folder: str | Path) -> Record | Problem:
    """Read one run folder."""
    folder = Path(folder)
    if not (folder / "result.json").is_file():
        return _without_result(folder)
    try:
        result = _load(folder / "result.json")
        spec = RunSpec.from_dict(result["spec"])
        metrics = dict(result["metrics"])
        _check_accuracy(metrics)
        return Record(
            folder=folder,
            spec=spec,
            metrics=metrics,
            history=tuple(_history(folder / "metrics.jsonl")),
            execution=dict(result.get("execution") or {}),
            versions=dict(result.get("versions") or {}),
            hardware=dict(result.get("hardware") or {}),
            seconds=result.get("seconds"),
            started=str(result.get("started", "")),
            finished=str(result.get("finished", "")),
            resumed=int(result.get("resumed") or 0),
            detection=_whole(folder / "detection.json", check_detection),
            features=_whole(folder / "features.json", check_features),
        )
    except KeyError as error:
        return Problem(folder, "broken", f"result.json has no field {error}")
    except (OSError, ValueError, TypeError) as error:
        return Problem(folder, "broken", _one_line(error))


def _whole(path: Path, check: Callable[[dict[str, Any]], None]) -> dict[str, Any] | None:
    """Read a file beside a result if it is there and has all that a section will touch."""
    try:
        found = _load(path)
        check(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found


def _beside(record: Record) -> Iterable[Problem]:
    """Name the files beside a result that could not be read."""
    checks: dict[_Beside, Callable[[dict[str, Any]], None]] = {
        "detection": check_detection,
        "features": check_features,
    }
    for kind, check in checks.items():
        content = getattr(record, kind)
        path = record.folder / f"{kind}.json"
        if content is None and path.is_file():
            try:
                check(_load(path))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                yield Problem(path, kind, f"cannot be read: {_one_line(error)}")


def _run_folders(root: Path) -> Iterable[Path]:
    if any((root / mark).exists() for mark in _MARKS):
        yield root
        return
    for child in root.iterdir():
        if child.is_dir():
            yield from _run_folders(child)


def _without_result(folder: Path) -> Problem:
    try:
        if (folder / "failure.json").is_file():
            return Problem(folder, "failed", _failure(_load(folder / "failure.json")))
        epochs = sum(1 for _ in _history(folder / "metrics.jsonl"))
        total = _load(folder / "spec.json").get("epochs", "?")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Problem(folder, "broken", f"no result.json, and {_one_line(error)}")
    return Problem(folder, "unfinished", f"{epochs} of {total} epochs done; train it again to go on")


def _failure(record: dict[str, Any]) -> str:
    return " ".join(str(record["error"]).split())


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"there is no field {text}" if isinstance(error, KeyError) else text


def _history(path: Path) -> Iterable[dict[str, Any]]:
    if not path.is_file():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path.name} line {number} is not JSON") from error


def _load(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is not valid JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return found


def _check_accuracy(metrics: dict[str, Any]) -> None:
    top1 = metrics["top1"]
    if not isinstance(top1, int | float) or not 0 <= top1 <= 1:
        raise ValueError(f"top1 must be a fraction in [0, 1], got {top1!r}")
