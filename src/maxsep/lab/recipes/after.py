"""What a recipe does with trained runs: steps that are done once, on the machine that has the weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from maxsep.lab.data import Dataset, load_outliers
from maxsep.lab.ood import OODProtocol, covers, ensure_detection, read_detection
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec


class After(Protocol):
    """A step after the training of every run."""

    def check(self, specs: Sequence[RunSpec], runs: Path, data_root: str | Path | None, download: bool) -> None:
        """Raise if something is missing that the step will need."""

    def is_done(self, run: Run) -> bool:
        """Whether a finished run has what the step adds."""

    def __call__(self, run: Run, *, data_root: str | Path | None, device: str) -> str:
        """Take the step for a finished run; return a sentence about what could not be done, or nothing."""


@dataclass(frozen=True)
class Detect:
    """Score outliers with every run and write `detection.json` into its folder."""

    protocol: OODProtocol

    def check(self, specs: Sequence[RunSpec], runs: Path, data_root: str | Path | None, download: bool) -> None:
        """Read every set of outliers once, so that a missing one is one error before the first run."""
        seen: set[tuple[str, str]] = set()
        for spec in specs:
            run = Run(runs / spec.name)
            if run.state == "finished" and self.is_done(run):
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

    def is_done(self, run: Run) -> bool:
        """Whether the run's `detection.json` holds all that is measured here."""
        record = read_detection(run.folder)
        return record is not None and covers(record, self.protocol, run.spec.softmax_scale)

    def __call__(self, run: Run, *, data_root: str | Path | None, device: str) -> str:
        """Score the outliers with a run."""
        if not run.has_weights:
            return "Some runs were kept without weights, so detection cannot be measured with them."
        with suppress(BlockingIOError):  # another process that shares these runs is at it
            ensure_detection(run.folder, self.protocol, data_root=data_root, device=device)
        return ""
