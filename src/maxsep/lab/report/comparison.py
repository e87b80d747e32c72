"""Group runs into settings and methods, and compare methods within a setting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from maxsep.lab.recipes.protocol import FIRST_SEED
from maxsep.lab.recipes.recipe import canonical
from maxsep.lab.report.collect import Record
from maxsep.lab.report.labels import NETWORKS, dataset_label, differences, network_label
from maxsep.lab.report.statistics import Comparison, Summary, compare, summarise
from maxsep.lab.report.tail import class_counts, in_words, is_unequal
from maxsep.lab.spec import Options, RunSpec, options

HEADS = (
    *("plain", "scaled", "maxsep", "control", "maxsep_rotated", "learnable_matrix", "extra_layer"),
    *("etf", "hpn"),
    *("cosine", "cosine_maxsep", "maxsep_cosine", "centred_cosine"),
)
MATRIX_HEADS = ("maxsep", "cosine_maxsep", "maxsep_cosine")
"""Heads that are the method: what others are compared with or controls of."""
_OWN_LOSSES = ("squared_cosine",)
"""Losses of prototypes that a plain head does not have."""
BASE_HEADS = ("plain", "scaled", "control", "cosine", "centred_cosine")
"""Heads without the matrix that others are compared with: they need no control."""
_COSINE_CONTROLS = {
    "cosine": "cosine",
    "cosine_maxsep": "cosine",
    "maxsep_cosine": "centred_cosine",
    "centred_cosine": "cosine",
}
"""Among heads that compare directions `cosine` is the plain one; each has the control that differs in P alone."""
_LOSSES = {"ldam": "LDAM", "cross_entropy": "cross-entropy"}
_IN_WORDS = {
    "max_margin": "margin {}",
    "reweight_from": "re-weighted from epoch {}",
    "smooth_head": "{} for the most frequent class",
    "smooth_tail": "{} for the rarest",
    "rotation": "rotation {}",
}
"""Options whose names say too little in a table."""
_UNSAID = {("reweight", "effective")}
_AS_WHOLE = {("normalise", True): "by cosine"}


def _in_words(given: Options) -> list[str]:
    said = [(key, value) for key, value in given if (key, value) not in _UNSAID]
    return [_AS_WHOLE.get((key, value)) or _IN_WORDS.get(key, f"{key}={{}}").format(value) for key, value in said]


def _loss_in_words(loss: str) -> str:
    return _LOSSES.get(loss, loss.replace("_", " "))


@dataclass(frozen=True)
class Method:
    """What differs between the rows of a comparison."""

    head: str
    radius: float
    head_options: Options = ()
    loss: str = "cross_entropy"
    loss_options: Options = ()

    @classmethod
    def of(cls, spec: RunSpec) -> Method:
        """A run's method; `scaled` at radius 1 is `plain`; when to re-weigh asks for re-weighting, which says when."""
        spec = canonical(spec)
        given = dict(spec.loss_options)
        if spec.reweights:
            given = {"reweight": "effective", "reweight_from": 0} | given
        return cls(spec.head, spec.radius, spec.head_options, spec.loss, options(**given))

    @property
    def label(self) -> str:
        """A short name without the radius; cross-entropy goes without saying."""
        return self.named(loss=self.loss != "cross_entropy")

    def named(self, loss: bool) -> str:
        """A short name without the radius, and with the name of the loss if that is asked for."""
        extra = _in_words((*self.head_options, *self.loss_options))
        if loss:
            extra.insert(0, _loss_in_words(self.loss))
        return f"{self.head} ({', '.join(extra)})" if extra else self.head

    @property
    def loss_label(self) -> str:
        """The loss with its options.

        >>> Method("cosine", 1.0, loss="ldam", loss_options=options(max_margin=0.4)).loss_label
        'LDAM, margin 0.4'
        """
        return ", ".join([_loss_in_words(self.loss), *_in_words(self.loss_options)])

    @property
    def full_label(self) -> str:
        """A short name with the radius where it is not 1."""
        return self.label if self.radius == 1 else f"{self.label}, radius {self.radius:g}"

    @property
    def plain(self) -> Method:
        """The plain head that it is compared with: trained with the same loss; a plain head is its own.

        Where no plain head could be, as with the loss of `hpn`, it is the one with cross-entropy.
        For heads that compare directions it is `cosine`, with the same loss.

        >>> Method("maxsep", 0.1).plain.head, Method("maxsep_cosine", 1.0, loss="ldam").plain.head
        ('plain', 'cosine')
        """
        if self.head in _COSINE_CONTROLS:
            return Method("cosine", 1.0, (), self.loss, self.loss_options)
        own = self.loss in _OWN_LOSSES
        return Method("plain", 1.0, (), *(() if own else (self.loss, self.loss_options)))

    @property
    def control(self) -> Method:
        """Its control: `scaled` at the same radius and with the same loss; at radius 1 it is `plain`.

        Heads that compare directions have controls of their own: `centred_cosine` for `maxsep_cosine`, else `cosine`.

        >>> Method("maxsep", 0.1).control.head, Method("maxsep_cosine", 1.0, loss="ldam").control.head
        ('scaled', 'centred_cosine')
        """
        head = _COSINE_CONTROLS.get(self.head) or ("plain" if self.radius == 1 else "scaled")
        return Method(head, self.radius, (), self.loss, self.loss_options)

    @property
    def brings_loss(self) -> bool:
        """Whether it stands for its loss among others: a plain head with another loss than cross-entropy.

        >>> Method("cosine", 1.0, loss="ldam").brings_loss, Method("cosine", 1.0).brings_loss
        (True, False)
        """
        return self == self.plain and self != USUAL and (self.head == "plain" or self.loss != USUAL.loss)

    @property
    def order(self) -> tuple[object, ...]:
        """Cross-entropy before other losses; with each plain, pairs of control and matrix by falling radius, others."""
        rank = HEADS.index(self.head) if self.head in HEADS else len(HEADS)
        pair = -self.radius if rank <= 2 else 0
        loss = self.loss != "cross_entropy", self.loss, len(self.loss_options), repr(self.loss_options)
        options = len(self.head_options), repr(self.head_options)
        return (*loss, self.head != "plain", rank > 2, pair, rank, -self.radius, *options)


USUAL = Method("plain", 1.0)
"""What other losses are compared with: a plain head with cross-entropy."""


def several_losses(methods: Iterable[Method]) -> bool:
    """Whether a head stands among these with cross-entropy and with another loss, so that its name does not tell them.

    Where the other loss is for cosines, its plain head is `cosine`.

    >>> plain, other = Method("plain", 1.0), Method("plain", 1.0, loss="logit_adjusted")
    >>> several_losses([plain, other]), several_losses([plain, Method("hpn", 1.0, loss="squared_cosine")])
    (True, False)
    """
    known = set(methods)
    usual = {method.head for method in known if method.loss == "cross_entropy"}
    others = [method for method in known if method.loss != "cross_entropy"]
    return any(method.head in usual or (method.brings_loss and USUAL in known) for method in others)


@dataclass
class Entry:
    """The runs of one method in one setting, by seed."""

    method: Method
    records: dict[int, Record] = field(default_factory=dict)

    def values(self, metric: str = "top1") -> dict[int, float]:
        """A metric for each seed that has it."""
        found = {seed: record.value(metric) for seed, record in sorted(self.records.items())}
        return {seed: value for seed, value in found.items() if value is not None}

    def summary(self, metric: str = "top1") -> Summary | None:
        """Mean and spread over seeds, or nothing if no run has the metric."""
        values = list(self.values(metric).values())
        return summarise(values) if values else None


@dataclass
class Setting:
    """Runs that differ in head, loss and seed alone, and so may be compared."""

    spec: RunSpec
    entries: dict[Method, Entry] = field(default_factory=dict)
    chosen: dict[str, float] = field(default_factory=dict)
    """The radius that held-out data of this very setting chose for each head, if they did."""
    distinction: str = ""
    """In which other fields it differs from settings of the same dataset, network and balance, if there are any."""

    @property
    def focus(self) -> float | None:
        """The radius that was chosen for the matrix."""
        return self.chosen.get("maxsep")

    @property
    def title(self) -> str:
        """Dataset and network."""
        return f"{dataset_label(self.spec.dataset)}, {network_label(self.spec.network)}"

    @property
    def balance(self) -> str:
        """The imbalance in words; of data that were left as they are, what their classes are."""
        if self.spec.imbalance < 1:
            return f"imbalance {self.spec.imbalance:g}"
        return in_words(self.class_counts) or "balanced"

    @property
    def class_counts(self) -> list[int]:
        """The training images of every class, by the first run that says them; empty if none does."""
        records = (record for entry in self.entries.values() for record in entry.records.values())
        return next((counts for record in records if (counts := class_counts(record.metrics))), [])

    @property
    def is_tailed(self) -> bool:
        """Whether some classes are rare: a tail was cut, or the data have one by themselves."""
        return self.spec.imbalance < 1 or is_unequal(self.class_counts)

    @property
    def label(self) -> str:
        """Everything in one line."""
        return ", ".join(filter(None, (self.title, self.balance, self.distinction)))

    def name(self, method: Method) -> str:
        """A method's label; cross-entropy is named too where a head was trained with it and with another loss."""
        return method.named(loss=method.loss != "cross_entropy" or several_losses(self.entries))

    def full_name(self, method: Method) -> str:
        """The same with the radius where it is not 1."""
        return self.name(method) + ("" if method.radius == 1 else f", radius {method.radius:g}")

    def plain(self, method: Method) -> Entry | None:
        """The runs of the plain head to compare a method with, if there are any."""
        return self.entries.get(method.plain)

    def control(self, method: Method) -> Entry | None:
        """The runs of a method's control, if there are any."""
        return self.entries.get(method.control)

    def against(self, method: Method, other: Entry | None, metric: str = "top1") -> Comparison | None:
        """Compare a method with another, seed by seed."""
        if other is None or other.method == method:
            return None
        return compare(self.entries[method].values(metric), other.values(metric))


def settings_of(records: Iterable[Record]) -> list[Setting]:
    """Group records into settings, in the order of dataset, network and falling balance."""
    groups: dict[RunSpec, Setting] = {}
    for record in records:
        method = Method.of(record.spec)
        subset = record.spec.subset_seed
        base = record.spec.replace(
            head="plain", radius=1.0, head_options=(), loss="cross_entropy", loss_options=(), seed=0,
            subset_seed=0 if subset == record.spec.seed - FIRST_SEED else subset,  # every seed may have its own subset
        )  # fmt: skip
        setting = groups.setdefault(base, Setting(base))
        entry = setting.entries.setdefault(method, Entry(method))
        entry.records[record.spec.seed] = record
    for setting in groups.values():
        setting.entries = dict(sorted(setting.entries.items(), key=lambda pair: pair[0].order))
    for name in {_name(setting) for setting in groups.values()}:
        namesakes = [setting for setting in groups.values() if _name(setting) == name]
        for setting, told in zip(namesakes, distinctions(namesakes).values(), strict=True):
            setting.distinction = told
    return sorted(groups.values(), key=_setting_order)


def _name(setting: Setting) -> tuple[str, float, bool]:
    # a search on held-out data is in no table with runs that read the test set
    return setting.title, setting.spec.imbalance, setting.spec.validation > 0


def duel(settings: Sequence[Setting], head: str, other: str) -> str:
    """Count in a sentence how often one head beats another by more than noise; empty if they never meet.

    Heads meet within a setting: each of their methods that shares a seed with the other's.
    """
    verdicts = []
    for setting in settings:
        mine = [entry for method, entry in setting.entries.items() if method.head == head]
        theirs = [method for method in setting.entries if method.head == other]
        found = (setting.against(entry.method, setting.entries[method]) for entry in mine for method in theirs)
        verdicts += [comparison for comparison in found if comparison is not None]
    if not verdicts:
        return ""
    told = [comparison for comparison in verdicts if comparison.passes]
    won = sum(comparison.difference > 0 for comparison in told)
    untested = sum(comparison.p is None for comparison in verdicts)
    counts = {
        "better by more than seed noise": won,
        "worse by more than seed noise": len(told) - won,
        "not told apart": len(verdicts) - len(told) - untested,
        "not testable": untested,
    }
    words = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    number = f"{len(verdicts)} comparison{'' if len(verdicts) == 1 else 's'}"
    return f"{head} against {other.replace('_', ' ')}, {number}, before correction: {words}."


def distinctions(settings: Sequence[Setting]) -> dict[RunSpec, str]:
    """Say for each setting in which other fields (epochs, precision, ...) it differs from the others shown."""
    return differences([setting.spec for setting in settings])


def _setting_order(setting: Setting) -> tuple[object, ...]:
    spec = setting.spec
    nets = list(NETWORKS)
    rank = nets.index(spec.network) if spec.network in nets else len(nets)
    return (
        spec.dataset,
        rank,
        spec.network,
        spec.validation,
        -spec.imbalance,
        -spec.epochs,
        spec.optimiser != "sgd",
        spec.digest,
    )
