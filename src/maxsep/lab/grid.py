"""Train many runs: skip what is finished, resume, keep a budget, and share the work between processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from maxsep.lab import engine
from maxsep.lab.data import Dataset, with_order
from maxsep.lab.estimate import Estimate, Estimator, format_seconds, num_train, parse_budget
from maxsep.lab.recipes import After, Recipe, Selection, canonical
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec
from maxsep.lab.worker import Event, Summary, Worker, share

__all__ = [
    "Event", "PlannedRun", "Summary", "check_data", "format_seconds", "num_train", "parse_budget", "plan", "reproduce",
    "run", "stages", "unique",
]  # fmt: skip


@dataclass(frozen=True)
class PlannedRun:
    """A run, its state and how long it will take."""

    spec: RunSpec
    state: Literal["finished", "unfinished", "new"]
    estimate: Estimate


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
    """List what would be trained, what is finished and how long each run will take; trains nothing."""
    estimator = Estimator(runs, execution or Execution())
    planned = []
    for spec in unique(specs, only):
        state = Run(Path(runs) / spec.name).state
        if state == "finished":
            planned.append(PlannedRun(spec, "finished", Estimate(0.0, "finished")))
        else:
            planned.append(PlannedRun(spec, "new" if state == "new" else "unfinished", estimator.estimate(spec)))
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
    unfinished = (spec for spec in specs if Run(Path(runs) / canonical(spec).name).state != "finished")
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
    only: str | None = None,
    budget: str | float | None = None,
    jobs: int = 1,
    train: Callable[..., Path] | None = None,
    on_event: Callable[[Event], None] | None = None,
    progress: bool = False,
    download: bool = False,
    after: After | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Summary:
    """Train every run that is not finished yet.

    A run that fails leaves `failure.json` in its folder, and the others go on. With a budget, a run starts only if its
    estimated time still fits, and a shorter one may take its place; the same call later goes on with the rest. The
    estimate comes from finished runs, so the first run of a kind may overrun; an interrupted run is resumed.

    Several processes may make the same call: a run that one of them trains is left alone by the others.

    Args:
        specs: The runs.
        runs: The folder of run folders.
        data_root: Folder of the datasets.
        execution: How runs are computed.
        only: Keep the runs that `Selection` selects.
        budget: Time for the whole call, as `parse_budget` reads it.
        jobs: Processes that share the runs. They end with this one, even if it is killed. The calling script needs
            the usual `if __name__ == "__main__"` guard.
        train: Trains one run; `maxsep.lab.engine.train` by default.
        on_event: Called when a run starts, ends, is skipped, fails, is postponed or is trained elsewhere.
        progress: Whether each run shows its own progress; not with several jobs.
        download: Whether missing datasets may be downloaded.
        after: A step after training, taken for every finished run that lacks it.
        clock: Seconds from any start.
    """
    start, chosen = clock(), unique(specs, only)
    deadline = None if budget is None else start + parse_budget(budget)
    worker = Worker(
        Path(runs), data_root, execution or Execution(), train or engine.train, deadline, progress, download, after,
        time.time(),
    )  # fmt: skip
    tell = on_event or (lambda event: None)
    jobs = min(jobs, sum(Run(Path(runs) / spec.name).state != "finished" for spec in chosen))
    summary = share(worker, chosen, jobs, tell) if jobs > 1 else worker.run(chosen, tell, clock)
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
    following = recipe.follow_up(finished, recipe.choose_seeds(seeds))
    following = [spec for spec in following if spec not in specs and Selection.parse(only).matches(spec)]
    left = None if left is None else max(left - (clock() - start), 1e-9)
    return summary.add(run(following, budget=left, **settings))
