"""Long-tailed settings: accuracy of frequent and of rare classes, and the last epoch beside the best."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from maxsep.lab.engine.evaluate import known_ece
from maxsep.lab.recipes import paper
from maxsep.lab.report.accuracy import cell_spec
from maxsep.lab.report.comparison import Entry, Setting, distinctions
from maxsep.lab.report.model import Section
from maxsep.lab.report.statistics import Summary, summarise
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table, percent, rounded
from maxsep.lab.report.tail import FEW, GROUPS, MANY, by_group

_COLUMNS = ("head", "radius", "last epoch, %", "best epoch, %", "many, %", "medium, %", "few, %", "ECE, %")
_APART = (*_COLUMNS[:4], "mean over classes, %", *_COLUMNS[4:])
"""With the mean over classes, where it is not the accuracy."""
_SAME = 1e-6
"""Up to rounding the accuracy is the mean over classes if all have as many test images."""
_CAPTION = (
    f"Test accuracy; classes with more than {MANY} training images, with {FEW} to {MANY}, and with fewer than {FEW}. "
    "ECE: expected calibration error in 15 bins. Groups and ECE are those of the last epoch."
)


def shots_section(settings: Sequence[Setting]) -> Section | None:
    """Tabulate every setting with frequent and rare classes; nothing if there is none."""
    tailed = [setting for setting in settings if setting.is_tailed]
    labels = distinctions(tailed)
    if not tailed:
        return None
    built = []
    for number, (title, group) in enumerate(groupby(tailed, key=lambda setting: setting.title), 1):
        shown = list(group)
        apart = any(map(_has_unequal_test, shown))
        rows = [row for setting in shown for row in _rows(setting, labels[setting.spec], apart)]
        built.append(Table(f"shots-{number}", title, _APART if apart else _COLUMNS, tuple(rows), _CAPTION))
    text = [
        "Accuracy on a balanced test set is the mean over classes; on any other that mean stands beside it. The groups "
        "say where it comes from. The best epoch is chosen by test data: it is shown because others report it, and no "
        "claim rests on it.",
    ]
    if any(paper.long_tailed(cell_spec(s, method)) is not None for s in tailed for method in s.entries):
        text.append(paper.BEST_EPOCH)
    return Section("shots", "Frequent and rare classes", tuple(text), tuple(built))


def shots_of(entry: Entry) -> dict[str, dict[int, float]]:
    """Give each group's accuracy by seed, for the runs that recorded it."""
    found: dict[str, dict[int, float]] = {group: {} for group in GROUPS}
    for seed, record in sorted(entry.records.items()):
        for group, value in by_group(record.metrics).items():
            found[group][seed] = value
    return found


def _has_unequal_test(setting: Setting) -> bool:
    """Whether accuracy and mean over classes differ, which they do not where classes have as many test images."""
    records = (record for entry in setting.entries.values() for record in entry.records.values())
    found = ((record.value("top1"), record.value("balanced")) for record in records)
    return any(top1 is not None and mean is not None and abs(top1 - mean) > _SAME for top1, mean in found)


def _rows(setting: Setting, distinction: str, apart: bool) -> list[Row]:
    rows = [_row(setting, entry, apart) for entry in setting.entries.values()]
    group = setting.balance + (f" · {distinction}" if distinction else "")
    return [Row(row.cells, group if index == 0 else "") for index, row in enumerate(rows)]


def _row(setting: Setting, entry: Entry, apart: bool) -> Row:
    method, shots = entry.method, shots_of(entry)
    best = percent(entry.summary("best_top1"))
    number = paper.long_tailed(cell_spec(setting, method))
    if number is not None and best != EMPTY:
        best = Cell(best.text, f"paper: {number.value:.2f}", best.tone, best.value)
    return Row(
        (
            Cell(setting.name(method)),
            Cell(f"{method.radius:g}"),
            percent(entry.summary()),
            best,
            *([_short(entry.summary("balanced"))] if apart else []),
            *(_short(summarise(list(shots[group].values())) if shots[group] else None) for group in GROUPS),
            _short(_ece(entry)),
        )
    )


def _ece(entry: Entry) -> Summary | None:
    """Mean and spread of the calibration errors; a record with that of other probabilities than the loss's has none."""
    found = (known_ece(record.spec, record.metrics) for _, record in sorted(entry.records.items()))
    values = [value for value in found if value is not None]
    return summarise(values) if values else None


def _short(summary: Summary | None) -> Cell:
    """Mean as percent, the spread below it; the number of seeds stands in the row already."""
    if summary is None:
        return EMPTY
    spread = "" if summary.std is None else f"± {rounded(summary.std, scale=100)}"
    return Cell(rounded(summary.mean, scale=100), spread, value=100 * summary.mean)
