"""Train many runs: skip what is finished, resume, keep a budget, and share the work between processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from maxsep.lab import engine
from maxsep.lab.data import Dataset, with_order
from maxsep.lab.estimate import Estimate, Estimator, format_seconds, num_train, parse_budget
from maxsep.lab.recipes import After, Recipe, Selection, canonical
from maxsep.lab.run import Run, State
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
    state: State
    estimate: Estimate


def unique(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """List runs once, each after the run it starts from; `scaled` at radius 1 is `plain`.

    >>> [spec.head for spec in unique([RunSpec(head="plain"), RunSpec(head="scaled"), RunSpec(head="maxsep")])]
    ['plain', 'maxsep']
    """
    return list({stage.name: stage for spec in map(canonical, specs) for stage in stages(spec)}.values())


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
    starts only if its estimated time still fits, and a shorter one may take its place; the same call later goes on with
    the rest. The first run of a kind may overrun, because estimates come from finished runs.

    Several processes may make the same call: a run that one of them trains is left alone by the others. `jobs` starts
    that many; they end with this process, even if it is killed. The calling script needs the usual `if __name__ ==
    "__main__"` guard then.

    `on_event` is called when a run starts, ends, is skipped, fails, is postponed or is trained elsewhere. `after` is a
    step after training, taken for every finished run that lacks it. Tests replace `train` and `clock`.
    """
    start, chosen, execution = clock(), unique(specs), execution or Execution()
    jobs = min(jobs, sum(Run(Path(runs) / spec.name).state != "finished" for spec in chosen))
    settings: dict[str, Any] = {"data_root": data_root, "runs": runs, "execution": execution, "download": download}
    worker = Worker(
        runs=Path(runs),
        train=partial(train or engine.train, progress=progress and jobs <= 1, **settings),
        after=after,
        data_root=data_root,
        execution=execution,
        deadline=None if budget is None else start + parse_budget(budget),
        clock=clock,
        on_event=on_event or (lambda event: None),
    )
    summary = share(worker, chosen, jobs) if jobs > 1 else worker.run(chosen)
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
