"""Long-tailed settings: accuracy of frequent and of rare classes, and the last epoch beside the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from maxsep.analysis import accuracy_by_shot
from maxsep.lab.engine.evaluation import known_ece
from maxsep.lab.recipes import paper
from maxsep.lab.report.accuracy import cell_spec
from maxsep.lab.report.collect import Record
from maxsep.lab.report.comparison import Entry, Setting, distinctions
from maxsep.lab.report.model import Section
from maxsep.lab.report.statistics import Summary, summarise
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table, percent

MANY, FEW = 100, 20
"""A class has many images above the first number and few below the second; between them, both included, is medium."""
GROUPS = ("many", "medium", "few")
_COLUMNS = ("head", "radius", "last epoch, %", "best epoch, %", "many, %", "medium, %", "few, %", "ECE, %")
_CAPTION = (
    f"Test accuracy; classes with more than {MANY} training images, with {FEW} to {MANY}, and with fewer than {FEW}. "
    "ECE: expected calibration error in 15 bins. Groups and ECE are those of the last epoch."
)


def shots_section(settings: Sequence[Setting]) -> Section | None:
    """Tabulate every long-tailed setting; nothing if there is none."""
    tailed = [setting for setting in settings if setting.spec.imbalance < 1]
    labels = distinctions(tailed)
    tables: dict[str, list[Row]] = {}
    for setting in tailed:
        group = setting.balance + (f" · {labels[setting.spec]}" if labels[setting.spec] else "")
        rows = [_row(setting, entry) for entry in setting.entries.values()]
        tables.setdefault(setting.title, []).extend(
            Row(row.cells, group if index == 0 else "") for index, row in enumerate(rows)
        )
    if not tables:
        return None
    text = [
        "Accuracy on a balanced test set is the mean over classes; these columns say where it comes from. The best "
        "epoch is chosen by test data: it is shown because others report it, and no claim rests on it.",
    ]
    if any(paper.long_tailed(cell_spec(s, method)) is not None for s in tailed for method in s.entries):
        text.append(paper.BEST_EPOCH)
    built = tuple(
        Table(f"shots-{number}", title, _COLUMNS, tuple(rows), _CAPTION)
        for number, (title, rows) in enumerate(tables.items(), 1)
    )
    return Section("shots", "Frequent and rare classes", tuple(text), built)


def shots_of(entry: Entry) -> dict[str, dict[int, float]]:
    """Give each group's accuracy by seed, for the runs that recorded it."""
    found: dict[str, dict[int, float]] = {group: {} for group in GROUPS}
    for seed, record in sorted(entry.records.items()):
        for group, value in _of_record(record).items():
            if value is not None:
                found[group][seed] = value
    return found


def _of_record(record: Record) -> Mapping[str, float | None]:
    per_class, counts = record.metrics.get("per_class"), record.metrics.get("class_counts")
    if not per_class or not counts or len(per_class) != len(counts):
        return {}
    known = [math.nan if accuracy is None else accuracy for accuracy in per_class]
    shots = accuracy_by_shot(known, counts, many=MANY, few=FEW)
    return {group: shots[group] for group in GROUPS}


def _row(setting: Setting, entry: Entry) -> Row:
    method, shots = entry.method, shots_of(entry)
    best = percent(entry.summary("best_top1"))
    number = paper.long_tailed(cell_spec(setting, method))
    if number is not None and best != EMPTY:
        best = Cell(best.text, f"paper: {number.value:.2f}", best.tone, best.value)
    return Row(
        (
            Cell(method.label),
            Cell(f"{method.radius:g}"),
            percent(entry.summary()),
            best,
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
    """Mean and spread as percent, without the number of seeds, which stands in the row already."""
    cell = percent(summary)
    return cell if cell == EMPTY else Cell(cell.text, value=cell.value)
