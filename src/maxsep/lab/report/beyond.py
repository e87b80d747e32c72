"""The strongest recipe for long tails: its cells beside the paper's and the field's best, its ablation, its search."""

from __future__ import annotations

from collections.abc import Sequence

from maxsep.lab.recipes import beyond, get, paper
from maxsep.lab.recipes.published import RESNET32
from maxsep.lab.recipes.recipe import canonical, validation_metric
from maxsep.lab.report.comparison import Entry, Method, Setting, several_losses
from maxsep.lab.report.labels import dataset_label
from maxsep.lab.report.model import Section
from maxsep.lab.report.statistics import highest
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table, percent, signed
from maxsep.lab.spec import RunSpec

_COLUMNS = ("head and loss", "top-1, %", "over the paper's best", "augmentation")
_WORDS = {beyond.WEAK: "weak (crop, flip)", beyond.STRONG: "strong (AutoAugment, Cutout)"}
_TEXT = (
    "The paper's own network with a loss and an augmentation that fit long tails, and the true ResNet-32 (46 times "
    "smaller) beside published numbers. Where two rows of a block differ in one part alone, their difference is that "
    "part's worth. Test accuracy of the last epoch.",
)
_CAPTION = (
    "Our numbers: mean and standard deviation over seeds; in bold the highest of a block over at least three seeds. "
    "Published ones stand on other draws of the subset, mostly on one seed. The paper's best is that of its Table 1, "
    "with crops, flips and cross-entropy: what a row with another loss and augmentation has over it is no merit of a "
    "head."
)
_METRIC = validation_metric(beyond.SMALL.imbalance)
_SEARCH_TEXT = (
    f"Candidates trained on {100 - 100 * beyond.HELD_OUT:g} % of every training class and judged on the rest, by the "
    "mean accuracy of the classes; the test set was not read. Candidates are the plain head's rows; a cell chooses "
    "once all of them have run. Heads are not chosen so: all of them are compared on the test set.",
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
    return Section(
        "beyond",
        "Beyond the paper",
        _TEXT,
        (Table("beyond", "Recipes and their parts", _COLUMNS, tuple(rows), _CAPTION),),
    )


def search_section(settings: Sequence[Setting]) -> Section | None:
    """Tabulate what held-out data said about the candidates of `beyond_search`, and whatever else was held out so."""
    rows: list[Row] = []
    for (dataset, augmentation), chosen in beyond.CHOSEN.items():
        found = [s for s in settings if (s.spec.dataset, s.spec.augmentation) == (dataset, augmentation)]
        base = _clean(beyond.small(dataset, augmentation, validation=beyond.HELD_OUT))
        cells = [
            (Method.of(beyond.PLAIN.on(base)) == entry.method and _changes(setting.spec, base), entry, setting.spec)
            for setting in found
            for entry in setting.entries.values()
            if _changes(setting.spec, base) is not None and entry.method.loss == beyond.ADJUSTED
        ]
        complete = all(any(told == wanted for told, *_ in cells) for wanted in beyond.candidates(augmentation))
        rows += _search_rows(dataset, augmentation, cells, chosen if complete else None)
    if not rows:
        return None
    columns = ("head, loss and setting", "held-out, mean of classes, %", "")
    return Section(
        "search",
        "The search behind it",
        _SEARCH_TEXT,
        (Table("search", "On held-out training data", columns, tuple(rows)),),
    )


def _search_rows(
    dataset: str,
    augmentation: str,
    cells: Sequence[tuple[dict[str, float] | bool | None, Entry, RunSpec]],
    chosen: dict[str, float] | None,
) -> list[Row]:
    title = f"{dataset_label(dataset)}, {_WORDS[augmentation]}"
    rows: list[Row] = []
    for told, entry, spec in cells:
        is_choice = chosen is not None and told == chosen
        score = percent(entry.summary(_METRIC), "strong" if is_choice else "")
        label = f"{entry.method.full_label}, {_decay(spec)}"
        rows.append(Row((Cell(label), score, Cell("chosen" if is_choice else "")), "" if rows else title))
    return rows


def _changes(spec: RunSpec, base: RunSpec) -> dict[str, float] | None:
    """What a searched setting changes of the recipe's; None if it is another experiment."""
    parts = {name: getattr(spec, name) for name in ("weight_decay", "mixup")}
    same = base.replace(head="plain", radius=1.0, loss="cross_entropy", **parts)
    if _clean(spec) != same:
        return None
    return {name: value for name, value in parts.items() if value != getattr(base, name)}


def _block(title: str, found: Sequence[tuple[Setting, Entry]]) -> list[Row]:
    spec = found[0][0].spec
    group = _title(title, spec, found[0][1])
    rows = _published(spec) if spec.network == "resnet32" and spec.imbalance == 0.01 else []
    best = highest(entry.summary() for _, entry in found)
    # weak augmentation first; within it the recipe's own decay, and no mixing, before the others
    ordered = sorted(found, key=lambda pair: (len(pair[0].spec.augmentation), *_distance(pair[0].spec)))
    named = several_losses(entry.method for _, entry in found)
    rows += [_row(setting, entry, best, named) for setting, entry in ordered]
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


def _row(setting: Setting, entry: Entry, best: float | None, named: bool) -> Row:
    """`named` says cross-entropy, too."""
    spec, method, summary = setting.spec, entry.method, entry.summary()
    label = method.named(loss=named or method.loss != "cross_entropy")
    printed = paper.best_of_table1(spec)
    over = EMPTY
    if summary is not None and printed is not None:
        difference = 100 * summary.mean - printed.value
        over = Cell(signed(difference), f"paper: {printed.value:.2f}", value=difference)
    return Row(
        (
            Cell(label if method.radius == 1 else f"{label}, radius {method.radius:g}"),
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
