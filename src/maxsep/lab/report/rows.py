"""Make the tidy table, one row per run and metric, and the settings in which methods are compared."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from maxsep.analysis import accuracy_by_shot
from maxsep.lab.recipes import paper
from maxsep.lab.reference import UNEQUAL
from maxsep.lab.report import names
from maxsep.lab.report.controls import MATRIX_HEADS, USUAL, Method, several_losses
from maxsep.lab.report.runs import Collection
from maxsep.lab.report.statistics import Difference, MeanInterval
from maxsep.lab.run import Run
from maxsep.lab.spec import ORDERED, RunSpec

FIRST_SEED = 123
"""Long-tailed protocols draw the subset of every seed with `subset_seed = seed - FIRST_SEED`."""
MANY, FEW = 100, 20
"""Bounds of the groups of Liu et al., Large-Scale Long-Tailed Recognition in an Open World, CVPR 2019."""
LOWER_IS_BETTER = ("fpr95", "angular_fisher", "ece", "loss")
_FIELDS = (
    *("dataset", "network", "imbalance", "head", "radius", "head_options", "loss", "loss_options", "augmentation"),
    *("mixup", "optimiser", "learning_rate", "weight_decay", "epochs", "precision", "validation", "data_order"),
    *("subset_seed", "seed", "stage"),
)

Repetition = tuple[int, int]
"""Seed and split of the classes (0 without splits)."""


@dataclass(frozen=True)
class Measurement:
    """One number of one run."""

    run: Run
    method: Method
    repetition: Repetition
    metric: str
    value: float


@dataclass
class Setting:
    """Runs that differ in method and repetition alone, and so may be compared."""

    spec: RunSpec
    rows: list[Measurement] = field(default_factory=list)
    subset: str = ""
    """The draws of the long-tailed subset, if they are not one for every seed."""
    distinction: str = ""
    """The other fields in which it differs from settings of the same dataset, network and imbalance."""
    untrained: dict[Method, list[str]] = field(default_factory=dict)
    """Methods that did not train, and why: nothing is compared with them."""
    step: float = 0.0
    """What one test image changes of the metric that decides, as a fraction, if known."""

    def __post_init__(self) -> None:
        """Index the rows."""
        self._values: dict[tuple[Method, str], dict[Repetition, float]] = {}
        self.runs: dict[Method, dict[Repetition, Run]] = {}
        for row in self.rows:
            self._values.setdefault((row.method, row.metric), {})[row.repetition] = row.value
            self.runs.setdefault(row.method, {})[row.repetition] = row.run
        self.methods = sorted(self.runs, key=lambda method: method.order)

    @property
    def earlier_draw(self) -> bool:
        """Return whether its long-tailed subset comes from images in an unofficial order: shown, not counted."""
        return is_earlier_draw(self.spec)

    @property
    def unit(self) -> str:
        """Name a repetition: seed or split."""
        return "split" if names.open_set(self.spec.dataset) else "seed"

    @property
    def counts(self) -> list[int]:
        """The training images of every class, by the first run that has recorded them."""
        runs = (run for runs in self.runs.values() for run in runs.values())
        return next((counts for run in runs if (counts := run.metrics.get("class_counts"))), [])

    @property
    def is_tailed(self) -> bool:
        """Return whether some classes are rare."""
        return self.spec.imbalance < 1 or max(self.counts, default=0) > UNEQUAL * min(self.counts, default=0)

    @property
    def has_unequal_test(self) -> bool:
        """Return whether accuracy and mean over classes differ: not where classes have as many test images."""
        pairs = [(self.values(method), self.values(method, "balanced")) for method in self.methods]
        return any(abs(top1[key] - mean[key]) > 1e-6 for top1, mean in pairs for key in top1.keys() & mean.keys())

    @property
    def metric(self) -> str:
        """Choose what methods are compared by: the accuracy, or its mean over classes where these are unequal."""
        return "balanced" if self.is_tailed and self.has_unequal_test else "top1"

    @property
    def title(self) -> str:
        """Dataset and network."""
        return f"{names.dataset_label(self.spec.dataset)}, {names.network_label(self.spec.network)}"

    @property
    def balance(self) -> str:
        """The imbalance in words, with what sets it apart from settings like it."""
        words = f"imbalance {self.spec.imbalance:g}" if self.spec.imbalance < 1 else "balanced"
        if self.spec.imbalance == 1 and self.is_tailed:
            words = f"unequal, {max(self.counts):,} to {min(self.counts):,} images a class"
        return " · ".join(filter(None, (words, self.distinction, self.subset)))

    def name(self, method: Method) -> str:
        """Write a method's label, with the loss where methods of several losses are compared."""
        return names.method_label(method, several_losses(self.methods))

    def values(self, method: Method, metric: str = "top1") -> dict[Repetition, float]:
        """Return a metric by repetition."""
        return self._values.get((method, metric), {})

    def summary(self, method: Method, metric: str = "top1") -> MeanInterval | None:
        """Return mean and interval of a metric."""
        values = self.values(method, metric)
        return MeanInterval.of(list(values.values())) if values else None

    def difference(self, method: Method, other: Method | None, metric: str = "top1") -> Difference | None:
        """Return the paired difference of two methods."""
        if other is None or other == method:
            return None
        lower = metric.split()[-1] in LOWER_IS_BETTER
        found = Difference.paired(self.values(method, metric), self.values(other, metric), self.unit, lower)
        return None if found is None else replace(found, step=self.step)

    def baseline(self, method: Method) -> Method | None:
        """Return the baseline of a method, if it was run; a baseline of another loss is compared with cross-entropy."""
        wanted = USUAL if method.brings_loss else method.baseline
        return wanted if wanted in self.runs and wanted != method and wanted not in self.untrained else None

    def control(self, method: Method) -> Method | None:
        """Return the best control of a method that was run."""
        usable = (control for control in method.controls if control in self.runs and control not in self.untrained)
        return next(usable, None)

    def spec_of(self, method: Method) -> RunSpec:
        """Return the spec of a method's first run."""
        return next(iter(self.runs[method].values())).spec

    def cells(self, method: Method) -> tuple[paper.PaperNumber, ...]:
        """Return the numbers of the paper that a method answers."""
        return paper.cell(self.spec_of(method))

    def reached(self, method: Method, metric: str = "top1") -> Difference | None:
        """Compare ours with the paper's number: its mean over five runs where it prints one."""
        printed, bar = paper.best_cell(self.cells(method), metric)
        values, number = list(self.values(method, metric).values()), bar or printed
        if number is None or not values:
            return None
        std = None if number.std is None else number.std * number.fraction / number.value
        return Difference.to_printed(values, number.fraction, std, paper.FIVE, metric.split()[-1] in LOWER_IS_BETTER)


def is_earlier_draw(spec: RunSpec) -> bool:
    """Return whether a run's long-tailed subset comes from images in an unofficial order."""
    return spec.dataset in ORDERED and spec.imbalance < 1 and spec.data_order != "official"


def tidy(collection: Collection) -> list[Measurement]:
    """Return one row for each number of each run; groups of classes are metrics, too."""
    rows = []
    for run in collection.runs:
        method, repetition = Method.of(run.spec), (run.spec.seed, (names.open_set(run.spec.dataset) or ("", 0))[1])
        numbers = collection.values[run.spec.name] | _by_frequency(run.metrics)
        rows += [Measurement(run, method, repetition, metric, value) for metric, value in numbers.items()]
    return rows


def _by_frequency(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the mean accuracy of the classes with many, a medium number of, and few training images."""
    per_class, counts = metrics.get("per_class") or [], metrics.get("class_counts") or []
    if not counts or len(per_class) != len(counts):
        return {}
    known = [math.nan if accuracy is None else accuracy for accuracy in per_class]
    return {k: v for k, v in accuracy_by_shot(known, counts, many=MANY, few=FEW).items() if v is not None}


def settings_of(rows: Sequence[Measurement]) -> list[Setting]:
    """Group rows into settings, in the order of dataset, network and falling balance."""
    groups: dict[RunSpec, list[Measurement]] = {}
    for row in sorted(rows, key=lambda row: row.run.spec.data_order):  # of two orders of full data the official wins
        base = _base(row.run.spec)
        groups.setdefault(base.replace(learning_rate=1.0) if base.optimiser == "adamw" else base, []).append(row)
    parts = [part for base, group in groups.items() for part in _by_rate(base, group)]
    settings = [Setting(base, rows, subset) for base, part in parts for subset, rows in _by_subset(part).items()]
    alike: dict[object, list[Setting]] = {}
    for setting in settings:
        alike.setdefault((setting.title, setting.spec.imbalance, setting.spec.validation > 0), []).append(setting)
    for peers in alike.values():
        for setting, words in zip(peers, names.differences([peer.spec for peer in peers]), strict=True):
            setting.distinction = words
    return sorted(settings, key=_order)


def to_csv(rows: Sequence[Measurement]) -> str:
    """Write the tidy table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("run", *_FIELDS, "split", "counted", "metric", "value", "paper"))
    for row in rows:
        spec = row.run.spec
        fields = [getattr(spec, name) for name in _FIELDS]
        fields = [" ".join(f"{k}={v}" for k, v in item) if isinstance(item, tuple) else item for item in fields]
        printed, _ = paper.best_cell(paper.cell(spec), row.metric)
        numbers = row.metric, row.value, printed.fraction if printed else ""
        writer.writerow((spec.name, *fields, row.repetition[1], not is_earlier_draw(spec), *numbers))
    return text.getvalue()


def matrix_methods(setting: Setting) -> Iterator[tuple[Method, Method | None, Method | None]]:
    """Give every method with the matrix, its baseline and its control."""
    for method in setting.methods:
        if method.head in MATRIX_HEADS:
            yield method, setting.baseline(method), setting.control(method)


def _base(spec: RunSpec) -> RunSpec:
    """Remove method and repetition from a spec: runs of one setting share the rest. On full data order is a shuffle."""
    split = names.open_set(spec.dataset)
    return spec.replace(
        dataset=f"osr_{split[0]}_0" if split else spec.dataset, head="plain", radius=1.0, head_options=(),
        class_order=None, loss="cross_entropy", loss_options=(), seed=0, subset_seed=0,
        data_order=spec.data_order if spec.imbalance < 1 else "",
    )  # fmt: skip


def _by_rate(base: RunSpec, rows: Sequence[Measurement]) -> list[tuple[RunSpec, list[Measurement]]]:
    """Keep rates apart if a method was run with several; under AdamW methods may have been given one each."""
    rates: dict[object, set[float]] = {}
    for row in rows:
        rates.setdefault((row.method, row.repetition), set()).add(row.run.spec.learning_rate)
    distinct = sorted(set.union(*rates.values()))
    if max(map(len, rates.values())) == 1:
        return [(base.replace(learning_rate=distinct[0]), list(rows))]
    kept = ((rate, [row for row in rows if row.run.spec.learning_rate == rate]) for rate in distinct)
    return [(base.replace(learning_rate=rate), part) for rate, part in kept]


def _by_subset(rows: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """Keep draws of the subset apart if a seed has several of them: each seed its own draw, or one for all."""
    draws: dict[int, set[int]] = {}
    for row in rows:
        draws.setdefault(row.run.spec.seed, set()).add(row.run.spec.subset_seed)
    if all(len(subsets) == 1 for subsets in draws.values()):
        shared = len(draws) > 1 and len(set.union(*draws.values())) == 1 and rows[0].run.spec.imbalance < 1
        return {"one subset for all seeds" if shared else "": list(rows)}
    groups: dict[str, list[Measurement]] = {}
    for row in rows:
        seed, subset = row.run.spec.seed, row.run.spec.subset_seed
        is_per_seed = subset == seed - FIRST_SEED
        if is_per_seed:
            groups.setdefault("a subset for every seed", []).append(row)
        if not is_per_seed or any(subset in subsets for other, subsets in draws.items() if other != seed):
            groups.setdefault(f"subset {subset} for all seeds", []).append(row)
    return groups


def _order(setting: Setting) -> tuple[object, ...]:
    spec, networks = setting.spec, list(names.NETWORKS)
    rank = networks.index(spec.network) if spec.network in networks else len(networks)
    where = spec.dataset, rank, spec.network, spec.validation, -spec.imbalance, setting.earlier_draw
    return (*where, spec.stage, -spec.epochs, spec.optimiser != "sgd", spec.digest, setting.subset)
