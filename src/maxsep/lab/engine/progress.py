"""What is seen of a run while it trains, and the signals that ask it to stop."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Self, TextIO

from maxsep.lab.spec import RunSpec
from maxsep.packages import load_package


class Progress:
    """Show nothing; the base of the classes that do."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def download(self, done: int, total: int) -> None:
        """Show how many bytes of a dataset are downloaded or decoded."""

    def start(self, done: int, total: int) -> None:
        """Show how many steps the run has, and how many were done before a resume."""

    def step(self) -> None:
        """Count one step."""

    def epoch(self, row: dict[str, Any]) -> None:
        """Show the line of an epoch that has ended."""

    def note(self, text: str) -> None:
        """Show a message."""


class Lines(Progress):
    """Print one plain line for every evaluated epoch."""

    def __init__(self, spec: RunSpec, stream: TextIO) -> None:
        self._spec, self._stream, self._tenths = spec, stream, 0

    def download(self, done: int, total: int) -> None:
        """Print a line every tenth of the way."""
        if (tenths := 10 * done // total) != self._tenths:
            self._tenths = tenths
            self.note(describe_bytes(done, total))

    def start(self, done: int, total: int) -> None:
        """Print the number of steps."""
        self.note(f"resumed at step {done} of {total}" if done else f"training, {total} steps")

    def epoch(self, row: dict[str, Any]) -> None:
        """Print an evaluated epoch."""
        if "top1" in row:
            self.note(describe(self._spec, row))

    def note(self, text: str) -> None:
        """Print a line that begins with the run's name and loss."""
        print(f"{self._spec.title}: {text}", file=self._stream, flush=True)


class Bar(Progress):
    """Show a bar that counts steps, with the last evaluation."""

    def __init__(self, spec: RunSpec, stream: TextIO) -> None:
        rich, console = load_package("rich.progress", "lab"), load_package("rich.console", "lab")
        columns = [rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn()]
        columns += [rich.TimeRemainingColumn(), rich.TextColumn("{task.fields[status]}")]
        self._spec, self._bar = spec, rich.Progress(*columns, console=console.Console(file=stream))
        self._task = self._bar.add_task(spec.name, total=None, status="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def download(self, done: int, total: int) -> None:
        """Show the bytes next to the bar."""
        self._bar.update(self._task, status=describe_bytes(done, total))

    def start(self, done: int, total: int) -> None:
        """Set the bar to the steps that a resumed run has done already."""
        self._bar.update(self._task, completed=done, total=total, status="")

    def step(self) -> None:
        """Advance by one step."""
        self._bar.advance(self._task)

    def epoch(self, row: dict[str, Any]) -> None:
        """Show the newest numbers next to the bar."""
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
    """Put the progress of a download, or of decoding, into words.

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


class StopRequest:
    """While entered, remember the first SIGTERM or SIGINT, so that the step ends and the state is saved.

    A second signal of the same kind acts as it did before. Outside the main thread, where Python handles no signals, it
    never asks for a stop. A signal is never lost: if the block ends with an error instead of a stop, SystemExit
    replaces the error.

    Attributes:
        signum: The signal received, 0 before there was one.
    """

    def __init__(self) -> None:
        self.signum = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.signum and kind is not None and issubclass(kind, Exception):
            raise SystemExit(128 + self.signum) from error

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        signal.signal(signum, self._before[signum])
