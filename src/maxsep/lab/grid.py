"""Train many runs: skip what is finished, resume, keep a budget, and share the work between processes or machines."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from maxsep.lab import engine
from maxsep.lab.cluster import Cluster
from maxsep.lab.data import Dataset, with_order
from maxsep.lab.engine.processes import under_torchrun
from maxsep.lab.estimate import Estimate, Estimator, format_seconds, num_train, parse_budget
from maxsep.lab.executors import Event, Executor, Here, Kind, Pool, Worker
from maxsep.lab.recipes import After, Recipe, select
from maxsep.lab.run import Run, State
from maxsep.lab.spec import Execution, RunSpec

__all__ = [
    "Event", "PlannedRun", "Summary", "check_data", "format_seconds", "num_train", "parse_budget", "plan", "reproduce",
    "run", "stages", "unique",
]  # fmt: skip


ATTEMPTS = 3
"""How often a run is started whose process dies."""
_WAITING = ("postponed", "elsewhere")


@dataclass(frozen=True)
class PlannedRun:
    """A run, its state and how long it will take."""

    spec: RunSpec
    state: State
    estimate: Estimate


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
        return "\n".join([text + " (interrupted)" * bool(self.interrupted), *self.notes])


def unique(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """List runs once, each after the run it starts from."""
    return list({stage.name: stage for spec in specs for stage in stages(spec)}.values())


def stages(spec: RunSpec) -> list[RunSpec]:
    """List a run after the runs it starts from."""
    return [spec] if spec.start_from is None else [*stages(spec.start_from), spec]


def plan(
    specs: Sequence[RunSpec],
    *,
    runs: str | Path = "runs",
    execution: Execution | None = None,
    on_gpu: bool | None = None,
) -> list[PlannedRun]:
    """List what would be trained, what is finished and how long each run will take; trains nothing."""
    estimator = Estimator(runs, execution or Execution(), on_gpu)
    planned = []
    for spec in unique(specs):
        state = Run(Path(runs) / spec.name).state
        estimate = Estimate(0.0, "finished") if state == "finished" else estimator.estimate(spec)
        planned.append(PlannedRun(spec, state, estimate))
    return planned


def lacking_weights(specs: Sequence[RunSpec], execution: Execution | None) -> list[RunSpec]:
    """List the runs that start from a file of weights, unless one is given."""
    return [] if execution and execution.weights else [spec for spec in specs if spec.weights]


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
    on: str | None = None,
    gpus: float = 1.0,
    train: Callable[..., Path] | None = None,
    on_event: Callable[[Event], None] | None = None,
    progress: bool = False,
    download: bool = False,
    after: After | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Summary:
    """Train every run that is not finished yet, as `engine.train` does with the same arguments.

    A run that fails leaves `failure.json` in its folder, and the others go on. With a budget such as "25m", runs whose
    estimated time still fits come first; the time that is left goes to those that do not fit. The run in progress is
    stopped at a resume point when the budget is over. The same call later goes on with the rest.

    Several processes may make the same call: a run that one of them trains is left alone by the others. `jobs` starts
    that many; they end with this process, even if it is killed. The calling script needs the usual `if __name__ ==
    "__main__"` guard then. With `on`, "ray" or "ray://HOST:PORT", runs are tasks of a Ray cluster that take a part
    `gpus` of a GPU each, where it has any. A run whose process dies is started again, twice.

    `on_event` is called when a run starts, ends, is skipped, fails, is postponed or is trained elsewhere. `after` is a
    step after training, taken for every finished run that lacks it. Tests replace `train` and `clock`.
    """
    start, chosen, execution = clock(), unique(specs), execution or Execution()
    if on is not None and jobs > 1:
        raise ValueError(f"jobs are processes of this machine: with on={on!r} they must be 1, got {jobs}.")
    for spec in chosen:  # a finished run that is damaged is not to be skipped as one that is there
        Run(Path(runs) / spec.name).verify()
    unfinished = sum(Run(Path(runs) / spec.name).state != "finished" for spec in chosen)
    if unfinished and under_torchrun() and (world := os.environ.get("WORLD_SIZE", "1")) != "1":
        # each process would take another run and average their gradients
        advice = "name --learning-rate, without --radius auto and --early-stopping, or use --jobs without torchrun"
        raise ValueError(f"torchrun must train a single run, got {world} processes and a list of runs: {advice}.")
    on, jobs, tell = on if unfinished else None, min(jobs, unfinished), on_event or (lambda event: None)
    worker = Worker(
        runs=Path(runs),
        train=train or engine.train,
        after=after,
        data_root=data_root,
        execution=execution,
        download=download,
        progress=progress and jobs <= 1 and on is None,
        deadline=None if budget is None else start + parse_budget(budget),
        clock=clock,
    )
    local = Pool(worker, jobs) if jobs > 1 else Here(worker, tell)
    summary = _Loop(worker, local if on is None else Cluster(worker, on, gpus), tell).run(chosen)
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

    Arguments are those of `Recipe.specs` and `run`. Runs that start from a file of weights need `execution.weights`;
    without it a note counts them.
    """
    start, left = clock(), None if budget is None else parse_budget(budget)
    settings |= {"runs": runs, "data_root": data_root, "download": download, "after": recipe.after, "clock": clock}
    chosen = recipe.specs(seeds, epochs, only, precision, max_train, max_test)
    specs = with_order(chosen, data_root, download=download)
    lacking = lacking_weights(specs, settings.get("execution"))
    specs = [spec for spec in specs if spec not in lacking]
    summary = run(specs, budget=left, **settings)
    if lacking:
        summary.notes.append(f"{len(lacking)} runs left out: they start from pretrained weights (--weights FILE)")
    if recipe.follow_up is None or summary.interrupted or summary.postponed or summary.elsewhere:
        return summary
    finished = [record for spec in specs if (record := Run(Path(runs) / spec.name)).state == "finished"]
    following = select(recipe.follow_up(finished, recipe.choose_seeds(seeds)), only)
    following = [spec for spec in following if spec not in specs]
    left = None if left is None else max(left - (clock() - start), 1e-9)
    return summary.add(run(following, budget=left, **settings))


class _Loop:
    """Give runs to an executor until none is free: first those that fit into the budget, then the others."""

    def __init__(self, worker: Worker, executor: Executor, on_event: Callable[[Event], None]) -> None:
        self.worker, self.executor, self.on_event = worker, executor, on_event
        self.summary, self.must_fit = Summary(), True
        self.running: set[RunSpec] = set()
        self.waiting: deque[Event] = deque()
        self.lost: Counter[RunSpec] = Counter()

    def run(self, specs: Sequence[RunSpec]) -> Summary:
        """Train the runs; return what became of them."""
        self.waiting.extend(Event("start", spec, index, len(specs)) for index, spec in enumerate(specs, 1))
        # a clock may be set back, so that times are compared for equality
        self.before = {spec.name: _failure_of(Run(self.worker.runs / spec.name)) for spec in specs}
        try:
            with self.executor:
                self.estimator = Estimator(self.worker.runs, self.worker.execution, self.executor.on_gpu)
                self._work()
        except KeyboardInterrupt:
            self.summary.interrupted = 130
        except SystemExit as stop:  # the state of runs was saved after a signal
            self.summary.interrupted = stop.code if isinstance(stop.code, int) and stop.code else 130
        else:
            for event in sorted(self.waiting, key=lambda event: event.index):
                getattr(self.summary, event.kind).append(event.spec)
                self.on_event(event)
        return self.summary

    def _work(self) -> None:
        refused, progress = 0, time.monotonic()  # refused: runs in a row that had to wait
        while self.waiting or self.running:
            if self.executor.is_free and refused < len(self.waiting):
                events = self._consider(self.waiting.popleft())
            elif self.running or not self.executor.is_free:
                events = self.executor.wait()
            elif self.must_fit and any(event.kind == "postponed" for event in self.waiting):
                self.must_fit, refused = False, 0
                continue
            elif self._is_hopeful(progress):
                time.sleep(1)
                refused = 0  # another process may have finished or released some
                continue
            else:
                break
            for event in events:
                if self._record(event):
                    refused, progress = 0, time.monotonic()
                elif event.kind in _WAITING:
                    refused += 1

    def _is_hopeful(self, progress: float) -> bool:
        """Whether runs that another process trains may soon be free."""
        is_patient = time.monotonic() < progress + self.executor.patience
        return is_patient and any(event.kind == "elsewhere" for event in self.waiting)

    def _record(self, event: Event) -> bool:
        """Take note of an event; return whether another run may be free now."""
        if event.kind == "lost":
            self.lost[event.spec] += 1
            if self.lost[event.spec] >= ATTEMPTS:
                error = RuntimeError(f"{event.message}, {ATTEMPTS} times")
                Run(self.worker.runs / event.spec.name).record_failure(event.spec, error)
                event = replace(event, kind="failed", message=str(error))
        if event.kind in ("start", "lost"):
            self.on_event(event)
        if event.kind == "start":
            return False
        self.running.discard(event.spec)
        if event.kind == "lost":
            self.waiting.appendleft(replace(event, kind="elsewhere", message=""))
            return True
        if event.kind in _WAITING:
            self.waiting.append(replace(event, seconds=self.estimator.estimate(event.spec).seconds))
            return False
        if event.kind == "failed":
            self.summary.failed.append((event.spec, event.message))
        else:
            getattr(self.summary, event.kind).append(event.spec)
        if event.note and event.note not in self.summary.notes:
            self.summary.notes.append(event.note)
        self.on_event(event)
        return True

    def _consider(self, event: Event) -> list[Event]:
        """Submit a run if it is due and free; else return what becomes of it."""
        spec, first = event.spec, event.spec.start_from
        run = Run(self.worker.runs / spec.name)
        if self.worker.is_done(run):
            return [replace(event, kind="skipped", seconds=0.0)]
        if run.state != "finished":
            if first is not None and first in (failed for failed, _ in self.summary.failed):
                return [replace(event, kind="failed", message=f"the run it starts from failed: {first.name}")]
            if (kind := self._kind_of(first)) or self._failed_elsewhere(run):
                return [replace(event, kind=kind or "elsewhere")]
            self.estimator.refresh()
            event = replace(event, kind="start", seconds=self.estimator.estimate(spec).seconds)
            deadline = self.worker.deadline
            if deadline is not None and self.worker.clock() + self.must_fit * event.seconds >= deadline:
                return [replace(event, kind="postponed")]
        self.running.add(spec)
        self.executor.submit(event)
        return []

    def _kind_of(self, spec: RunSpec | None) -> Kind | None:
        """For what a run waits; None if it does not wait."""
        return "elsewhere" if spec in self.running else next((e.kind for e in self.waiting if e.spec == spec), None)

    def _failed_elsewhere(self, run: Run) -> bool:
        """Whether another process tried this run since this call began, and failed."""
        return _failure_of(run) not in (None, self.before[run.name])


def _failure_of(run: Run) -> int | None:
    """Return when a run failed, None unless it did."""
    return (run.folder / "failure.json").stat().st_mtime_ns if run.state == "failed" else None
