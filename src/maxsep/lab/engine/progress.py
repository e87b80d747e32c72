"""What a run says while it trains: a bar, lines in a log, TensorBoard."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self, TextIO

from maxsep.lab.spec import RunSpec
from maxsep.packages import load_package

SILENCE = 30.0
"""Seconds after which a log gets another line."""


class Progress:
    """Show a run's progress: a bar on a terminal, plain lines in a log, or nothing if `stream` is None."""

    def __init__(self, spec: RunSpec, stream: TextIO | None) -> None:
        self._spec, self._stream, self._tenths = spec, stream, 0
        self._done = self._total = 0
        self._spoken = time.monotonic()
        self._bar: Any = None
        if stream is not None and stream.isatty():
            rich, console = load_package("rich.progress", "lab"), load_package("rich.console", "lab")
            columns = [rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn()]
            columns += [rich.TimeRemainingColumn(), rich.TextColumn("{task.fields[status]}")]
            self._bar = rich.Progress(*columns, console=console.Console(file=stream))
            self._task = self._bar.add_task(spec.name, total=None, status="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def download(self, done: int, total: int) -> None:
        """Show how many bytes of a dataset are downloaded or decoded; in a log every tenth."""
        before, self._tenths = self._tenths, 10 * done // total
        self._status(f"data: {done / 1e6:.0f} of {total / 1e6:.0f} MB", in_log=self._tenths != before)

    def start(self, done: int, total: int) -> None:
        """Show how many steps the run has, and how many were done before a resume."""
        self._done, self._total = done, total
        if self._bar:
            self._bar.update(self._task, completed=done, total=total, status="")
        else:
            self.note(f"resumed at step {done} of {total}" if done else f"training, {total} steps")

    def step(self) -> None:
        """Count one step; in a log say so where nothing was said for half a minute."""
        self._done += 1
        if self._bar:
            self._bar.advance(self._task)
        elif self._is_silent():
            self.note(f"step {self._done} of {self._total}")

    def _is_silent(self) -> bool:
        return time.monotonic() - self._spoken >= SILENCE

    def epoch(self, row: dict[str, Any]) -> None:
        """Show the numbers of an epoch; in a log of some, and of one half a minute after the last line."""
        text = f"epoch {row['epoch'] + 1}/{self._spec.trained_epochs}, loss {row['train_loss']:.3f}"
        text += f", top-1 {100 * row['top1']:.2f} %" if "top1" in row else ""
        is_due = "top1" in row or (self._spec.evaluate_every == 0 and row["epoch"] % 10 == 0)
        self._status(text, in_log=is_due or self._is_silent())

    def _status(self, text: str, in_log: bool) -> None:
        if self._bar:
            self._bar.update(self._task, status=text)
        elif in_log:
            self.note(text)

    def note(self, text: str) -> None:
        """Print a message, in a log with the run's name and loss."""
        self._spoken = time.monotonic()
        if self._bar:
            self._bar.console.print(text)
        elif self._stream is not None:
            print(f"{self._spec.title}: {text}", file=self._stream, flush=True)


class Board:
    """The numbers of every epoch for TensorBoard, in a folder that is written anew: resumed epochs are in it once."""

    def __init__(self, folder: Path, rows: Iterable[dict[str, Any]]) -> None:
        load_package("tensorboard", "tensorboard")
        shutil.rmtree(folder, ignore_errors=True)
        self._writer = load_package("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))
        for row in rows:
            self.add(row)

    def add(self, row: dict[str, Any]) -> None:
        """Write the numbers of an epoch; epochs count from 1."""
        for name in row.keys() - {"epoch"}:
            if row[name] is not None:
                self._writer.add_scalar(name, row[name], row["epoch"] + 1)
        self._writer.flush()
