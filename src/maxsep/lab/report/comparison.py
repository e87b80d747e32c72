"""Group runs into settings and methods, and compare methods within a setting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from maxsep.lab.data.open_set import parse_open_set
from maxsep.lab.recipes.recipe import canonical
from maxsep.lab.report.collect import Record
from maxsep.lab.report.statistics import Comparison, Summary, compare, summarise
from maxsep.lab.spec import Options, RunSpec

HEADS = (
    *("plain", "scaled", "maxsep", "twin", "centred", "learnable_matrix", "extra_layer", "etf", "hpn"),
    *("cosine", "cosine_maxsep", "maxsep_cosine", "centred_cosine"),
)
MATRIX_HEADS = ("maxsep", "cosine_maxsep", "maxsep_cosine")
"""Heads that are the method: what others are compared with or controls of."""
BASE_HEADS = ("plain", "scaled", "cosine", "centred_cosine")
"""Heads without the matrix that others are compared with: they need no control."""
_COSINE_CONTROLS = {
    "cosine": "cosine",
    "cosine_maxsep": "cosine",
    "maxsep_cosine": "centred_cosine",
    "centred_cosine": "cosine",
}
"""Among heads that compare directions `cosine` is the plain one; each has the control that differs in P alone."""
_DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "digits": "Digits"}
_NETWORKS = {
    **{"resnet34": "ResNet", "convnet": "ConvNet", "resnet32": "ResNet-32", "mlp": "MLP"},
    **{"wrn40_2": "WideResNet-40-2", "vgg32": "VGG32"},
}
_QUIET = (
    *("dataset", "network", "imbalance", "validation", "normalisation"),
    *("schedule", "schedule_options", "evaluate_every", "features_at"),
)
"""Fields a label says in its own words, or that follow from the others in every protocol."""
_OF_OPTIMISER = ("learning_rate", "momentum", "nesterov", "weight_decay")
_OF_STAGE = ("sampler", "epochs", "start_from", "backbone", "logit_scaling", "head_rate", "learning_rate")
"""Fields in which a second stage differs from the run it starts from, which its name says."""
_LOSSES = {"ldam": "LDAM"}
_IN_WORDS = {
    "max_margin": "margin {}",
    "reweight_from": "re-weighted from epoch {}",
    "smooth_head": "{} for the most frequent class",
    "smooth_tail": "{} for the rarest",
}
"""Options whose names say too little in a table."""
_AUGMENTATIONS = {
    "crop_flip": "crop and flip",
    "crop_flip_rotate": "crop, flip and rotation",
    "crop_flip_auto_cutout": "crop, flip, AutoAugment and cutout",
}
_CAPITALS = {"nesterov": "Nesterov"}
_UNSAID = {("reweight", "effective")}


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
        """A run's method; `scaled` at radius 1 is `plain`."""
        spec = canonical(spec)
        return cls(spec.head, spec.radius, spec.head_options, spec.loss, spec.loss_options)

    @property
    def label(self) -> str:
        """A short name without the radius."""
        given = [pair for pair in (*self.head_options, *self.loss_options) if pair not in _UNSAID]
        extra = [_IN_WORDS.get(key, f"{key}={{}}").format(value) for key, value in given]
        if self.loss != "cross_entropy":
            extra.insert(0, _LOSSES.get(self.loss, self.loss.replace("_", " ")))
        return f"{self.head} ({', '.join(extra)})" if extra else self.head

    @property
    def full_label(self) -> str:
        """A short name with the radius where it is not 1."""
        return self.label if self.radius == 1 else f"{self.label}, radius {self.radius:g}"

    @property
    def order(self) -> tuple[object, ...]:
        """Plain first, then pairs of control and matrix by falling radius, then the other heads."""
        rank = HEADS.index(self.head) if self.head in HEADS else len(HEADS)
        pair = -self.radius if rank <= 2 else 0
        options = len(self.loss_options), repr(self.loss_options)
        return (self.head != "plain", rank > 2, pair, rank, self.loss, -self.radius, options)


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
        """The imbalance in words."""
        return "balanced" if self.spec.imbalance == 1 else f"imbalance {self.spec.imbalance:g}"

    @property
    def label(self) -> str:
        """Everything in one line."""
        return ", ".join(filter(None, (self.title, self.balance, self.distinction)))

    def plain(self, method: Method) -> Entry | None:
        """The plain head to compare a method with: trained with the same loss, or else with cross-entropy.

        For heads that compare directions it is `cosine`, with the same loss.
        """
        if method.head in _COSINE_CONTROLS:
            return self.entries.get(Method("cosine", 1.0, (), method.loss, method.loss_options))
        same = Method("plain", 1.0, (), method.loss, method.loss_options)
        return self.entries.get(same) or self.entries.get(Method("plain", 1.0))

    def control(self, method: Method) -> Entry | None:
        """The control of a method: `scaled` at the same radius and with the same loss; at radius 1 it is `plain`.

        Heads that compare directions have controls of their own: `centred_cosine` for `maxsep_cosine`, else `cosine`.
        """
        head = _COSINE_CONTROLS.get(method.head) or ("plain" if method.radius == 1 else "scaled")
        return self.entries.get(Method(head, method.radius, (), method.loss, method.loss_options))

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
        base = record.spec.replace(
            head="plain", radius=1.0, head_options=(), loss="cross_entropy", loss_options=(), seed=0
        )
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


def _name(setting: Setting) -> tuple[str, bool]:
    # a search on held-out data is in no table with runs that read the test set
    return setting.label, setting.spec.validation > 0


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
    told = {}
    for setting in settings:
        spec = setting.spec
        peers = [s.spec for s in settings if (s.spec.dataset, s.spec.network) == (spec.dataset, spec.network)]
        # what a second stage has of its own may follow from the imbalance, which is told already
        second = spec.start_from is not None
        alike = [peer for peer in peers if (peer.start_from is not None) == second]
        alike = [peer for peer in alike if peer.imbalance == spec.imbalance] if second else alike
        varying = [name for name in _loud_fields() if _varies(name, alike if name in _OF_STAGE else peers)]
        if "optimiser" in varying and _follows(peers):
            varying = [name for name in varying if name not in _OF_OPTIMISER]
        words = filter(None, (_field_in_words(name, getattr(spec, name)) for name in varying))
        told[spec] = ", ".join([*(["second stage"] if second else []), *words])
    return told


def _loud_fields() -> list[str]:
    return [name for name in RunSpec.__dataclass_fields__ if name not in _QUIET]


def _follows(specs: Sequence[RunSpec]) -> bool:
    """Whether the optimiser's name says its settings, too."""
    told = {(spec.optimiser, *(getattr(spec, name) for name in _OF_OPTIMISER)) for spec in specs}
    return len(told) == len({spec.optimiser for spec in specs})


def _varies(name: str, peers: Sequence[RunSpec]) -> bool:
    # the paper's protocol rotates balanced data alone: there the imbalance says it already
    given = {(getattr(peer, name), peer.imbalance if name == "augmentation" else 1.0) for peer in peers}
    return len(given) > len({imbalance for _, imbalance in given})


def dataset_label(name: str) -> str:
    """A dataset's name as people write it.

    >>> dataset_label("cifar10"), dataset_label("folder:/data/birds")
    ('CIFAR-10', 'birds')
    """
    if split := parse_open_set(name):
        return f"{split.benchmark.upper()} split {split.split}"
    return name.rstrip("/").split("/")[-1].split(":")[-1] if ":" in name else _DATASETS.get(name, name)


def network_label(name: str) -> str:
    """A network's name as the paper's tables have it."""
    return _NETWORKS.get(name, name)


def _setting_order(setting: Setting) -> tuple[object, ...]:
    spec = setting.spec
    nets = list(_NETWORKS)
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


def _field_in_words(name: str, value: object) -> str:
    """Say a field and its value as people do; options that were left alone are not worth a word.

    >>> _field_in_words("epochs", 200), _field_in_words("network_options", (("feature_size", 2),))
    ('200 epochs', 'feature size 2')
    >>> _field_in_words("network_options", ())
    ''
    """
    if name == "augmentation":
        return _AUGMENTATIONS.get(str(value), f"augmentation {value}")
    if name == "epochs":
        return f"{value} epoch{'' if value == 1 else 's'}"
    if isinstance(value, tuple):
        return ", ".join(f"{key.replace('_', ' ')} {item}" for key, item in value)
    word = _CAPITALS.get(name, name.replace("_", " "))
    if isinstance(value, bool):
        return word if value else f"no {word}"
    if name == "mixup" and not value:
        return "no mixup"
    return f"{word} {_plain_text(value)}"


def _plain_text(value: object) -> str:
    if isinstance(value, RunSpec):
        return f"a run of {value.epochs} epochs"
    return f"{value:g}" if isinstance(value, float) else str(value)
