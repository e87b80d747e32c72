"""What is seen of a run while it trains: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, TextIO

from maxsep.lab.spec import RunSpec


class Progress:
    """Say nothing; the base of those that do."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def download(self, done: int, total: int) -> None:
        """Tell how many bytes of a dataset have come, or are decoded."""

    def start(self, done: int, total: int) -> None:
        """Tell how many steps the run has, and how many were done before a resume."""

    def step(self) -> None:
        """Count one step."""

    def epoch(self, row: dict[str, Any]) -> None:
        """Show the line of an epoch that has ended."""

    def note(self, text: str) -> None:
        """Say something once."""


class Lines(Progress):
    """One plain line for every evaluated epoch."""

    def __init__(self, spec: RunSpec, stream: TextIO) -> None:
        self._spec = spec
        self._stream = stream
        self._tenths = 0

    def download(self, done: int, total: int) -> None:
        """Print a line every tenth of the way."""
        if (tenths := 10 * done // total) != self._tenths:
            self._tenths = tenths
            self.note(describe_bytes(done, total))

    def start(self, done: int, total: int) -> None:
        """Announce the run."""
        self.note(f"resumed at step {done} of {total}" if done else f"training, {total} steps")

    def epoch(self, row: dict[str, Any]) -> None:
        """Print an evaluated epoch."""
        if "top1" in row:
            self.note(describe(self._spec, row))

    def note(self, text: str) -> None:
        """Print a line that begins with the run's name and loss."""
        print(f"{self._spec.title}: {text}", file=self._stream, flush=True)


class Bar(Progress):
    """A bar that counts steps and shows the last evaluation; with the loss, its name would leave it no room."""

    def __init__(self, spec: RunSpec, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._spec = spec
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=Console(file=stream),
        )
        self._task = self._bar.add_task(spec.name, total=None, status="")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def download(self, done: int, total: int) -> None:
        """Show the bytes beside the bar, which waits."""
        self._bar.update(self._task, status=describe_bytes(done, total))

    def start(self, done: int, total: int) -> None:
        """Set the bar to what a resumed run has done already."""
        self._bar.update(self._task, completed=done, total=total, status="")

    def step(self) -> None:
        """Advance by one step."""
        self._bar.advance(self._task)

    def epoch(self, row: dict[str, Any]) -> None:
        """Show the newest numbers beside the bar."""
        self._bar.update(self._task, status=describe(self._spec, row))

    def note(self, text: str) -> None:
        """Print above the bar."""
        self._bar.console.print(text)


def describe(spec: RunSpec, row: dict[str, Any]) -> str:
    """Put an epoch's numbers into words.

    >>> describe(RunSpec(epochs=20), {"epoch": 9, "train_loss": 0.25, "top1": 0.971})
    'epoch 10/20, loss 0.250, top-1 97.10 %'
    """
    text = f"epoch {row['epoch'] + 1}/{spec.epochs}, loss {row['train_loss']:.3f}"
    return f"{text}, top-1 {100 * row['top1']:.2f} %" if "top1" in row else text


def describe_bytes(done: int, total: int) -> str:
    """Put the progress of data that are downloaded, or decoded for the first time, into words.

    >>> describe_bytes(17_000_000, 170_498_071)
    'data: 17 of 170 MB'
    """
    return f"data: {done / 1e6:.0f} of {total / 1e6:.0f} MB"


def choose_progress(spec: RunSpec, wanted: bool, stream: TextIO | None = None) -> Progress:
    """Choose a bar for a terminal, lines for a log, silence if no progress is wanted."""
    stream = stream if stream is not None else sys.stderr
    if not wanted:
        return Progress()
    return Bar(spec, stream) if stream.isatty() else Lines(spec, stream)
