"""The runs of one comparison as a small table: each arm, its accuracy, and what it has over plain and its control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from maxsep.lab.data import fingerprints_differ
from maxsep.lab.recipes.recipe import canonical
from maxsep.lab.report.cautions import caution_few, cautions
from maxsep.lab.report.collect import Record
from maxsep.lab.report.comparison import MATRIX_HEADS, USUAL, Entry, Method, settings_of, several_losses
from maxsep.lab.report.family import BY, Against, family, loss_metric
from maxsep.lab.report.shots import shots_of
from maxsep.lab.report.statistics import TEST, Comparison, Summary, mean
from maxsep.lab.report.tail import class_counts, is_unequal
from maxsep.lab.report.verdict import conclude, verdict
from maxsep.lab.spec import RunSpec


@dataclass(frozen=True)
class Contestant:
    """One arm: its accuracy and the mean over classes for each seed, and how it did against the others.

    Where the control is the plain head, as at radius 1, `over_control` is None. `Method.plain` and `Method.control` say
    which heads these are.
    """

    entry: Entry
    over_plain: Comparison | None
    over_control: Comparison | None
    over_loss: Comparison | None = None
    """A plain head with another loss against its rival."""
    rival: str = ""
    """The plain head with cross-entropy that another loss is compared with, and by what; nothing if not asked for."""
    names_loss: bool = False
    """Whether labels say cross-entropy, because other losses stand beside it."""

    @property
    def method(self) -> Method:
        """The head with its radius and loss."""
        return self.entry.method

    @property
    def label(self) -> str:
        """A name with the radius, wherever there is a choice of it."""
        return self._label(self.method)

    @property
    def plain(self) -> str:
        """The name of the plain head with the same loss."""
        return self._label(self.method.plain)

    @property
    def control(self) -> str:
        """The name of the control, with the same loss: where radii are compared, the plain head times the same one."""
        return self._label(self.method.control)

    def _label(self, method: Method) -> str:
        name = method.named(loss=self.names_loss or method.loss != "cross_entropy")
        return f"{name}, radius {method.radius:g}" if method.head in ("scaled", "maxsep") else name

    @property
    def is_plain(self) -> bool:
        """Whether it is what others with the same loss are compared with."""
        return self.method == self.method.plain

    @property
    def groups(self) -> dict[str, float]:
        """The mean over seeds of the accuracy of frequent and of rare classes, for the groups that have some."""
        return {group: mean(list(found.values())) for group, found in shots_of(self.entry).items() if found}

    @property
    def has_control(self) -> bool:
        """Whether there is a control that is not the plain head."""
        return self.method.head in MATRIX_HEADS and self.method.control != self.method.plain

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; accuracies and differences are fractions, as in a report."""
        method = self.method
        return {
            "label": self.label,
            "head": method.head,
            "radius": method.radius,
            "loss": method.loss,
            "loss_options": dict(method.loss_options),
            "top1": _spread(self.entry, "top1"),
            "balanced": _spread(self.entry, "balanced"),
            "groups": self.groups,
            "over_plain": None if self.is_plain else _told(self.over_plain),
            "over_control": _told(self.over_control) if self.has_control else None,
            "over_cross_entropy": _told(self.over_loss) if self.rival else None,
        }


@dataclass(frozen=True)
class Contest:
    """All arms of a comparison, in the order in which they were asked for."""

    contestants: tuple[Contestant, ...]
    records: tuple[Record, ...]
    missing: tuple[RunSpec, ...]

    @property
    def tests(self) -> int:
        """How many tests were made, for which the p-values are corrected."""
        found = (c for item in self.contestants for c in (item.over_plain, item.over_control, item.over_loss))
        return sum(comparison is not None and comparison.p is not None for comparison in found)

    @property
    def class_counts(self) -> list[int]:
        """Training images of every class."""
        return class_counts(self.records[0].metrics) if self.records else []

    @property
    def unequal(self) -> bool:
        """Whether accuracy and the mean over classes may say different things."""
        return is_unequal(self.class_counts)

    @property
    def conclusion(self) -> list[str]:
        """What all of it says: one sentence for each loss, and one on radius 1 where that made a difference."""
        by_sgd = all(record.spec.optimiser == "sgd" for record in self.records)
        return conclude(self.contestants, len(self.class_counts) if by_sgd else None)

    @property
    def cautions(self) -> list[str]:
        """What keeps one from believing the conclusion: heads that guess or are far behind, few test images."""
        arms = {item.label: (item.plain, item.entry) for item in self.contestants}
        few = caution_few(self.records[0].metrics["num_test"]) if self.records else None
        return [*cautions(arms, len(self.class_counts)), *([few] if few else [])]

    def verdicts(self) -> list[tuple[str, str, Comparison | None]]:
        """List every comparison: of which arm, with what, and what its test says."""
        rows: list[tuple[str, str, Comparison | None]] = []
        for item in self.contestants:
            if not item.is_plain:
                rows.append((item.label, item.plain, item.over_plain))
            if item.has_control:
                rows.append((item.label, item.control, item.over_control))
            if item.rival:
                rows.append((item.label, item.rival, item.over_loss))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "test": f"{TEST}, corrected by Holm's method",
            "tests": self.tests,
            "arms": [item.to_dict() for item in self.contestants],
            "conclusion": self.conclusion,
            "cautions": self.cautions,
            "missing": [spec.name for spec in self.missing],
        }


def contest(specs: Sequence[RunSpec], records: Sequence[Record]) -> Contest:
    """Line up the finished runs of a comparison.

    Every p-value is corrected for the number of tests, as in the report of the same runs. Losses do not mix: a head is
    compared with heads that had the same loss, and losses with one another by the plain head alone, which for cosines
    is `cosine`.

    Args:
        specs: The runs that were asked for, which differ in head, radius, loss and seed.
        records: Those of them that are finished.

    Raises:
        ValueError: The runs have seen different images.
    """
    check_data(records)
    asked = [canonical(spec) for spec in specs]
    done = {record.spec.name for record in records}
    methods = list(dict.fromkeys(map(Method.of, asked)))
    settings = settings_of([record for record in records if Method.of(record.spec) in methods])
    tests = family(settings)
    entries = {method: (setting, entry) for setting in settings for method, entry in setting.entries.items()}
    named, found = several_losses(methods), []
    by = BY[loss_metric(settings[0])] if settings else ""
    for method in methods:
        is_rival = method.brings_loss and USUAL in methods
        rival = f"{USUAL.named(loss=True)}{by}" if is_rival else ""
        if method not in entries:
            found.append(Contestant(Entry(method), None, None, None, rival, named))
            continue
        setting, entry = entries[method]
        plain, control, loss = (tests.get((setting.spec, method, against)) for against in get_args(Against))
        found.append(Contestant(entry, plain, control, loss, rival, named))
    return Contest(tuple(found), tuple(records), tuple(spec for spec in asked if spec.name not in done))


def check_data(
    records: Sequence[Record], class_counts: Sequence[int] = (), num_test: int | None = None, files: str | None = None
) -> None:
    """Raise if runs have not seen the same images, as far as counts and files tell: a folder may change between calls.

    Args:
        records: Finished runs.
        class_counts: The training images of every class that runs would see now, if that is known.
        num_test: Likewise the number of test images.
        files: Likewise `Splits.fingerprint`, for pictures that were replaced one for one; old records lack it.
    """
    seen = {(tuple(record.metrics["class_counts"]), record.metrics["num_test"]) for record in records}
    now = [(tuple(class_counts) or counts, test if num_test is None else num_test) for counts, test in sorted(seen)[:1]]
    if len(seen.union(now)) > 1:
        told = [f"{sum(counts):,} training and {test:,} test images" for counts, test in sorted(seen)]
        told += [f"now {sum(counts):,} and {test:,}" for counts, test in now if (counts, test) not in seen]
        raise ValueError(
            f"the images of {records[0].spec.dataset} have changed since some of these runs were trained "
            f"({'; '.join(told)}). Name another folder with --runs to compare anew."
        )
    if fingerprints_differ(files, *(record.metrics.get("files") for record in records)):
        raise ValueError(
            f"the images of {records[0].spec.dataset} have changed since some of these runs were trained (as many, but "
            "files of other names or sizes). Name another folder with --runs to compare anew."
        )


def _spread(entry: Entry, metric: str) -> dict[str, Any]:
    summary: Summary | None = entry.summary(metric)
    found = {"mean": None, "std": None} if summary is None else {"mean": summary.mean, "std": summary.std}
    return {**found, "seeds": entry.values(metric)}


def _told(comparison: Comparison | None) -> dict[str, Any]:
    """Name the numbers as a report does."""
    keys = {"difference": "difference", "seeds": "n", "p": "p", "p_after_correction": "adjusted"}
    return {**{key: getattr(comparison, name, None) for key, name in keys.items()}, "verdict": verdict(comparison)}
