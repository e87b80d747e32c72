"""What a recipe does with trained runs: steps that are done once, on the machine that has the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from maxsep.lab.data import Dataset, load_outliers
from maxsep.lab.ood import OODProtocol, covers, ensure_detection, read_detection
from maxsep.lab.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the runs lie, what they are computed on, and how long that may take."""

    runs: Path
    data_root: str | Path | None = None
    device: str = "auto"
    deadline: float | None = None
    clock: Callable[[], float]

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and self.clock() >= self.deadline


class After(Protocol):
    """A step after the training of every run. What is there already is not done again."""

    def check(self, specs: Sequence[RunSpec], runs: Path, data_root: str | Path | None, download: bool) -> None:
        """Raise if something is missing that the step will need."""

    def __call__(self, specs: Sequence[RunSpec], place: Place) -> str:
        """Do what is missing for the finished ones of these runs; say in a sentence what could not be done."""


@dataclass(frozen=True)
class Detect:
    """Score outliers with every run and write `detection.json` into its folder."""

    protocol: OODProtocol

    def check(self, specs: Sequence[RunSpec], runs: Path, data_root: str | Path | None, download: bool) -> None:
        """Read every set of outliers once, so that a missing one is one error before the first run."""
        seen: set[tuple[str, str]] = set()
        for spec in specs:
            if self._is_done(runs / spec.name, spec):
                continue
            split = Dataset.parse(spec.dataset).open_set
            for name in self.protocol.sets(spec.dataset):
                key = (name, split.unknown_source if split else "")
                if key in seen:
                    continue
                seen.add(key)
                source = split.unknown_source if split and name in split.unknown else name
                if download and source in ("svhn", "cifar10", "cifar100"):
                    Dataset.parse(source).read(data_root, download=True)
                load_outliers(name, data_root, like=spec.dataset)

    def __call__(self, specs: Sequence[RunSpec], place: Place) -> str:
        """Detect with the runs that have not done so yet."""
        notes = []
        for spec in specs:
            folder = place.runs / spec.name
            if not (folder / "result.json").is_file() or self._is_done(folder, spec):
                continue
            if not (folder / "weights.safetensors").is_file():
                notes.append("Some runs were kept without weights, so nothing can be detected with them any more.")
            elif place.is_late:
                notes.append("Detection is not complete: the budget was spent. The same command goes on.")
            else:
                with suppress(BlockingIOError):  # another process that shares these runs is at it
                    ensure_detection(folder, self.protocol, data_root=place.data_root, device=place.device)
        return " ".join(dict.fromkeys(notes))

    def _is_done(self, folder: Path, spec: RunSpec) -> bool:
        record = read_detection(folder)
        return record is not None and covers(record, self.protocol, spec.softmax_scale)
