"""Many runs: which are there, how long the rest will take, and training them within a time budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from maxsep.lab.data import Dataset, with_order
from maxsep.lab.durations import parse_budget
from maxsep.lab.estimate import Estimate, Estimator, write_wall
from maxsep.lab.outcome import Event, PlannedRun, State, Summary
from maxsep.lab.recipes import Recipe, Selection, canonical, choose_radii, validation_metric
from maxsep.lab.recipes.after import After, Place
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec


class Trainer(Protocol):
    """What trains one run: `maxsep.lab.engine.train`, or a stand-in with the same signature.

    `download` is passed only where downloading is wanted, so a stand-in may do without it.
    """

    def __call__(
        self,
        spec: RunSpec,
        *,
        data_root: Any,
        runs: Any,
        execution: Execution,
        progress: bool,
        download: bool = False,
    ) -> Path:
        """Train a run, or return at once if it is finished; returns its folder."""


def unique(specs: Sequence[RunSpec], only: str | None = None) -> list[RunSpec]:
    """Keep the selected runs, each once, in order, each after the run it starts from; `scaled` at radius 1 is `plain`.

    >>> [spec.head for spec in unique([RunSpec(head="plain"), RunSpec(head="scaled"), RunSpec(head="maxsep")])]
    ['plain', 'maxsep']
    """
    kept = (canonical(spec) for spec in Selection.parse(only).apply(specs))
    return list({stage.name: stage for spec in kept for stage in stages(spec)}.values())


def stages(spec: RunSpec) -> list[RunSpec]:
    """List a run after the runs it starts from.

    >>> [stage.epochs for stage in stages(RunSpec(epochs=10, start_from=RunSpec(epochs=200)))]
    [200, 10]
    """
    return [spec] if spec.start_from is None else [*stages(spec.start_from), spec]


def plan(
    specs: Sequence[RunSpec],
    *,
    runs: str | Path = "runs",
    execution: Execution | None = None,
    only: str | None = None,
) -> list[PlannedRun]:
    """List what would be trained, what is there already and how long each run will take; trains nothing."""
    estimator = Estimator(runs, execution or Execution())
    planned = []
    for spec in unique(specs, only):
        found = Run(Path(runs) / spec.name).state
        state: State = "unfinished" if found == "failed" else found
        guess = Estimate(0.0, "finished") if state == "finished" else estimator.estimate(spec)
        planned.append(PlannedRun(spec, state, guess))
    return planned


def run(
    specs: Sequence[RunSpec],
    *,
    runs: str | Path = "runs",
    data_root: str | Path | None = None,
    execution: Execution | None = None,
    only: str | None = None,
    budget: str | float | None = None,
    train: Trainer | None = None,
    on_event: Callable[[Event], None] | None = None,
    progress: bool = False,
    download: bool = False,
    after: Callable[[RunSpec], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Summary:
    """Train every run that is not there yet.

    A finished run is never trained again. A run that fails is written down (`failure.json` in its folder) and the
    others go on. With a budget, a run starts only if its estimated time still fits, and a shorter one may take
    its place; the same call later goes on with the rest. The estimate uses the measured speed of finished runs, so
    the first run of a kind may overrun; nothing is lost then, because an interrupted run is resumed.

    Several processes may make the same call: they share the work, because a run that one of them trains is left alone
    by the others. Once they come to the end of the list they look again at what was taken.

    Args:
        specs: The runs.
        runs: The folder of run folders.
        data_root: Where the datasets lie.
        execution: How runs are computed.
        only: Keep the runs that `Selection` finds.
        budget: Time for the whole call, as `parse_budget` reads it.
        train: Trains one run; `maxsep.lab.engine.train` by default.
        on_event: Called when a run starts, ends, is skipped, fails, is postponed or is in another process's hands.
        progress: Whether each run shows its own progress.
        download: Whether missing datasets may be fetched.
        after: Called with every run that was trained; its time counts as the run's, and its failure too.
        clock: Seconds from any start.
    """
    execution = execution or Execution()
    deadline = None if budget is None else clock() + parse_budget(budget)
    more = {"download": True} if download else {}
    tell = on_event or (lambda event: None)
    job = _Job(runs, data_root, execution, train or _engine(), tell, progress, clock, more, after)
    return job.run(unique(specs, only), deadline)


def reproduce(
    recipe: Recipe,
    *,
    seeds: int | Sequence[int] | None = None,
    epochs: int | None = None,
    only: str | None = None,
    precision: str | None = None,
    max_train: int | None = None,
    max_test: int | None = None,
    runs: str | Path = "runs",
    budget: str | float | None = None,
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> Summary:
    """Train the runs of a recipe: the search for the radius, the runs it leads to, and the step after training.

    Args:
        recipe: What to run.
        seeds: How many seeds, or which.
        epochs: Another number of epochs than the protocol's.
        only: Keep the runs that `Selection` finds.
        precision: Numbers to compute with.
        max_train: Keep at most so many training images.
        max_test: Keep at most so many test images.
        runs: The folder of run folders.
        budget: Time for the whole call.
        clock: Seconds from any start.
        **settings: Passed on to `run`.
    """
    chosen = recipe.specs(seeds, epochs, only, precision, max_train, max_test)
    specs = with_order(chosen, settings.get("data_root"), download=settings.get("download", False))
    deadline = None if budget is None else clock() + parse_budget(budget)

    def left() -> float | None:
        return None if deadline is None else max(deadline - clock(), 1e-9)

    step = recipe.after
    place = Place(
        runs=Path(runs), data_root=settings.get("data_root"), clock=clock,
        device=(settings.get("execution") or Execution()).device,
    )  # fmt: skip
    if step is not None:
        settings["after"] = lambda spec: step([spec], place)
    summary = run(specs, runs=runs, budget=left(), clock=clock, **settings)
    if recipe.sweep is not None and _may_choose(summary):
        summary.radii = chosen_radii(specs, runs)
        selection = Selection.parse(only)
        follow = [spec for spec in recipe.final_specs(summary.radii, specs) if selection.matches(spec)]
        _merge(summary, run(follow, runs=runs, budget=left(), clock=clock, **settings), set(specs))
    if step is not None and not summary.interrupted:
        _finish(step, specs, replace(place, deadline=deadline), summary)
    return summary


def _finish(step: After, specs: Sequence[RunSpec], place: Place, summary: Summary) -> None:
    """Take the last step, also for runs that were trained by an earlier call."""
    failed = {spec.name for spec, _ in summary.failed}
    notes = []
    for spec in (spec for spec in specs if spec.name not in failed):
        try:
            notes.append(step([spec], place))
        except KeyboardInterrupt:
            summary.interrupted = 130
            break
        except Exception as error:  # whatever stops one run must not stop the others
            summary.failed.append((spec, f"{type(error).__name__}: {error}"))
    summary.notes += dict.fromkeys(filter(None, notes))


def check_data(
    specs: Sequence[RunSpec], *, after: After | None = None, runs: str | Path = "runs",
    data_root: str | Path | None = None, download: bool = False,
) -> None:  # fmt: skip
    """Read every dataset that runs still need, once, so that a missing one is one error and not one for each run.

    Args:
        specs: The runs.
        after: The step after training, which may need data of its own.
        runs: The folder of run folders; what is finished there needs no data.
        data_root: Where the datasets lie.
        download: Whether missing datasets may be fetched.
    """
    needed = (spec.dataset for spec in specs if Run(Path(runs) / canonical(spec).name).state != "finished")
    splits = {dataset: Dataset.parse(dataset).open_set for dataset in needed}
    for dataset in dict.fromkeys(split.source if split else dataset for dataset, split in splits.items()):
        Dataset.parse(dataset).read(data_root, download=download)
    if after is not None:
        after.check(specs, Path(runs), data_root, download)


def attempt(
    train: Trainer, spec: RunSpec, *, runs: str | Path, data_root: Any, execution: Execution, progress: bool,
    **more: Any,
) -> Path:  # fmt: skip
    """Train a run, and leave in its folder why it failed, if it fails after the folder was made."""
    failure = Path(runs) / spec.name / "failure.json"
    try:
        folder = train(spec, data_root=data_root, runs=runs, execution=execution, progress=progress, **more)
    except BlockingIOError:  # another process is training this run: its folder is not ours to write to
        raise
    except Exception as error:
        if failure.parent.is_dir():
            Run(failure.parent).record_failure(spec, error)
        raise
    failure.unlink(missing_ok=True)
    return folder


def _may_choose(summary: Summary) -> bool:
    """Whether a search came to its end; after a failure the rest of it must not choose in silence."""
    failed = sum(spec.validation > 0 for spec, _ in summary.failed)
    if failed:
        summary.notes.append(
            f"No radius was chosen: {failed} run{'' if failed == 1 else 's'} of the search failed. Mend the cause; the "
            "same command trains them again."
        )
    return not (failed or summary.interrupted or summary.postponed or summary.elsewhere)


def chosen_radii(specs: Sequence[RunSpec], runs: str | Path) -> dict[str, float]:
    """Choose each head's radius from finished runs on held-out training data; the test set plays no part.

    The value at radius 1 of `scaled` is that of `plain`.
    """
    scores: dict[tuple[str, float], list[float]] = {}
    for spec in (spec for spec in specs if spec.validation > 0):
        run = Run(Path(runs) / spec.name)
        if run.state == "finished":
            head = "scaled" if spec.head == "plain" else spec.head
            score = float(run.metrics[validation_metric(spec.imbalance)])
            scores.setdefault((head, spec.radius), []).append(score)
    return choose_radii(scores)


@dataclass
class _Job:
    """One call of `run`: what stays the same from run to run."""

    runs: str | Path
    data_root: str | Path | None
    execution: Execution
    train: Trainer
    on_event: Callable[[Event], None]
    progress: bool
    clock: Callable[[], float]
    more: dict[str, Any]
    after: Callable[[RunSpec], None] | None = None

    def run(self, specs: Sequence[RunSpec], deadline: float | None) -> Summary:
        summary, start = Summary(), self.clock()
        estimator = Estimator(self.runs, self.execution)
        left = list(enumerate(specs, 1))
        while left:
            taken, summary.elsewhere = summary.elsewhere, []
            for index, spec in left:
                tell = partial(self._tell, spec, index, len(specs))
                if not self._consider(spec, summary, tell, deadline, estimator):
                    break
                estimator.refresh()
            # what another process held may be free by now, or have let a second stage go on
            again = summary.elsewhere != taken and not summary.interrupted
            left = [(index, spec) for index, spec in left if again and spec in summary.elsewhere]
        summary.seconds = self.clock() - start
        return summary

    def _tell(self, spec: RunSpec, index: int, total: int, kind: Any, seconds: float, message: str = "") -> None:
        self.on_event(Event(kind, spec, index, total, seconds, message))

    def _consider(
        self, spec: RunSpec, summary: Summary, tell: Callable[..., None], deadline: float | None, estimator: Estimator
    ) -> bool:
        """Train a run if it is due; false if the user interrupted."""
        if Run(Path(self.runs) / spec.name).state == "finished":
            summary.skipped.append(spec)
            tell("skipped", 0.0)
        elif reason := self._blocked(spec, summary):
            summary.failed.append((spec, reason))
            tell("failed", 0.0, reason)
        elif spec.start_from in summary.elsewhere:
            summary.elsewhere.append(spec)
            tell("elsewhere", 0.0)
        else:
            guess = estimator.estimate(spec).seconds
            if spec.start_from in summary.postponed or (deadline is not None and self.clock() + guess > deadline):
                summary.postponed.append(spec)
                tell("postponed", guess)
            else:
                return self._claim(spec, summary, tell, guess)
        return True

    def _claim(self, spec: RunSpec, summary: Summary, tell: Callable[..., None], guess: float) -> bool:
        """Train a run unless another process has it in hand: then nothing is told of its start here."""
        run = Run(Path(self.runs) / spec.name)
        try:
            with run.lock():
                if run.state != "finished":
                    tell("start", guess)
                    return self._one(spec, summary, tell)
                summary.skipped.append(spec)  # another process has just finished it
                tell("skipped", 0.0)
        except BlockingIOError:
            summary.elsewhere.append(spec)
            tell("elsewhere", 0.0)
        return True

    def _blocked(self, spec: RunSpec, summary: Summary) -> str:
        """Say why a run cannot start: the run it starts from has failed in this call."""
        failed = [other for other, _ in summary.failed]
        first = spec.start_from
        return f"the run it starts from has failed: {first.name}" if first is not None and first in failed else ""

    def _one(self, spec: RunSpec, summary: Summary, tell: Callable[..., None]) -> bool:
        """Train one run and note what became of it; false if the user interrupted."""
        begin, folder = self.clock(), Path(self.runs) / spec.name
        fresh = not (folder / "resume").exists()
        try:
            attempt(
                self.train, spec, runs=self.runs, data_root=self.data_root, execution=self.execution,
                progress=self.progress, **self.more,
            )  # fmt: skip
            if self.after is not None:
                self.after(spec)
        except KeyboardInterrupt:
            summary.interrupted = 130
            return False
        except SystemExit as stop:  # the engine saved the run's state before it gave way to a signal
            summary.interrupted = stop.code if isinstance(stop.code, int) and stop.code else 130
            return False
        except BlockingIOError:  # somebody trains it who makes no claims
            raise
        except Exception as error:  # whatever stops one run must not stop the others
            message = f"{type(error).__name__}: {error}"
            if not folder.exists():  # the run failed before its folder was made
                folder.mkdir(parents=True)
                Run(folder).record_failure(spec, error)
            summary.failed.append((spec, message))
            tell("failed", self.clock() - begin, message)
        else:
            seconds = self.clock() - begin
            if fresh and folder.is_dir():  # the time of half a run would be no measurement
                write_wall(folder, seconds)
            summary.finished.append(spec)
            tell("finished", seconds)
        return True


def _merge(summary: Summary, other: Summary, seen: set[RunSpec]) -> None:
    summary.finished += other.finished
    summary.skipped += [spec for spec in other.skipped if spec not in seen]
    summary.failed += [pair for pair in other.failed if pair[0] not in seen]
    summary.postponed += other.postponed
    summary.elsewhere += other.elsewhere
    summary.interrupted = summary.interrupted or other.interrupted
    summary.seconds += other.seconds
    summary.notes += other.notes


def _engine() -> Trainer:
    from maxsep.lab.engine import train

    return train
