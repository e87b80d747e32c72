"""What is planned for many runs, what happens to each, and what became of them all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from maxsep.lab.durations import format_seconds
from maxsep.lab.estimate import Estimate
from maxsep.lab.spec import RunSpec

State = Literal["finished", "unfinished", "new"]


@dataclass(frozen=True)
class PlannedRun:
    """A run, whether it is there already, and how long it will take."""

    spec: RunSpec
    state: State
    estimate: Estimate


@dataclass(frozen=True)
class Event:
    """Something that happened to one run of a grid.

    `seconds` is the estimate when a run starts or is postponed, and the measured time when it ends.
    """

    kind: Literal["start", "finished", "skipped", "failed", "postponed", "elsewhere"]
    spec: RunSpec
    index: int
    total: int
    seconds: float
    message: str = ""


@dataclass
class Summary:
    """What became of the runs of a grid."""

    finished: list[RunSpec] = field(default_factory=list)
    skipped: list[RunSpec] = field(default_factory=list)
    failed: list[tuple[RunSpec, str]] = field(default_factory=list)
    postponed: list[RunSpec] = field(default_factory=list)
    elsewhere: list[RunSpec] = field(default_factory=list)
    """Runs that another process is training, and runs that start from one of these."""
    interrupted: int = 0
    """The exit status of an interruption: 130 after Ctrl-C, 143 after a request to end; 0 without one."""
    seconds: float = 0.0
    radii: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What else the user should know, such as a choice that was not made."""

    @property
    def status(self) -> int:
        """Exit status: 0 if every run that was started ended well, 1 after a failure, 130 or 143 when interrupted."""
        return self.interrupted or int(bool(self.failed))

    def __str__(self) -> str:
        parts = [f"{len(self.finished)} trained", f"{len(self.skipped)} already there"]
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        if self.postponed:
            parts.append(f"{len(self.postponed)} left for next time")
        if self.elsewhere:
            parts.append(f"{len(self.elsewhere)} in the hands of another process")
        text = f"{', '.join(parts)} in {format_seconds(self.seconds)}"
        text += " (interrupted; the same command goes on)" if self.interrupted else ""
        return "\n".join([text, *self.notes])
