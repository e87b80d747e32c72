"""Train many runs: skip what is finished, resume, keep a budget, and share the work between processes."""

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

from maxsep.lab import engine
from maxsep.lab.data import Dataset, with_order
from maxsep.lab.engine.trainer import DeadlineError, StopRequest
from maxsep.lab.estimate import Estimate, Estimator, format_seconds, num_train, parse_budget
from maxsep.lab.recipes import After, Recipe, select
from maxsep.lab.run import Run, State
from maxsep.lab.spec import Execution, RunSpec

__all__ = [
    "Event", "PlannedRun", "Summary", "check_data", "format_seconds", "num_train", "parse_budget", "plan", "reproduce",
    "run", "stages", "unique",
]  # fmt: skip


GRACE = 60.0
"""Seconds that a process has to save its run after its parent died."""
Kind = Literal["start", "finished", "skipped", "failed", "postponed", "elsewhere"]


@dataclass(frozen=True)
class PlannedRun:
    """A run, its state and how long it will take."""

    spec: RunSpec
    state: State
    estimate: Estimate


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


def unique(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """List runs once, each after the run it starts from."""
    return list({stage.name: stage for spec in specs for stage in stages(spec)}.values())


def stages(spec: RunSpec) -> list[RunSpec]:
    """List a run after the runs it starts from.

    >>> [stage.epochs for stage in stages(RunSpec(epochs=10, start_from=RunSpec(epochs=200)))]
    [200, 10]
    """
    return [spec] if spec.start_from is None else [*stages(spec.start_from), spec]


def plan(
    specs: Sequence[RunSpec], *, runs: str | Path = "runs", execution: Execution | None = None
) -> list[PlannedRun]:
    """List what would be trained, what is finished and how long each run will take; trains nothing."""
    estimator = Estimator(runs, execution or Execution())
    planned = []
    for spec in unique(specs):
        state = Run(Path(runs) / spec.name).state
        estimate = Estimate(0.0, "finished") if state == "finished" else estimator.estimate(spec)
        planned.append(PlannedRun(spec, state, estimate))
    return planned


def check_data(
    specs: Sequence[RunSpec],
    *,
    after: After | None = None,
    runs: str | Path = "runs",
    data_root: str | Path | None = None,
    download: bool = False,
) -> None:
    """Read every dataset that unfinished runs need, once, so that a missing one is one error and not one per run.

    The dataset of the first run is read last, and so is still in memory when training starts.
    """
    unfinished = (spec for spec in specs if Run(Path(runs) / spec.name).state != "finished")
    datasets = [Dataset.parse(spec.dataset) for spec in unfinished]
    for name in reversed(dict.fromkeys(data.source if data.open_set else data.name for data in datasets)):
        Dataset.parse(name).read(data_root, download=download)
    if after is not None:
        after.check(specs, Path(runs), data_root, download)


def run(
    specs: Sequence[RunSpec],
    *,
    runs: str | Path = "runs",
    data_root: str | Path | None = None,
    execution: Execution | None = None,
    budget: str | float | None = None,
    jobs: int = 1,
    train: Callable[..., Path] | None = None,
    on_event: Callable[[Event], None] | None = None,
    progress: bool = False,
    download: bool = False,
    after: After | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Summary:
    """Train every run that is not finished yet, as `engine.train` does with the same arguments.

    A run that fails leaves `failure.json` in its folder, and the others go on. With a budget such as "25m", a run
    starts only if its estimated time still fits, and a shorter one may take its place. A run that takes longer than its
    estimate is stopped at a resume point when the budget is over. The same call later goes on with the rest.

    Several processes may make the same call: a run that one of them trains is left alone by the others. `jobs` starts
    that many; they end with this process, even if it is killed. The calling script needs the usual `if __name__ ==
    "__main__"` guard then.

    `on_event` is called when a run starts, ends, is skipped, fails, is postponed or is trained elsewhere. `after` is a
    step after training, taken for every finished run that lacks it. Tests replace `train` and `clock`.
    """
    start, chosen, execution = clock(), unique(specs), execution or Execution()
    jobs = min(jobs, sum(Run(Path(runs) / spec.name).state != "finished" for spec in chosen))
    settings: dict[str, Any] = {"data_root": data_root, "runs": runs, "execution": execution, "download": download}
    deadline = None if budget is None else start + parse_budget(budget)
    settings |= {} if deadline is None else {"deadline": deadline}
    worker = _Worker(
        runs=Path(runs),
        train=partial(train or engine.train, progress=progress and jobs <= 1, **settings),
        after=after,
        data_root=data_root,
        execution=execution,
        deadline=deadline,
        clock=clock,
        on_event=on_event or (lambda event: None),
    )
    summary = _share(worker, chosen, jobs) if jobs > 1 else worker.run(chosen)
    summary.seconds = clock() - start
    return summary


def reproduce(
    recipe: Recipe,
    *,
    seeds: int | Sequence[int] | None = None,
    epochs: int | None = None,
    only: str | None = None,
    precision: str | None = None,
    max_train: int | None = None,
    max_test: int | None = None,
    data_root: str | Path | None = None,
    download: bool = False,
    runs: str | Path = "runs",
    budget: str | float | None = None,
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> Summary:
    """Train the runs of a recipe, take its step after training, and train the runs that follow from their results.

    Arguments are those of `Recipe.specs` and `run`.
    """
    start, left = clock(), None if budget is None else parse_budget(budget)
    settings |= {"runs": runs, "data_root": data_root, "download": download, "after": recipe.after, "clock": clock}
    chosen = recipe.specs(seeds, epochs, only, precision, max_train, max_test)
    specs = with_order(chosen, data_root, download=download)
    summary = run(specs, budget=left, **settings)
    if recipe.follow_up is None or summary.interrupted or summary.postponed or summary.elsewhere:
        return summary
    finished = [found for spec in specs if (found := Run(Path(runs) / spec.name)).state == "finished"]
    following = select(recipe.follow_up(finished, recipe.choose_seeds(seeds)), only)
    following = [spec for spec in following if spec not in specs]
    left = None if left is None else max(left - (clock() - start), 1e-9)
    return summary.add(run(following, budget=left, **settings))


@dataclass
class _Worker:
    """One process that works through a list of runs."""

    runs: Path
    train: Callable[[RunSpec], object]
    after: After | None
    data_root: str | Path | None
    execution: Execution
    deadline: float | None
    clock: Callable[[], float]
    on_event: Callable[[Event], None]
    began: float = field(default_factory=time.time)

    def run(self, specs: Sequence[RunSpec]) -> Summary:
        """Go through the list until no run is free."""
        self.summary, self.estimator = Summary(), Estimator(self.runs, self.execution)
        pending = [Event("start", spec, index, len(specs)) for index, spec in enumerate(specs, 1)]
        while pending:
            self.summary.elsewhere = []
            try:
                busy = [event for event in pending if self._record(self._consider(event)) == "elsewhere"]
            except KeyboardInterrupt:
                self.summary.interrupted = 130
                return self.summary
            except SystemExit as stop:  # the engine saved the run's state after a signal
                self.summary.interrupted = stop.code if isinstance(stop.code, int) and stop.code else 130
                return self.summary
            if len(busy) == len(pending):
                break
            pending = busy  # while this process trained, another one may have finished or released them
        for event in pending:
            self.on_event(replace(event, kind="elsewhere"))
        return self.summary

    def _record(self, event: Event) -> Kind:
        if event.kind == "failed":
            self.summary.failed.append((event.spec, event.message))
        else:
            getattr(self.summary, event.kind).append(event.spec)
        if event.kind != "elsewhere":
            self.on_event(event)
        return event.kind

    def _consider(self, event: Event) -> Event:
        """Train a run if it is due and free; return what became of it."""
        spec, first = event.spec, event.spec.start_from
        run = Run(self.runs / spec.name)
        if run.state == "finished":
            return self._work(event, run, "skipped")
        if first is not None and first in (failed for failed, _ in self.summary.failed):
            return replace(event, kind="failed", message=f"the run it starts from failed: {first.name}")
        if first in self.summary.elsewhere or self._failed_elsewhere(run):
            return replace(event, kind="elsewhere")
        self.estimator.refresh()
        start = replace(event, seconds=self.estimator.estimate(spec).seconds)
        late = self.deadline is not None and self.clock() + start.seconds > self.deadline
        if late or first in self.summary.postponed:
            return replace(start, kind="postponed")
        try:
            with run.lock():
                if Run(run.folder).state == "finished":  # by another process, just now
                    return self._work(event, run, "skipped")
                self.on_event(start)
                return self._work(event, run, "finished")
        except BlockingIOError:
            return replace(event, kind="elsewhere")

    def _work(self, event: Event, run: Run, kind: Kind) -> Event:
        """Train a run unless it is skipped, and take the step after training."""
        begin = self.clock()
        try:
            if kind == "finished":
                self.train(event.spec)
            self._take_step(run)
        except BlockingIOError:  # another process trains it
            raise
        except DeadlineError:
            return replace(event, kind="postponed", seconds=self.estimator.estimate(event.spec).seconds)
        except Exception as error:  # the failure of one run must not stop the others
            if run.state != "finished":
                run.folder.mkdir(parents=True, exist_ok=True)
                run.record_failure(event.spec, error)
            kind, event = "failed", replace(event, message=f"{type(error).__name__}: {error}")
        return replace(event, kind=kind, seconds=self.clock() - begin)

    def _take_step(self, run: Run) -> None:
        if self.after is None or self.after.is_done(run):
            return
        if self.deadline is not None and self.clock() >= self.deadline:
            note = "Steps after training are not complete: the budget was spent. The same command resumes them."
        else:
            note = self.after(run, data_root=self.data_root, device=self.execution.device)
        if note and note not in self.summary.notes:
            self.summary.notes.append(note)

    def _failed_elsewhere(self, run: Run) -> bool:
        """Whether another process tried this run since this call began, and failed."""
        return run.state == "failed" and (run.folder / "failure.json").stat().st_mtime >= self.began


def _share(worker: _Worker, specs: Sequence[RunSpec], jobs: int) -> Summary:
    """Let several processes work through the list, then this one through what they left.

    A signal to this process is passed on to the others, which save their runs and end.
    """
    context, threads = multiprocessing.get_context("spawn"), max(1, torch.get_num_threads() // jobs)
    children: dict[Any, Any] = {}
    results: list[Event] = []
    with StopRequest() as stop:
        try:
            for _ in range(jobs):
                receive, send = context.Pipe(duplex=False)
                arguments = (replace(worker, on_event=send.send), specs, threads)
                children[receive] = context.Process(target=_work_for_parent, args=arguments)
                children[receive].start()
                send.close()  # the pipe ends with the child
            signalled = False
            while children:
                if stop.signum and not signalled:
                    signalled = True
                    for child in children.values():
                        child.terminate()
                ready: list[Any] = wait(list(children), timeout=0.2)
                for connection in ready:
                    try:
                        event = connection.recv()
                    except EOFError:
                        children.pop(connection).join()
                        continue
                    if event.kind in ("start", "finished", "failed"):
                        results.append(event)
                        worker.on_event(event)
        finally:
            for child in children.values():
                child.kill()
    failed = {event.spec: event.message for event in results if event.kind == "failed"}
    finished = [event.spec for event in results if event.kind == "finished"]
    rest = [spec for spec in specs if spec not in failed and spec not in finished]
    summary = Summary(finished=finished, failed=list(failed.items()))
    return summary.add(Summary(interrupted=128 + stop.signum) if stop.signum else worker.run(rest))


def _work_for_parent(worker: _Worker, specs: Sequence[RunSpec], threads: int) -> None:
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(BrokenPipeError):  # the parent is gone
        worker.run(specs)


def _end_with_parent() -> None:
    """Wait for the parent's end, however it comes; then let the engine save the run and end this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(128 + signal.SIGTERM)
