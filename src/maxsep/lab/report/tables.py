"""Define tables as data, and the one table in which methods are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from maxsep.lab.recipes import paper
from maxsep.lab.report.controls import MATRIX_HEADS, Method
from maxsep.lab.report.rows import Setting
from maxsep.lab.report.statistics import Difference, plural
from maxsep.packages import load_package

Tone = Literal["", "up", "down", "muted"]
_TONES: dict[str, Tone] = {"better": "up", "worse": "down"}


@dataclass(frozen=True)
class Cell:
    """A cell: its text, a smaller second line, its number for machines, footnotes, and a picture as a data URI."""

    text: str
    detail: str = ""
    tone: Tone = ""
    value: float | None = None
    notes: tuple[str, ...] = ()
    image: str = ""


@dataclass(frozen=True)
class Row:
    """A row of cells; `group` names the block of rows it opens."""

    cells: tuple[Cell, ...]
    group: str = ""


EMPTY = Cell("\N{EN DASH}", tone="muted")


@dataclass(frozen=True)
class Table:
    """A table with its caption; `id` is its name in pages, too. A page shows a folded one only when asked."""

    id: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    folded: bool = False

    def __post_init__(self) -> None:
        """Refuse rows that do not fit the columns."""
        if wrong := [row for row in self.rows if len(row.cells) != len(self.columns)]:
            raise ValueError(f"table {self.id!r} has {len(self.columns)} columns, a row has {len(wrong[0].cells)}.")

    @property
    def notes(self) -> tuple[str, ...]:
        """All footnotes in the order of their first use."""
        return tuple(dict.fromkeys(note for row in self.rows for cell in row.cells for note in cell.notes))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        rows, group = [], ""
        for row in self.rows:
            group = row.group or group
            cells = [{k: v for k, v in asdict(cell).items() if k not in ("tone", "image")} for cell in row.cells]
            rows.append({"group": group, "cells": cells})
        return {"id": self.id, "title": self.title, "columns": list(self.columns), "rows": rows}

    def to_markdown(self) -> str:
        """Write a Markdown table with its footnotes below."""
        lines = [_line(self.columns), _line(["---", *["---:"] * (len(self.columns) - 1)])]
        for row in self.rows:
            lines += [_line([f"**{row.group}**", *[""] * (len(self.columns) - 1)])] if row.group else []
            lines.append(_line([self._markdown(cell) for cell in row.cells]))
        return "\n".join([*lines, *(f"\n{number}. {note}" for number, note in enumerate(self.notes, 1))])

    def _markdown(self, cell: Cell) -> str:
        mark = f" [{', '.join(str(self.notes.index(note) + 1) for note in cell.notes)}]" if cell.notes else ""
        return f"{cell.text}{f' ({cell.detail})' if cell.detail else ''}{mark}"

    def without(self, columns: Sequence[str]) -> Table:
        """Return the table without some columns."""
        kept = [number for number, column in enumerate(self.columns) if column not in columns]
        rows = tuple(Row(tuple(row.cells[number] for number in kept), row.group) for row in self.rows)
        return replace(self, columns=tuple(self.columns[number] for number in kept), rows=rows)

    def to_rich(self) -> Any:
        """Return the table for a terminal, without second lines."""
        table = load_package("rich.table", "lab").Table(box=load_package("rich.box", "lab").SIMPLE_HEAD, pad_edge=False)
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*(cell.text for cell in row.cells))
        return table


@dataclass(frozen=True)
class Measure:
    """A column of numbers: the metric, its heading, and how it is written; points have one digit in intervals."""

    metric: str
    heading: str
    scale: float = 100
    digits: int = 2

    def difference(self, difference: Difference | None) -> Cell:
        """Write an estimate with its interval; below it the word that it allows, and the repetitions needed."""
        if difference is None:
            return EMPTY
        tone, needed = _TONES.get(difference.word, "muted"), difference.repetitions_needed
        detail = difference.word + (f", about {needed} needed" if needed and self.scale == 100 else "")
        return Cell(self.interval(difference), detail, tone, self.scale * difference.estimate)

    def interval(self, difference: Difference) -> str:
        """Write an estimate with its interval in the units of the column."""
        return difference.format(self.scale, 1 if self.scale == 100 else self.digits)


ACCURACY = Measure("top1", "accuracy, %")
BEST = Measure("best_top1", "best epoch, %")
ECE = Measure("ece", "ECE, %", digits=1)
BALANCED = Measure("balanced", "mean over classes, %")
MACRO_F1 = Measure("macro_f1", "macro-F1, %")
DIFFERENCES = ("to linear", "to the baseline", "to the control")
"""Columns of `comparison_table` that compare methods with each other."""
GROUPS = "many / medium / few, %"
TOP5 = Measure("top5", "top-5, %")
FISHER = Measure("angular_fisher", "angular Fisher score", 1, 4)


@dataclass(frozen=True)
class SettingRows:
    """The rows of one setting; the first measure is compared, `groups` adds the accuracy of classes by frequency."""

    label: str
    setting: Setting
    measures: tuple[Measure, ...]
    groups: bool = False

    @property
    def methods(self) -> list[Method]:
        """The methods that were measured."""
        return [method for method in self.setting.methods if self.setting.values(method, self.measures[0].metric)]


def comparison_table(
    id: str,
    title: str,
    blocks: Sequence[SettingRows],
    caption: str = "",
    folded: bool = False,
    extra: Sequence[Row] = (),
) -> Table:
    """Compare methods: ours with its interval, the differences to the paper, to the baseline and to the control.

    Blocks have as many measures each; columns that no row fills are left out. `extra` are rows of two cells, with
    numbers that others published, which come first.
    """
    first, *others = blocks[0].measures
    baselines = {baseline.head for block in blocks for m in block.methods if (baseline := block.setting.baseline(m))}
    to_baseline = "to linear" if baselines <= {"plain"} else "to the baseline"
    columns = ["method", first.heading, "to the paper", to_baseline, "to the control"]
    columns += [measure.heading for measure in others] + [GROUPS] * blocks[0].groups
    rows = [Row((*row.cells, *[EMPTY] * (len(columns) - len(row.cells))), row.group) for row in extra]
    for block in blocks:
        for number, method in enumerate(block.methods):
            rows.append(Row(tuple(_cells(block, method)), block.label if number == 0 else ""))
    kept = [i for i in range(len(columns)) if i < 2 or any(row.cells[i] != EMPTY for row in rows)]
    kept_rows = tuple(Row(tuple(row.cells[i] for i in kept), row.group) for row in rows)
    return Table(id, title, tuple(columns[i] for i in kept), kept_rows, caption, folded)


def _cells(block: SettingRows, method: Method) -> list[Cell]:
    setting, (first, *others) = block.setting, block.measures
    baseline, control = setting.baseline(method), setting.control(method)
    losses = method.brings_loss and first.metric == "top1" and setting.is_tailed
    metric = "balanced" if losses else first.metric  # what losses for rare classes are for
    to_control = first.difference(setting.difference(method, control, first.metric))
    if control is not None and control == baseline and method.head in MATRIX_HEADS:
        to_control = Cell("= linear" if control.head == "plain" else f"= {control.head}", "", "muted")
    return [
        Cell(setting.name(method)),
        _measured(setting, method, first, True),
        _to_paper(setting, method, first),
        first.difference(setting.difference(method, baseline, metric)),
        to_control,
        *(_measured(setting, method, measure, False) for measure in others),
        *([_groups(setting, method)] if block.groups else []),
    ]


def _measured(setting: Setting, method: Method, measure: Measure, main: bool) -> Cell:
    """Write a mean; in the main column with interval and repetitions, else with the paper's number below it."""
    summary = setting.summary(method, measure.metric)
    if summary is None:
        return EMPTY
    printed, _ = paper.best_cell(setting.cells(method), measure.metric)
    text = f"{measure.scale * summary.mean:.{measure.digits}f}"
    detail = f"paper {printed.value:.{measure.digits}f}" if printed is not None else ""
    if main:
        detail = plural(summary.n, setting.unit) + ", earlier draw" * setting.earlier_draw
        if summary.low is not None and summary.high is not None:
            digits = 1 if measure.scale == 100 else measure.digits
            low, high = max(0.0, measure.scale * summary.low), measure.scale * summary.high
            high = min(high, 100.0) if measure.scale == 100 else high
            if (low, high, measure.scale) != (0.0, 100.0, 100):  # all of 0 to 100 says nothing
                text += f" [{low:.{digits}f}, {high:.{digits}f}]"
    return Cell(text, detail, "", measure.scale * summary.mean)


def _to_paper(setting: Setting, method: Method, measure: Measure) -> Cell:
    """Write ours minus the paper's; the word only for runs that count and are the same experiment."""
    reached = setting.reached(method, measure.metric)
    printed, bar = paper.best_cell(setting.cells(method), measure.metric)
    if reached is None or printed is None:
        return EMPTY
    departures = paper.departures(setting.spec_of(method))
    word = "not counted" if setting.earlier_draw or departures else reached.agreement
    detail = f"{word}: " * bool(word) + f"paper {printed.value:.{measure.digits}f}"
    detail += "" if bar is None else f", 5 runs {bar.value:.2f}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{bar.std:.2f}"
    tone: Tone = "" if reached.is_reached is False and word != "not counted" else "muted"
    notes = tuple(filter(None, (printed.note, *departures)))
    return Cell(measure.interval(reached), detail, tone, measure.scale * reached.estimate, notes)


def _groups(setting: Setting, method: Method) -> Cell:
    summaries = [setting.summary(method, group) for group in ("many", "medium", "few")]
    texts = [f"{100 * summary.mean:.1f}" if summary else EMPTY.text for summary in summaries]
    return Cell(" / ".join(texts)) if any(summaries) else EMPTY


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
