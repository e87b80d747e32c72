"""The strongest recipe for long tails: its cells beside the paper's and the field's best, its ablation, its search."""

from __future__ import annotations

from collections.abc import Sequence

from maxsep.lab.recipes import beyond, get, paper
from maxsep.lab.recipes.published import RESNET32
from maxsep.lab.recipes.recipe import canonical, validation_metric
from maxsep.lab.report.comparison import Entry, Method, Setting
from maxsep.lab.report.model import Section
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table, percent, signed
from maxsep.lab.spec import RunSpec

_COLUMNS = ("head and loss", "top-1, %", "over the paper's best", "augmentation")
_WORDS = {beyond.WEAK: "weak (crop, flip)", beyond.STRONG: "strong (AutoAugment, Cutout)"}
_TEXT = (
    "The paper's own network with a loss and an augmentation that fit long tails, and the true ResNet-32 (46 times "
    "smaller) beside published numbers. Rows of a block differ in one part each, so a part's worth is the difference "
    "of two rows. Test accuracy of the last epoch.",
)
_METRIC = validation_metric(beyond.SMALL.imbalance)
_SEARCH_TEXT = (
    f"Candidates trained on {100 - 100 * beyond.HELD_OUT:g} % of every training class and judged on the rest, by the "
    "mean accuracy of the classes; the test set was not read. A cell chooses once all its candidates have run.",
)


def beyond_section(settings: Sequence[Setting]) -> Section | None:
    """Tabulate the runs of the recipe `beyond`, a block for each dataset, network and imbalance."""
    wanted = _identities(get("beyond").specs(1))
    blocks: dict[tuple[str, str, float], list[tuple[Setting, Entry]]] = {}
    for setting in settings:
        for entry in setting.entries.values():
            if _identity(setting, entry.method) in wanted:
                spec = setting.spec
                blocks.setdefault((setting.title, spec.network, spec.imbalance), []).append((setting, entry))
    # what is Table 1's alone is shown there
    blocks = {key: rows for key, rows in blocks.items() if any(_is_new(*row) for row in rows)}
    if not blocks:
        return None
    rows = [row for (title, *_), found in blocks.items() for row in _block(title, found)]
    caption = "Our numbers: mean and standard deviation over seeds. Published ones stand on other draws of the subset."
    return Section("beyond", "Beyond the paper", _TEXT, (Table("beyond", "", _COLUMNS, tuple(rows), caption),))


def search_section(settings: Sequence[Setting]) -> Section | None:
    """Tabulate what held-out data said about the candidates of `beyond_search`."""
    found = {_identity(setting, method): entry for setting in settings for method, entry in setting.entries.items()}
    rows: list[Row] = []
    for (dataset, augmentation), (arm, changes) in beyond.CHOSEN.items():
        cell = [
            (f"{Method.of(spec).full_label}{_changed(other)}", found.get(_clean(spec)), (head, other))
            for head, other in beyond.candidates(augmentation)
            for spec in (head.on(beyond.small(dataset, augmentation, validation=beyond.HELD_OUT, **other)),)
        ]
        title = f"{'CIFAR-10' if dataset == 'cifar10' else 'CIFAR-100'}, {_WORDS[augmentation]}"
        shown = [(label, entry, own) for label, entry, own in cell if entry is not None]
        for number, (label, entry, own) in enumerate(shown):
            choice = "chosen" if own == (arm, changes) and len(shown) == len(cell) else ""
            score = percent(entry.summary(_METRIC), "strong" if choice else "")
            rows.append(Row((Cell(label), score, Cell(choice)), title if number == 0 else ""))
    if not rows:
        return None
    columns = ("candidate", "held-out, mean of classes, %", "")
    return Section("search", "The search behind it", _SEARCH_TEXT, (Table("search", "", columns, tuple(rows)),))


def _block(title: str, found: Sequence[tuple[Setting, Entry]]) -> list[Row]:
    spec = found[0][0].spec
    group = _title(title, spec, found[0][1])
    rows = _published(spec) if spec.network == "resnet32" and spec.imbalance == 0.01 else []
    best = max((s.mean for _, entry in found if (s := entry.summary()) is not None), default=None)
    # weak augmentation first; within it the recipe's own decay, and no mixing, before the others
    ordered = sorted(found, key=lambda pair: (len(pair[0].spec.augmentation), *_distance(pair[0].spec)))
    rows += [_row(setting, entry, best) for setting, entry in ordered]
    return [Row(row.cells, group if number == 0 else "") for number, row in enumerate(rows)]


def _published(spec: RunSpec) -> list[Row]:
    return [
        Row(
            (
                Cell(f"published: {other.method}", other.source, "muted"),
                Cell(f"{(number := other.cifar10 if spec.dataset == 'cifar10' else other.cifar100):.1f}", value=number),
                EMPTY,
                Cell(_WORDS[other.augmentation], tone="muted"),
            )
        )
        for other in RESNET32
    ]


def _row(setting: Setting, entry: Entry, best: float | None) -> Row:
    spec, summary = setting.spec, entry.summary()
    printed = paper.best_of_table1(spec)
    over = EMPTY
    if summary is not None and printed is not None:
        difference = 100 * summary.mean - printed.value
        over = Cell(signed(difference), f"paper: {printed.value:.2f}", value=difference)
    return Row(
        (
            Cell(entry.method.full_label),
            percent(summary, "strong" if summary is not None and summary.mean == best else ""),
            over,
            Cell(_WORDS.get(spec.augmentation, spec.augmentation), _decay(spec)),
        )
    )


def _decay(spec: RunSpec) -> str:
    mixing = f", mixup {spec.mixup:g}" if spec.mixup else ""
    return f"weight decay {spec.weight_decay:g}{mixing}"


def _title(title: str, spec: RunSpec, entry: Entry) -> str:
    """All that the rows of a block share."""
    parameters = next((r.metrics.get("parameters") for r in entry.records.values()), None)
    size = f" ({parameters / 1e6:.2f} million parameters)" if parameters else ""
    return f"{title}{size}, imbalance {spec.imbalance:g}, {spec.epochs} epochs, subset seed {spec.subset_seed}"


def _distance(spec: RunSpec) -> tuple[bool, float, float]:
    own = beyond.SMALL.weight_decay
    return spec.weight_decay != own or spec.mixup > 0, spec.weight_decay, spec.mixup


def _is_new(setting: Setting, entry: Entry) -> bool:
    return entry.method.loss != "cross_entropy" or setting.spec.augmentation == beyond.STRONG


def _changed(changes: dict[str, float]) -> str:
    return "".join(f", {name.replace('_', ' ')} {value:g}" for name, value in changes.items())


def _clean(spec: RunSpec) -> RunSpec:
    """Leave out what does not tell two rows apart: the seed and the precision."""
    return canonical(spec).replace(seed=0, precision="32-true")


def _identities(specs: Sequence[RunSpec]) -> set[RunSpec]:
    return {_clean(spec) for spec in specs}


def _identity(setting: Setting, method: Method) -> RunSpec:
    return _clean(
        setting.spec.replace(
            head=method.head, radius=method.radius, head_options=method.head_options, loss=method.loss,
            loss_options=method.loss_options,
        )
    )  # fmt: skip
