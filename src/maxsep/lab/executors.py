"""Where runs are trained: here, in several processes of this machine, or elsewhere; and what is done for one run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal, Self

import torch

from maxsep.lab.engine.trainer import DeadlineError, StopRequest
from maxsep.lab.recipes import After
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

GRACE = 60.0
"""Seconds that a process has to save its run after its parent died."""
Kind = Literal["start", "finished", "skipped", "failed", "postponed", "elsewhere", "lost"]


@dataclass(frozen=True)
class Event:
    """What happened to one run; `seconds` are estimated at its start or when postponed, and measured at its end.

    A run is lost if the process that trained it died; it is started again.
    """

    kind: Kind
    spec: RunSpec
    index: int
    total: int
    seconds: float = 0.0
    message: str = ""
    note: str = ""


@dataclass(frozen=True)
class Worker:
    """What is done for one run, in whatever process: hold its lock, train it, take the step after training."""

    runs: Path
    train: Callable[..., object]
    after: After | None = None
    data_root: str | Path | None = None
    execution: Execution = field(default_factory=Execution)
    download: bool = False
    progress: bool = False
    deadline: float | None = None
    clock: Callable[[], float] = time.monotonic

    def __call__(self, event: Event, tell: Callable[[Event], None]) -> Event:
        """Train a run unless it is finished, and return what became of it; `tell` is called when training starts."""
        run = Run(self.runs / event.spec.name)
        if run.state == "finished":
            return self.finish(event, run, "skipped")
        try:
            with run.lock():
                if Run(run.folder).state == "finished":  # by another process, just now
                    return self.finish(event, run, "skipped")
                tell(event)
                return self.finish(event, run, "finished")
        except BlockingIOError:  # another process trains it
            return replace(event, kind="elsewhere")

    def finish(self, event: Event, run: Run, kind: Kind) -> Event:
        """Train a run unless it is skipped, and take the step after training."""
        begin, note = self.clock(), ""
        late = {} if self.deadline is None else {"deadline": self.deadline}
        try:
            if kind == "finished":
                self.train(
                    event.spec, runs=self.runs, data_root=self.data_root, execution=self.execution,
                    download=self.download, progress=self.progress, **late,
                )  # fmt: skip
            note = self._take_step(run)
        except BlockingIOError:
            raise
        except DeadlineError:
            return replace(event, kind="postponed")
        except Exception as error:  # the failure of one run must not stop the others
            if run.state != "finished":
                with suppress(OSError):  # nor may a disk that is full
                    run.folder.mkdir(parents=True, exist_ok=True)
                run.record_failure(event.spec, error)
            kind, event = "failed", replace(event, message=f"{type(error).__name__}: {error}")
        return replace(event, kind=kind, seconds=self.clock() - begin, note=note)

    def is_done(self, run: Run) -> bool:
        """Whether nothing is left to do for a run; what cannot be read is seen to when its turn comes."""
        with suppress(ValueError, OSError):
            return run.state == "finished" and (self.after is None or self.after.is_done(run))
        return False

    def _take_step(self, run: Run) -> str:
        if self.after is None or self.after.is_done(run):
            return ""
        if self.deadline is not None and self.clock() >= self.deadline:
            return "Steps after training are not complete: the budget was spent. The same command resumes them."
        return self.after(run, data_root=self.data_root, device=self.execution.device)


class Executor(AbstractContextManager[Any]):
    """Where runs are trained. While it is entered, `submit` is called whenever it is free.

    `wait` returns, a moment later at most, what has happened: "start" events and once for every run another kind.
    `on_gpu` says what other machines train on; `patience` for how many seconds to wait for runs in training elsewhere.
    """

    on_gpu: bool | None = None
    patience = 0.0

    @property
    @abstractmethod
    def is_free(self) -> bool:
        """Whether another run can be submitted."""

    @abstractmethod
    def submit(self, event: Event) -> None:
        """Begin with a run."""

    @abstractmethod
    def wait(self) -> list[Event]:
        """Return what has happened."""


class Here(Executor):
    """This process, one run after the other."""

    def __init__(self, worker: Worker, tell: Callable[[Event], None]) -> None:
        self._worker, self._tell = worker, tell
        self._events: list[Event] = []

    def __exit__(self, *error: object) -> None:
        """Leave nothing behind."""

    @property
    def is_free(self) -> bool:
        """Whether the last run has been waited for."""
        return not self._events

    def submit(self, event: Event) -> None:
        """Train a run."""
        self._events.append(self._worker(event, self._tell))

    def wait(self) -> list[Event]:
        """Return what became of it."""
        events, self._events = self._events, []
        return events


class Processes(Executor):
    """Other processes. A signal to this one interrupts them, and ends the work by SystemExit when they have ended."""

    def __init__(self) -> None:
        self._running: dict[Any, Any] = {}
        self._stop, self._is_stopping = StopRequest(), False

    def __enter__(self) -> Self:
        self._stop.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """End what still runs; a signal that came too late for all runs still asks for an end."""
        self._kill()
        self._stop.__exit__(kind, error, trace)
        if error is None and self._stop.signum:
            raise SystemExit(128 + self._stop.signum)

    @property
    def is_free(self) -> bool:
        """Whether there is room for another run."""
        return not self._stop.signum and len(self._running) < self._room()

    def wait(self) -> list[Event]:
        """Return what the processes report within a fifth of a second."""
        if self._stop.signum and not self._is_stopping:
            self._is_stopping = True
            self._interrupt()
        events = self._collect(0.2)
        if self._stop.signum:  # processes that end now were told to, and are not started again
            events = [event for event in events if event.kind != "lost"]
        if self._is_stopping and not self._running and not events:
            raise SystemExit(128 + self._stop.signum)
        return events

    @abstractmethod
    def _room(self) -> float: ...
    @abstractmethod
    def _collect(self, seconds: float) -> list[Event]: ...
    @abstractmethod
    def _interrupt(self) -> None: ...
    @abstractmethod
    def _kill(self) -> None: ...


class Pool(Processes):
    """Processes of this machine, which end with this one."""

    def __init__(self, worker: Worker, jobs: int) -> None:
        super().__init__()
        self._arguments, self._jobs = (worker, max(1, torch.get_num_threads() // jobs)), jobs
        self._children: dict[Any, Any] = {}

    def _room(self) -> float:
        return self._jobs

    def submit(self, event: Event) -> None:
        """Give a run to an idle process, or to a new one."""
        connection = next((c for c in self._children if c not in self._running), None) or self._start()
        self._running[connection] = event
        with suppress(BrokenPipeError):  # it has died: `wait` will see that
            connection.send(event)

    def _start(self) -> Any:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._children[ours] = context.Process(target=_work_for_parent, args=(*self._arguments, theirs))
        self._children[ours].start()
        theirs.close()  # the pipe ends with the child
        return ours

    def _collect(self, seconds: float) -> list[Event]:
        events: list[Event] = []
        ready: list[Any] = wait(list(self._running), timeout=seconds)
        for connection in ready:
            try:
                event: Event | OSError = connection.recv()
            except (EOFError, ConnectionResetError):
                self._children.pop(connection).join()
                event = replace(self._running[connection], kind="lost", message="its process died")
            if isinstance(event, OSError):
                raise event
            if event.kind != "start":
                del self._running[connection]
            events.append(event)
        return events

    def _interrupt(self) -> None:
        for child in self._children.values():
            child.terminate()

    def _kill(self) -> None:
        for child in self._children.values():
            child.kill()
            child.join()


def _work_for_parent(worker: Worker, threads: int, connection: Any) -> None:
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):  # the parent is gone, or all end
        while True:
            try:
                answer: Event | OSError = worker(connection.recv(), connection.send)
            except OSError as error:  # the folder of runs cannot be written: an error of the call, as without processes
                answer = error
            connection.send(answer)


def _end_with_parent() -> None:
    """Wait for the parent's end, however it comes; then let the engine save the run and end this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(128 + signal.SIGTERM)
