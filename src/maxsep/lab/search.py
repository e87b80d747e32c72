"""Choose learning rate, radius and last epoch on held-out training data; the test images are not read."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
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
"""The part of a run's epochs that is trained, and how many neighbouring learning rates go on."""
FEW_IMAGES, FEW_OF_A_CLASS, SPLITS = 1000, 25, 3
"""Below so many training images, in all or of one class, the last rung holds out so many different fifths: one has too
few images to choose."""
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
        """The longest trial of the rate that was chosen."""
        return next(trial for trial in reversed(self.trials) if trial.learning_rate == self.spec.learning_rate)

    def __str__(self) -> str:
        rate = f"{self.spec.optimiser} at {self.spec.learning_rate:g}"
        if not self.trials:
            return f"{rate}, by the batch size, without a search"
        tried = sorted({trial.learning_rate for trial in self.trials})
        name = "accuracy" if self.metric == "top1" else "mean accuracy over classes"
        epochs = f"{self.best.epochs} epoch{'' if self.best.epochs == 1 else 's'}"
        score = f"{name} on held-out training images {self.best.score:.1%} after {epochs}"
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
    """The result: the runs with the settings chosen, or no runs if the search could not be completed.

    `seconds` is what a search would take that was left out for the budget; infinite if runs were begun without one.
    """

    specs: list[RunSpec] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    summary: Summary = field(default_factory=Summary)
    seconds: float = 0.0


def rates_of(optimiser: str) -> tuple[float, ...]:
    """Return nine learning rates in equal ratios."""
    low, high = RANGES[optimiser]
    return tuple(float(f"{low * (high / low) ** (i / (NUM_RATES - 1)):.2g}") for i in range(NUM_RATES))


def candidate(method: RunSpec, rate: float, part: float, split: int = 0) -> RunSpec:
    """Return the run that trains a part of a method's epochs and is evaluated on a fifth of the training data."""
    epochs = math.ceil(part * method.epochs)
    held = {"validation": VALIDATION, "subset_seed": method.subset_seed + split, "seed": 0}
    return method.replace(learning_rate=rate, epochs=epochs, stop_after=None, evaluate_every=epochs, **held)


def without_search(spec: RunSpec) -> RunSpec:
    """Set a learning rate that suits the optimiser and the batch size, after a warm-up over a tenth of the epochs."""
    if spec.weights:  # the usual settings of fine-tuning have both
        return spec
    rate = {"adamw": 2e-3, "sgd": 2e-2}[spec.optimiser] * math.sqrt(spec.batch_size / 32)
    warmup = {"warmup": max(1, spec.epochs // 10)} | dict(spec.schedule_options)
    return spec.replace(learning_rate=float(f"{rate:.2g}"), schedule_options=options(**warmup))


def candidates_of(specs: Sequence[RunSpec], data_root: str | Path | None = None) -> list[RunSpec]:
    """List the runs of a search, for a plan: which rates go on is not known yet, but their number is."""
    methods, candidates, count = _methods(specs), list[RunSpec](), NUM_RATES
    for part, kept in RUNGS:
        for method in methods:
            splits = _num_splits(method, kept, data_root)
            rates = rates_of(method.optimiser)[:count]
            candidates += [candidate(method, rate, part, split) for rate in rates for split in range(splits)]
        count = kept
    return candidates


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
    for an eighth of the epochs, and the three neighbouring rates that are best in the mean for half. Where the search
    would take more than half of the budget, in seconds, the rates are those of `without_search`. Settings are those of
    `grid.run`.
    """
    start, folder, methods = time.monotonic(), Path(runs) / FOLDER, _methods(specs)
    if budget is not None and (seconds := _time_of(specs, Path(runs), data_root, settings)) > SHARE * budget:
        usual = [without_search(spec) for spec in specs]
        return Search(usual, [Choice(method) for method in _methods(usual)], seconds=seconds)
    notes, tell = dict[RunSpec, str](), settings.pop("on_event", None) or (lambda event: None)
    settings["on_event"] = lambda event: tell(replace(event, note=notes.get(event.spec, "")))
    alive = {method: sorted(rates or rates_of(method.optimiser)) for method in methods}
    trials: dict[RunSpec, list[Trial]] = {method: [] for method in methods}
    metric = "top1"
    for part, kept in RUNGS:
        rung = {
            (method, rate): [candidate(method, rate, part, k) for k in range(_num_splits(method, kept, data_root))]
            for method in methods
            for rate in alive[method]
        }
        planned = [spec for some in rung.values() for spec in some]
        if kept == 1:
            splits = [(spec, f"{k + 1} of {len(some)}") for some in rung.values() for k, spec in enumerate(some)]
            notes |= {spec: f", one of the best rates, trained longer on split {split}" for spec, split in splits}
        _check_files(planned, folder, data_root)
        left = None if budget is None else max(budget - (time.monotonic() - start), 1e-9)
        summary = grid.run(planned, runs=folder, data_root=data_root, budget=left, **settings)
        if summary.interrupted or summary.postponed or summary.elsewhere:
            return Search(summary=summary)
        tried: dict[RunSpec, list[Trial]] = {method: [] for method in methods}
        for (method, rate), some in rung.items():
            done = [run for spec in some if (run := Run(folder / spec.name)).state == "finished"]
            metric = decisive_metric(done[0].metrics["class_counts"]) if done else metric
            tried[method].append(_trial(rate, some[0].epochs, done if len(done) == len(some) else [], metric))
        for method in methods:
            best = _best_neighbours(tried[method], kept)
            alive[method] = [trial.learning_rate for trial in best]
            trials[method] += [trial for trial in tried[method] if trial.score >= 0]
    chosen = {m: m.replace(learning_rate=alive[m][0]) if alive[m] else without_search(m) for m in methods}
    choices = [Choice(chosen[m], metric, tuple(trials[m]) if alive[m] else ()) for m in methods]
    kept_fields = ("learning_rate", "schedule_options")
    final = [(spec, chosen[spec.replace(seed=0)]) for spec in specs]
    return Search([spec.replace(**{n: getattr(best, n) for n in kept_fields}) for spec, best in final], choices)


def _num_splits(method: RunSpec, kept: int, data_root: str | Path | None) -> int:
    """In how many ways training images are held out: several in the last rung if they are few."""
    counts = Dataset.parse(method.dataset).train_counts(data_root)
    few = grid.num_train(method, counts) < FEW_IMAGES or min(counts or [0]) < FEW_OF_A_CLASS
    return SPLITS if few and kept == 1 and method.imbalance == 1 else 1  # a long tail is drawn by the same seed


def _trial(rate: float, epochs: int, done: Sequence[Run], metric: str) -> Trial:
    """Average the runs of one rate; without runs, because one diverged, the score is -1."""
    if not done:
        return Trial(rate, epochs, -1.0, math.inf)
    losses = [math.inf if (loss := run.metrics["loss"]) is None else loss for run in done]
    return Trial(rate, epochs, fmean(run.metrics[metric] for run in done), fmean(losses))


def _best_neighbours(tried: Sequence[Trial], count: int) -> list[Trial]:
    """Choose so many neighbouring rates, the best in the mean: one high score among low ones is chance."""
    windows = [tried[i : i + count] for i in range(max(len(tried) - count, 0) + 1)] if tried else []
    best = min(windows, key=lambda some: (-fmean(t.score for t in some), fmean(t.loss for t in some)), default=[])
    return [trial for trial in best if trial.score >= 0]


def choose_radius(spec: RunSpec, radii: Sequence[float] = RADII, **settings: Any) -> tuple[float | None, Search]:
    """Choose the radius of a method by the search for its learning rates; None if that could not be completed."""
    result = search([spec.replace(radius=radius) for radius in radii], **settings)
    tried = [choice for choice in result.choices if choice.trials]
    if not tried:
        return (spec.radius if result.specs else None), result
    return min(tried, key=lambda choice: choice.best.order).spec.radius, result


def choose_epoch(
    spec: RunSpec, *, runs: str | Path, data_root: str | Path | None = None, **settings: Any
) -> tuple[RunSpec | None, Summary]:
    """Stop a run after the epoch that is best on a fifth of its training images, held out in a run of its own.

    The run trains on all of them, and its schedule stays that of all epochs. None if the other run has no end yet.
    """
    if spec.validation or spec.start_from:
        raise ValueError("early stopping takes a run of one stage with validation=0: it holds out images itself.")
    held, folder = candidate(spec, spec.learning_rate, 1.0).replace(evaluate_every=1), Path(runs) / FOLDER
    _check_files([held], folder, data_root)
    summary = grid.run([held], runs=folder, data_root=data_root, **settings)
    if (run := Run(folder / held.name)).state != "finished":
        return None, summary
    metric = decisive_metric(run.metrics["class_counts"])
    best = max(run.history, key=lambda row: (row[metric], -(math.inf if row["loss"] is None else row["loss"])))
    last = int(best["epoch"]) + 1
    return spec.replace(stop_after=None if last == spec.epochs else last), summary


def _methods(specs: Sequence[RunSpec]) -> list[RunSpec]:
    return list(dict.fromkeys(spec.replace(seed=0) for spec in specs))


def _time_of(specs: Sequence[RunSpec], runs: Path, data_root: str | Path | None, settings: dict[str, Any]) -> float:
    """Estimate the seconds of a search: 0 if an earlier call began it, infinite if one began the runs without it."""
    if any(Run(runs / without_search(spec).name).state != "new" for spec in specs):
        return math.inf
    planned = grid.plan(candidates_of(specs, data_root), runs=runs / FOLDER, execution=settings.get("execution"))
    seconds = sum(run.estimate.seconds for run in planned) / int(settings.get("jobs", 1))
    return 0.0 if any(run.state != "new" for run in planned) else seconds


def _check_files(specs: Any, folder: Path, data_root: str | Path | None) -> None:
    """Raise if finished candidates have seen other images."""
    finished = [run for spec in specs if (run := Run(folder / spec.name)).state == "finished"]
    for run in finished:
        if fingerprints_differ(run.metrics.get("files"), Dataset.parse(run.spec.dataset).fingerprint(data_root)):
            raise ValueError(f"the images have changed since {run.folder} was trained: remove {folder}, or use --runs.")
