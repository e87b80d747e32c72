"""Choose learning rate and radius on held-out training data, by successive halving; the test images are not read."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from maxsep.lab import grid
from maxsep.lab.data import Dataset, fingerprints_differ
from maxsep.lab.grid import Summary
from maxsep.lab.reference import decisive_metric
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec, options

FOLDER = "search"
"""The folder, inside that of the runs, of the runs of a search."""
VALIDATION = 0.2
RANGES = {"adamw": (1e-4, 1e-1), "sgd": (1e-3, 1.0)}
NUM_RATES = 9
RADII = (1.0, 0.3, 0.1)
"""The radii of which a search chooses one."""
RUNGS = ((1 / 8, 3), (1 / 2, 1))
"""The part of a run's epochs that is trained, and how many learning rates go on."""
SHARE = 0.5
"""The part of a budget that a search may take; where it would take more, there is none."""


@dataclass(frozen=True)
class Trial:
    """A candidate that was trained: its metric on held-out data, as a fraction, and its loss there."""

    learning_rate: float
    epochs: int
    score: float
    loss: float

    @property
    def order(self) -> tuple[float, float]:
        """The best comes first; of equal scores that with the lower loss."""
        return -self.score, self.loss


@dataclass(frozen=True)
class Choice:
    """The settings chosen for a method (`spec`, with seed 0), by `metric`; without `trials` there was no search."""

    spec: RunSpec
    metric: str = ""
    trials: tuple[Trial, ...] = ()

    @property
    def best(self) -> Trial:
        """The trial that was chosen."""
        longest = max(trial.epochs for trial in self.trials)
        return min((trial for trial in self.trials if trial.epochs == longest), key=lambda trial: trial.order)

    def __str__(self) -> str:
        rate = f"{self.spec.optimiser} at {self.spec.learning_rate:g}"
        if not self.trials:
            return f"{rate}, by the batch size, without a search"
        tried = sorted({trial.learning_rate for trial in self.trials})
        name = "accuracy" if self.metric == "top1" else "mean accuracy over classes"
        score = f"{name} on held-out training images {self.best.score:.1%} after {self.best.epochs} epochs"
        return f"{rate}, chosen of {len(tried)} rates from {tried[0]:g} to {tried[-1]:g}: {score}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            **{name: getattr(self.spec, name) for name in ("head", "radius", "loss", "optimiser", "learning_rate")},
            "metric": self.metric,
            "trials": [asdict(trial) for trial in self.trials],
        }


@dataclass
class Search:
    """The result: the runs with the settings chosen, or no runs if the search could not be completed."""

    specs: list[RunSpec] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    summary: Summary = field(default_factory=Summary)


def rates_of(optimiser: str) -> tuple[float, ...]:
    """Return nine learning rates in equal ratios.

    >>> rates_of("sgd")
    (0.001, 0.0024, 0.0056, 0.013, 0.032, 0.075, 0.18, 0.42, 1.0)
    """
    low, high = RANGES[optimiser]
    return tuple(float(f"{low * (high / low) ** (i / (NUM_RATES - 1)):.2g}") for i in range(NUM_RATES))


def candidate(method: RunSpec, rate: float, part: float) -> RunSpec:
    """Return the run that trains a part of a method's epochs and is evaluated on held-out training data."""
    epochs = math.ceil(part * method.epochs)
    return method.replace(
        learning_rate=rate, epochs=epochs, stop_after=None, evaluate_every=epochs, validation=VALIDATION, seed=0
    )


def without_search(spec: RunSpec) -> RunSpec:
    """Set a learning rate that suits the optimiser and the batch size, after a warm-up over a tenth of the epochs."""
    rate = {"adamw": 2e-3, "sgd": 2e-2}[spec.optimiser] * math.sqrt(spec.batch_size / 32)
    warmup = {"warmup": max(1, spec.epochs // 10)} | dict(spec.schedule_options)
    return spec.replace(learning_rate=float(f"{rate:.2g}"), schedule_options=options(**warmup))


def candidates_of(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """List the runs of a search, for a plan: which rates go on is not known yet, but their number is."""
    methods, found, count = _methods(specs), list[RunSpec](), NUM_RATES
    for part, kept in RUNGS:
        found += [candidate(method, rate, part) for method in methods for rate in rates_of(method.optimiser)[:count]]
        count = kept
    return found


def search(
    specs: Sequence[RunSpec],
    *,
    runs: str | Path,
    data_root: str | Path | None = None,
    rates: Sequence[float] = (),
    budget: float | None = None,
    **settings: Any,
) -> Search:
    """Choose the learning rate of every method among some runs, each from nine or from `rates`.

    Candidates are ordinary runs in `runs/search`: the same call skips finished ones and resumes others. All are trained
    for an eighth of the epochs, the best three of a method for half. Where the search would take more than half of the
    budget, in seconds, the rates are those of `without_search`. Settings are those of `grid.run`.
    """
    start, folder, methods = time.monotonic(), Path(runs) / FOLDER, _methods(specs)
    if budget is not None and not _is_affordable(specs, Path(runs), budget, settings):
        usual = [without_search(spec) for spec in specs]
        return Search(usual, [Choice(method) for method in _methods(usual)])
    alive = {method: list(rates or rates_of(method.optimiser)) for method in methods}
    trials: dict[RunSpec, list[Trial]] = {method: [] for method in methods}
    metric, summary = "top1", Summary()
    for part, kept in RUNGS:
        rung = {(m, rate): candidate(m, rate, part) for m, some in alive.items() for rate in some}
        _check_files(rung.values(), folder, data_root)
        left = None if budget is None else max(budget - (time.monotonic() - start), 1e-9)
        summary = grid.run(list(rung.values()), runs=folder, data_root=data_root, budget=left, **settings)
        if summary.interrupted or summary.postponed or summary.elsewhere:
            return Search(summary=summary)
        for (method, rate), spec in rung.items():
            run = Run(folder / spec.name)
            if run.state == "finished":  # else it diverged
                metric = decisive_metric(run.metrics["class_counts"])
                loss = run.metrics["loss"]
                trial = Trial(rate, spec.epochs, run.metrics[metric], math.inf if loss is None else loss)
                trials[method].append(trial)
        for method in methods:
            ranked = sorted(
                (t for t in trials[method] if t.learning_rate in alive[method]), key=lambda t: (-t.epochs, *t.order)
            )
            alive[method] = [trial.learning_rate for trial in ranked[:kept]]
    chosen = {m: m.replace(learning_rate=alive[m][0]) if trials[m] else without_search(m) for m in methods}
    choices = [Choice(chosen[method], metric, tuple(trials[method])) for method in methods]
    kept_fields = ("learning_rate", "schedule_options")
    final = [(spec, chosen[spec.replace(seed=0)]) for spec in specs]
    return Search([spec.replace(**{n: getattr(best, n) for n in kept_fields}) for spec, best in final], choices)


def choose_radius(spec: RunSpec, radii: Sequence[float] = RADII, **settings: Any) -> tuple[float | None, Search]:
    """Choose the radius of a method by the search for its learning rates; None if that could not be completed."""
    found = search([spec.replace(radius=radius) for radius in radii], **settings)
    tried = [choice for choice in found.choices if choice.trials]
    if not tried:
        return (spec.radius if found.specs else None), found
    return min(tried, key=lambda choice: choice.best.order).spec.radius, found


def _methods(specs: Sequence[RunSpec]) -> list[RunSpec]:
    return list(dict.fromkeys(spec.replace(seed=0) for spec in specs))


def _is_affordable(specs: Sequence[RunSpec], runs: Path, budget: float, settings: dict[str, Any]) -> bool:
    """Whether a search fits into a budget; what an earlier call began is continued."""
    if any(Run(runs / without_search(spec).name).state != "new" for spec in specs):
        return False
    planned = grid.plan(candidates_of(specs), runs=runs / FOLDER, execution=settings.get("execution"))
    seconds = sum(run.estimate.seconds for run in planned) / int(settings.get("jobs", 1))
    return any(run.state != "new" for run in planned) or seconds <= SHARE * budget


def _check_files(specs: Any, folder: Path, data_root: str | Path | None) -> None:
    """Raise if finished candidates have seen other images."""
    finished = [run for spec in specs if (run := Run(folder / spec.name)).state == "finished"]
    for run in finished:
        if fingerprints_differ(run.metrics.get("files"), Dataset.parse(run.spec.dataset).fingerprint(data_root)):
            raise ValueError(f"the images have changed since {run.folder} was trained: remove {folder}, or use --runs.")
