"""Tables as data: what they say, apart from how a page, a text or a file shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal

from maxsep.lab.report.statistics import Comparison, Summary

Tone = Literal["", "up", "down", "muted", "strong"]


@dataclass(frozen=True)
class Cell:
    """A cell: its text, a smaller second line, its number for machines, and footnotes."""

    text: str
    detail: str = ""
    tone: Tone = ""
    value: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A row of cells; `group` names the block of rows it opens."""

    cells: tuple[Cell, ...]
    group: str = ""


@dataclass(frozen=True)
class Table:
    """A table with its caption; numbers are aligned from the column `numeric_from` on."""

    id: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    numeric_from: int = 1
    folded: bool = False
    """Whether a page shows it only when asked."""

    def __post_init__(self) -> None:
        """Refuse rows that do not fit the columns."""
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(
                    f"table {self.id!r} has {len(self.columns)} columns, but a row has {len(row.cells)} cells. "
                    "Give every row a cell for each column."
                )

    @property
    def notes(self) -> tuple[str, ...]:
        """All footnotes in the order of their first use."""
        return tuple(dict.fromkeys(note for row in self.rows for cell in row.cells for note in cell.notes))

    def marks(self, cell: Cell) -> str:
        """The footnote numbers of a cell.

        >>> Table("t", "T", ("a",), (Row((Cell("1", notes=("why",)),)),)).marks(Cell("", notes=("why",)))
        '1'
        """
        return ", ".join(str(self.notes.index(note) + 1) for note in cell.notes)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        rows, group = [], ""
        for row in self.rows:
            group = row.group or group
            cells = [{"text": c.text, "detail": c.detail, "value": c.value, "notes": list(c.notes)} for c in row.cells]
            rows.append({"group": group, "cells": cells})
        return {"id": self.id, "title": self.title, "columns": list(self.columns), "rows": rows}

    def to_markdown(self) -> str:
        """A Markdown table with its footnotes below."""
        numeric = ["---:" if i >= self.numeric_from else "---" for i in range(len(self.columns))]
        lines = [_line(self.columns), _line(numeric)]
        for row in self.rows:
            if row.group:
                lines.append(_line([f"**{row.group}**", *[""] * (len(self.columns) - 1)]))
            lines.append(_line([self._markdown_cell(cell) for cell in row.cells]))
        lines += [f"\n{number}. {note}" for number, note in enumerate(self.notes, 1)]
        return "\n".join(lines)

    def _markdown_cell(self, cell: Cell) -> str:
        text = f"**{cell.text}**" if cell.tone == "strong" else cell.text
        mark = f" [{self.marks(cell)}]" if cell.notes else ""
        detail = f" ({cell.detail})" if cell.detail else ""
        return f"{text}{detail}{mark}"


EMPTY = Cell("\N{EN DASH}", tone="muted")


def percent(summary: Summary | None, tone: Tone = "") -> Cell:
    """Mean and spread of fractions as percent, with the number of seeds.

    >>> percent(Summary(0.5, 0.01, 3)).text
    '50.00 ± 1.00'
    """
    if summary is None:
        return EMPTY
    spread = "" if summary.std is None else f" ± {rounded(summary.std, scale=100)}"
    return Cell(f"{rounded(summary.mean, scale=100)}{spread}", seeds_text(summary.n), tone, 100 * summary.mean)


def seeds_text(count: int) -> str:
    """A number of seeds.

    >>> seeds_text(1), seeds_text(3)
    ('1 seed', '3 seeds')
    """
    return f"{count} seed{'' if count == 1 else 's'}"


def rounded(value: float, digits: int = 2, scale: int = 1) -> str:
    """Write a number as one would round it by hand: as its decimals stand, halves away from zero.

    >>> rounded(2.675), f"{2.675:.2f}"
    ('2.68', '2.67')
    """
    exact = Decimal(repr(float(value))) * scale
    return str(exact.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP))


def gain(
    comparison: Comparison | None,
    scale: int = 100,
    digits: int = 2,
    less_is_better: bool = False,
    brief: bool = False,
) -> Cell:
    """A difference with the verdict of the test below it; only what holds after correction is coloured.

    `brief` leaves the words to the colour and keeps the p-value, for tables with many columns.

    >>> gain(Comparison(0.05, 3, 0.01, "more than noise")).text
    '+5.00'
    """
    if comparison is None:
        return EMPTY
    better = (comparison.difference < 0) if less_is_better else (comparison.difference > 0)
    tone: Tone = "muted"
    if comparison.holds:
        tone = "up" if better else "down"
    elif comparison.passes:
        tone = ""
    text = signed(comparison.difference, digits, scale)
    detail = verdict_text(comparison)
    if brief and comparison.p is not None:
        detail = p_text(comparison.p)
    return Cell(text, detail, tone, comparison.difference * scale)


def verdict_text(comparison: Comparison) -> str:
    """What the test says, in a few words.

    >>> verdict_text(Comparison(0.05, 2, None, "not testable"))
    'not testable'

    Behind the p-value stands the corrected one where it is another. Where correction takes a verdict away, only the
    numbers are left.

    >>> verdict_text(Comparison(0.05, 3, 0.2, "noise", adjusted=0.6))
    'noise, p = 0.20, corrected 0.60'
    >>> verdict_text(Comparison(0.05, 3, 0.04, "more than noise", adjusted=0.12))
    'p = 0.040, corrected 0.12'
    """
    if comparison.p is None:
        return comparison.verdict
    words: list[str] = [] if comparison.passes and not comparison.holds else [comparison.verdict]
    words.append(p_text(comparison.p))
    if comparison.adjusted not in (None, comparison.p):
        words.append(f"corrected {p_text(comparison.adjusted).removeprefix('p ').removeprefix('= ')}")
    return ", ".join(words)


def p_text(p: float) -> str:
    """A p-value to two digits, never as zero.

    >>> p_text(0.0321), p_text(1e-9)
    ('p = 0.032', 'p < 0.001')
    """
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def signed(value: float, digits: int = 2, scale: int = 1) -> str:
    """A number with its sign, with a true minus.

    >>> signed(-1.5), signed(0.0)
    ('−1.50', '0.00')
    """
    text = rounded(value, digits, scale)
    if float(text) == 0:
        return text.removeprefix("-")
    return text.replace("-", "\N{MINUS SIGN}") if text.startswith("-") else f"+{text}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
