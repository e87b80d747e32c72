"""Read the numbers of the paper and of others (paper.csv), and find those that a run answers."""

from __future__ import annotations

import csv
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from maxsep.lab import recipes
from maxsep.lab.spec import RunSpec

FIVE_RUNS = "Table 1 over five runs"
"""The paper's error bars: the mean and standard deviation of five runs, one for every cell of Table 1."""
FIVE = 5
TABLES = {
    "Table 1": "table1",
    "LDAM and MiSLAS": "longtail",
    "Angular Fisher score": "table1",
    "Optimised prototypes": "prototypes",
    "Out-of-distribution detection": "ood",
    "Open-set recognition": "openset",
    "ImageNet": "imagenet",
}
"""The tables of the paper whose numbers are counted, each with the recipe that trains it."""
_RADIUS = {"resnet34": 0.1}
"""The radius of the paper's matrix by network; 1 for all others."""
_METHODS = {"ldam": "LDAM", "label_aware_smoothing": "MiSLAS stage 2", "squared_cosine": "squared cosine"}

Key = tuple[str, str, str, str, float]


@dataclass(frozen=True)
class PaperNumber:
    """One published number: percent, or a plain number for the angular Fisher score."""

    table: str
    dataset: str
    network: str
    method: str
    head: str
    imbalance: float
    metric: str
    """A metric of a run such as `top1`, or outliers, score and metric such as `svhn energy auroc`."""
    value: float
    std: float | None = None
    note: str = ""

    @property
    def key(self) -> Key:
        """The fields that a run must share with the number."""
        return self.dataset, self.network, self.method, self.head, self.imbalance

    @property
    def fraction(self) -> float:
        """The value in the units of a run's metrics, where accuracies lie in [0, 1]."""
        return self.value if self.metric == "angular_fisher" else self.value / 100


@functools.cache
def cells() -> tuple[PaperNumber, ...]:
    """Read every number of paper.csv."""
    text = resources.files(__package__).joinpath("paper.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return tuple(
        PaperNumber(
            row["table"], row["dataset"], row["network"], row["method"], row["head"], float(row["imbalance"]),
            row["metric"], float(row["value"]), float(row["std"]) if row["std"] else None, row["note"],
        )
        for row in rows
    )  # fmt: skip


def cell(spec: RunSpec) -> tuple[PaperNumber, ...]:
    """Return all numbers of the paper that a run answers, in the order of paper.csv; none if it answers none.

    A run answers a number if it differs from the run of the recipe in seed, subset, order of the images, precision,
    epochs and limits alone; `departures` names those that make it another experiment.
    """
    key = _key(spec)
    return () if key is None or _neutral(spec) not in _protocols() else _index().get(key, ())


def departures(spec: RunSpec) -> tuple[str, ...]:
    """Say in which respects a run with a cell is not the experiment of the paper."""
    wanted = _protocols().get(_neutral(spec))
    if wanted is None:
        return ()
    notes = []
    for ours, paper in ((spec, wanted), (spec.start_from, wanted.start_from)):
        if ours is not None and paper is not None and ours.epochs != paper.epochs:
            notes.append(f"The paper trains {paper.epochs} epochs, these runs {ours.epochs}: not the same experiment.")
    if spec.max_train is not None or spec.max_test is not None:
        notes.append("These runs read a part of the data: not the same experiment.")
    return tuple(notes)


def published(dataset: str, network: str, imbalance: float) -> tuple[PaperNumber, ...]:
    """Return what other authors published for long-tailed data; the note names the augmentation.

    They used other draws of the long-tailed subset than the runs here, and mostly one seed.
    """
    others = [number for number in cells() if number.table not in (*TABLES, FIVE_RUNS)]
    return tuple(n for n in others if (n.dataset, n.network, n.imbalance) == (dataset, network, imbalance))


def best_of_table1(spec: RunSpec) -> PaperNumber | None:
    """Return the higher of the paper's two numbers for a run's dataset, network and imbalance."""
    place = spec.dataset, spec.network, spec.imbalance
    candidates = [n for n in cells() if n.table == "Table 1" and (n.dataset, n.network, n.imbalance) == place]
    return max(candidates, key=lambda number: number.value, default=None)


def _key(spec: RunSpec) -> Key | None:
    """Name the method and head under which the paper would print a run."""
    head, method = spec.head, _METHODS.get(spec.loss, "cross-entropy")
    if spec.optimiser != "sgd" and not spec.dataset.startswith("imagenet"):
        return None
    if spec.loss == "ldam":
        margin = dict(spec.loss_options).get("max_margin", 0.5)
        heads = {("cosine", 0.5): "plain", ("cosine_maxsep", 0.4): "maxsep", ("maxsep_cosine", 0.4): "maxsep"}
        head, method = heads.get((head, margin), ""), method + "-DRW" * spec.reweights
    elif spec.mixup:
        method = "MiSLAS stage 1"
    elif head == "maxsep" and spec.radius != _RADIUS.get(spec.network, 1.0):
        return None
    if (spec.network == "resnet32" and spec.radius != 1) or spec.head_options:
        return None
    dataset = spec.dataset.rpartition("_")[0] if spec.dataset.startswith("osr_") else spec.dataset
    return dataset, spec.network, method, head, spec.imbalance


@functools.cache
def _index() -> dict[Key, tuple[PaperNumber, ...]]:
    keys = dict.fromkeys(number.key for number in cells())
    known = [number for number in cells() if number.table in (*TABLES, FIVE_RUNS)]
    return {key: tuple(number for number in known if number.key == key) for key in keys}


@functools.cache
def _protocols() -> dict[RunSpec, RunSpec]:
    """Map what all repetitions of a run share to the run of the recipe, for all recipes that answer numbers."""
    runs = [spec for name in dict.fromkeys(TABLES.values()) for spec in recipes.get(name).specs(1)]
    return {_neutral(spec): spec for spec in reversed(runs)}


@functools.cache
def _neutral(spec: RunSpec) -> RunSpec:
    """Remove from a run all that repetitions and lengths may change, also from the run that it starts from."""
    loss = tuple((key, 0 if key == "reweight_from" else value) for key, value in spec.loss_options)
    schedule = tuple((key, 0 if key == "every" else value) for key, value in spec.schedule_options)
    first = None if spec.start_from is None else _neutral(spec.start_from)
    return spec.replace(
        seed=0, subset_seed=0, data_order="", precision="32-true", epochs=spec.stop_after or 1, evaluate_every=1,
        max_train=None, max_test=None, loss_options=loss, schedule_options=schedule, start_from=first,
    )  # fmt: skip


def best_cell(numbers: Sequence[PaperNumber], metric: str) -> tuple[PaperNumber | None, PaperNumber | None]:
    """Split the numbers of a metric into the printed one and the mean over five runs."""
    printed = next((n for n in numbers if n.metric == metric and n.table != FIVE_RUNS), None)
    return printed, next((n for n in numbers if n.metric == metric and n.table == FIVE_RUNS), None)
