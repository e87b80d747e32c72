"""Train the runs of a list, in one process or in several that share it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

import torch

from maxsep.lab.engine.trainer import StopRequest
from maxsep.lab.estimate import Estimator, format_seconds
from maxsep.lab.recipes import After
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

GRACE = 60.0
"""Seconds that a process has to save its run after its parent died."""
Kind = Literal["start", "finished", "skipped", "failed", "postponed", "elsewhere"]


@dataclass(frozen=True)
class Event:
    """What happened to one run; `seconds` are estimated at its start or when postponed, and measured at its end."""

    kind: Kind
    spec: RunSpec
    index: int
    total: int
    seconds: float = 0.0
    message: str = ""


@dataclass
class Summary:
    """What became of the runs.

    `elsewhere` are runs that another process is training, and runs that start from one of these. `interrupted` is the
    exit status of an interruption: 130 after Ctrl-C, 143 after SIGTERM, else 0.
    """

    finished: list[RunSpec] = field(default_factory=list)
    skipped: list[RunSpec] = field(default_factory=list)
    failed: list[tuple[RunSpec, str]] = field(default_factory=list)
    postponed: list[RunSpec] = field(default_factory=list)
    elsewhere: list[RunSpec] = field(default_factory=list)
    interrupted: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> int:
        """Exit status: 0 if every run that was started ended well, 1 after a failure, 130 or 143 when interrupted."""
        return self.interrupted or int(bool(self.failed))

    def add(self, other: Summary) -> Summary:
        """Add what became of more runs."""
        for name in ("finished", "skipped", "failed", "postponed", "elsewhere", "notes"):
            getattr(self, name).extend(getattr(other, name))
        self.interrupted, self.seconds = other.interrupted, self.seconds + other.seconds
        return self

    def __str__(self) -> str:
        parts = [f"{len(self.finished)} trained", f"{len(self.skipped)} already finished"]
        rest = (self.failed, "failed"), (self.postponed, "postponed"), (self.elsewhere, "in training elsewhere")
        parts += [f"{len(specs)} {word}" for specs, word in rest if specs]
        text = f"{', '.join(parts)} in {format_seconds(self.seconds)}"
        return "\n".join([text + " (interrupted; the same command resumes)" * bool(self.interrupted), *self.notes])


@dataclass
class Worker:
    """One process that works through a list of runs."""

    runs: Path
    data_root: str | Path | None
    execution: Execution
    train: Callable[..., Path]
    deadline: float | None
    progress: bool
    download: bool
    after: After | None
    began: float

    def run(self, specs: Sequence[RunSpec], on_event: Callable[[Event], None], clock: Callable[[], float]) -> Summary:
        """Go through the list until no run is free."""
        self.summary, self.clock = Summary(), clock
        self.estimator = Estimator(self.runs, self.execution)
        pending = list(enumerate(specs, 1))
        while pending:
            self.summary.elsewhere = []
            for index, spec in pending:
                self._consider(spec, partial(_tell, on_event, spec, index, len(specs)))
                if self.summary.interrupted:
                    return self.summary
            busy = [(index, spec) for index, spec in pending if spec in self.summary.elsewhere]
            if len(busy) == len(pending):
                break
            pending = busy  # while this process trained, another one may have finished or released them
        for index, spec in pending:
            on_event(Event("elsewhere", spec, index, len(specs)))
        return self.summary

    def _consider(self, spec: RunSpec, tell: Callable[..., None]) -> None:
        """Train a run if it is due and free."""
        summary, run, first = self.summary, Run(self.runs / spec.name), spec.start_from
        if run.state == "finished":
            self._work(spec, run, "skipped", tell)
        elif first is not None and first in (failed for failed, _ in summary.failed):
            self._fail(spec, f"the run it starts from failed: {first.name}", tell)
        elif first in summary.elsewhere or self._failed_elsewhere(run):
            summary.elsewhere.append(spec)
        else:
            self.estimator.refresh()
            seconds = self.estimator.estimate(spec).seconds
            if first in summary.postponed or (self.deadline is not None and self.clock() + seconds > self.deadline):
                summary.postponed.append(spec)
                tell("postponed", seconds)
                return
            try:
                with run.lock():
                    kind: Kind = "skipped" if Run(run.folder).state == "finished" else "finished"
                    if kind == "finished":
                        tell("start", seconds)
                    self._work(spec, run, kind, tell)
            except BlockingIOError:
                summary.elsewhere.append(spec)

    def _work(self, spec: RunSpec, run: Run, kind: Kind, tell: Callable[..., None]) -> None:
        """Train a run unless it is skipped, take the step after training, and note what became of it."""
        begin = self.clock()
        try:
            if kind == "finished":
                self.train(
                    spec, data_root=self.data_root, runs=self.runs, execution=self.execution, progress=self.progress,
                    download=self.download,
                )  # fmt: skip
            self._take_step(run)
        except KeyboardInterrupt:
            self.summary.interrupted = 130
        except SystemExit as stop:  # the engine saved the run's state after a signal
            self.summary.interrupted = stop.code if isinstance(stop.code, int) and stop.code else 130
        except BlockingIOError:  # another process trains it
            raise
        except Exception as error:  # the failure of one run must not stop the others
            if run.state != "finished":
                run.folder.mkdir(parents=True, exist_ok=True)
                run.record_failure(spec, error)
            self._fail(spec, f"{type(error).__name__}: {error}", tell, self.clock() - begin)
        else:
            (self.summary.finished if kind == "finished" else self.summary.skipped).append(spec)
            tell(kind, self.clock() - begin)

    def _take_step(self, run: Run) -> None:
        if self.after is None or self.after.is_done(run):
            return
        if self.deadline is not None and self.clock() >= self.deadline:
            note = "Steps after training are not complete: the budget was spent. The same command resumes them."
        else:
            note = self.after(run, data_root=self.data_root, device=self.execution.device)
        if note and note not in self.summary.notes:
            self.summary.notes.append(note)

    def _fail(self, spec: RunSpec, message: str, tell: Callable[..., None], seconds: float = 0.0) -> None:
        self.summary.failed.append((spec, message))
        tell("failed", seconds, message)

    def _failed_elsewhere(self, run: Run) -> bool:
        """Whether another process tried this run since this call began, and failed."""
        return run.state == "failed" and (run.folder / "failure.json").stat().st_mtime >= self.began


def _tell(
    on_event: Callable[[Event], None], spec: RunSpec, index: int, total: int, kind: Kind, seconds: float = 0.0,
    message: str = "",
) -> None:  # fmt: skip
    on_event(Event(kind, spec, index, total, seconds, message))


def share(worker: Worker, specs: Sequence[RunSpec], jobs: int, on_event: Callable[[Event], None]) -> Summary:
    """Let several processes work through the list; a signal to this one is passed on, and their results are merged."""
    worker, threads = replace(worker, progress=False), max(1, torch.get_num_threads() // jobs)
    context = multiprocessing.get_context("spawn")
    children: dict[Any, Any] = {}
    results: list[Summary | int] = []
    with StopRequest() as stop:
        try:
            for _ in range(jobs):
                receive, send = context.Pipe(duplex=False)
                child = children[receive] = context.Process(
                    target=_work_for_parent, args=(worker, specs, threads, send)
                )
                child.start()
                send.close()  # the pipe ends with the child
            waiting = True
            while children:
                if stop.signum and waiting:
                    waiting = False
                    for child in children.values():
                        child.terminate()  # it saves its run first
                for connection in wait(list(children), timeout=0.2):
                    try:
                        message = connection.recv()  # type: ignore[call-arg, union-attr]
                    except EOFError:
                        child = children.pop(connection)
                        child.join()
                        results += [child.exitcode] if child.exitcode else []
                    else:
                        results += [message] if isinstance(message, Summary) else []
                        if isinstance(message, Event) and message.kind in ("start", "finished", "failed"):
                            on_event(message)
        finally:
            for child in children.values():
                child.kill()
    return _merge(worker.runs, specs, results, stop.signum)


def _work_for_parent(worker: Worker, specs: Sequence[RunSpec], threads: int, connection: Any) -> None:
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(OSError):  # the parent is gone
        connection.send(worker.run(specs, connection.send, time.monotonic))


def _end_with_parent() -> None:
    """Wait for the parent's end, however it comes; then let the engine save the run and end this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(128 + signal.SIGTERM)


def _merge(runs: Path, specs: Sequence[RunSpec], results: Sequence[Summary | int], signum: int) -> Summary:
    """Sum up what several processes report: summaries, and exit codes of those that ended without one."""
    merged, summaries = Summary(), [result for result in results if isinstance(result, Summary)]
    codes = [result for result in results if isinstance(result, int)]
    failed = {spec: message for summary in summaries for spec, message in summary.failed}
    finished = {spec for summary in summaries for spec in summary.finished}
    postponed = {spec for summary in summaries for spec in summary.postponed}
    for spec in specs:
        if spec in failed:
            merged.failed.append((spec, failed[spec]))
        elif Run(runs / spec.name).state == "finished":
            (merged.finished if spec in finished else merged.skipped).append(spec)
        elif spec in postponed:
            merged.postponed.append(spec)
        elif codes and not signum:
            merged.failed.append((spec, f"a process ended with exit code {codes[0]}"))
        else:
            merged.elsewhere.append(spec)
    merged.notes = list(dict.fromkeys(note for summary in summaries for note in summary.notes))
    merged.interrupted = 128 + signum if signum else max((summary.interrupted for summary in summaries), default=0)
    return merged
