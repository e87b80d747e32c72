"""The main tables: the paper's accuracy, ours, and the gains over `plain` and over the control."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from maxsep.lab.recipes import paper
from maxsep.lab.report.comparison import BASE_HEADS, USUAL, Entry, Method, Setting, distinctions
from maxsep.lab.report.family import BY, Family, family, loss_metric
from maxsep.lab.report.statistics import Comparison, Summary, highest
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table, gain, percent, rounded
from maxsep.lab.spec import RunSpec

COLUMNS = (
    "head",
    "radius",
    "paper, %",
    "ours, %",
    "gain over plain",
    "gain over scaled, same radius",
)
CAPTION = (
    "Top-1 accuracy on the test set after the last epoch; gains in percentage points over common seeds. In bold: "
    "the highest mean of several over at least three seeds. Below each gain: the verdict of a paired two-sided t-test "
    "and its p-value, then the one after Holm's correction for the number of tests in these tables, where it is "
    "another. In colour: what is still more than noise after it."
)
_SAME_LOSS = "Heads are compared with heads of the same loss."
_LOSSES = "Plain heads of other losses are compared with the plain head of cross-entropy."
_BY_DIRECTION = "For heads that compare directions plain is cosine."
_CENTRED = (
    "Cosines with the columns of the matrix are, under SGD, a plain head with centred and normalised logits: the "
    "control here is centred_cosine."
)
_PROTOCOL_EPOCHS = {"resnet34": 200, "convnet": 90, "resnet32": 200}
_SECOND_STAGE_EPOCHS = 10
_FAR = 5.0
"""Percentage points between the paper's number and ours that call for a remark."""


def accuracy_tables(settings: Sequence[Setting], tests: Family | None = None) -> list[Table]:
    """Build one table for each dataset and network, with a block of rows for each setting.

    Args:
        settings: What to show.
        tests: The comparisons of all settings, as `family` makes them.
    """
    tests = family(settings) if tests is None else tests
    labels = distinctions(settings)
    tables = []
    for number, (title, group) in enumerate(groupby(settings, key=lambda setting: setting.title), 1):
        shown = list(group)
        rows = [row for setting in shown for row in _rows(setting, labels[setting.spec], tests)]
        caption = " ".join([CAPTION, *_bases(shown)])
        columns, rows = _without_empty_paper(_columns(shown), rows)
        tables.append(Table(f"accuracy-{number}", title, columns, tuple(rows), caption, numeric_from=1))
    return tables


def _bases(settings: Sequence[Setting]) -> list[str]:
    """Say what the column of gains over plain means where that is not one and the same head."""
    found = [
        plain.method for s in settings for m in s.entries if (plain := s.plain(m)) is not None and plain.method != m
    ]
    told = [_SAME_LOSS] if len({(base.loss, base.loss_options) for base in found}) > 1 else []
    if any(USUAL in s.entries and any(m.brings_loss for m in s.entries) for s in settings):
        told.append(_LOSSES)
    return [*told, *([_BY_DIRECTION] if any(base.head == "cosine" for base in found) else [])]


def compares_directions(settings: Sequence[Setting]) -> bool:
    """Whether all heads compare directions, so that none is compared with plain or scaled."""
    return all(_by_direction(settings))


def has_directions(settings: Sequence[Setting]) -> bool:
    """Whether some heads do, whose control is not scaled."""
    return any(_by_direction(settings))


def _by_direction(settings: Sequence[Setting]) -> list[bool]:
    return [method.plain.head == "cosine" for setting in settings for method in setting.entries]


def _columns(settings: Sequence[Setting]) -> tuple[str, ...]:
    """Name the heads that gains are over; where some heads compare directions and others do not, notes tell them."""
    if compares_directions(settings):
        return (*COLUMNS[:-2], "gain over cosine", "gain over its control")
    return (*COLUMNS[:-1], "gain over its control") if has_directions(settings) else COLUMNS


def _without_empty_paper(columns: tuple[str, ...], rows: list[Row]) -> tuple[tuple[str, ...], list[Row]]:
    """Leave the paper's column out where the paper has no number at all."""
    place = columns.index("paper, %")
    if any(row.cells[place] != EMPTY for row in rows):
        return columns, rows
    kept = [Row(row.cells[:place] + row.cells[place + 1 :], row.group) for row in rows]
    return columns[:place] + columns[place + 1 :], kept


def results(settings: Sequence[Setting], tests: Family | None = None) -> list[dict[str, Any]]:
    """List the same numbers for machines: accuracies as fractions, differences as fractions, values by seed.

    Args:
        settings: What to list; more than the tables show.
        tests: The comparisons that the tables show; only these are corrected for their number.
    """
    tests = {} if tests is None else tests
    found = []
    for setting in settings:
        for method, entry in setting.entries.items():
            summary = entry.summary()
            found.append(
                {
                    "setting": setting.spec.to_dict(),
                    "head": method.head,
                    "radius": method.radius,
                    "loss": method.loss,
                    "head_options": dict(method.head_options),
                    "loss_options": dict(method.loss_options),
                    "top1": entry.values(),
                    "best_top1": entry.values("best_top1"),
                    "mean": summary.mean if summary else None,
                    "std": summary.std if summary else None,
                    "paper": _paper_values(cell_spec(setting, method)),
                    "gain_over_plain": _plain_dict(
                        tests.get((setting.spec, method, "plain")) or setting.against(method, setting.plain(method))
                    ),
                    "gain_over_scaled": _plain_dict(
                        tests.get((setting.spec, method, "control")) or _against_control(setting, method)
                    ),
                }
            )
    return found


def _rows(setting: Setting, distinction: str, tests: Family) -> list[Row]:
    methods = list(setting.entries)
    best = highest(entry.summary() for entry in setting.entries.values())
    rows = []
    for method in methods:
        rows.append(_row(setting, setting.entries[method], best, tests))
        if method.head == "plain" and dataclasses.replace(method, head="maxsep") in methods:
            rows.append(_same_as_plain(setting.name(dataclasses.replace(method, head="scaled"))))
    group = setting.balance + (f" · {distinction}" if distinction else "")
    return [Row(row.cells, group if index == 0 else "") for index, row in enumerate(rows)]


def _row(setting: Setting, entry: Entry, best: float | None, tests: Family) -> Row:
    method = entry.method
    summary = entry.summary()
    ours = percent(summary, "strong" if summary and summary.mean == best else "")
    spec = cell_spec(setting, method)
    if remark := _remark(spec, summary):
        ours = dataclasses.replace(ours, notes=(remark,))
    over_plain = gain(tests.get((setting.spec, method, "plain")))
    if (of_loss := tests.get((setting.spec, method, "loss"))) is not None:
        found = gain(of_loss)
        over_plain = dataclasses.replace(found, detail=f"over cross-entropy{BY[loss_metric(setting)]}: {found.detail}")
    over_control = _control_cell(setting, method, tests)
    name = Cell(setting.name(method))
    return Row((name, Cell(f"{method.radius:g}"), _paper_cell(spec), ours, over_plain, over_control))


def _control_cell(setting: Setting, method: Method, tests: Family) -> Cell:
    if method.head in BASE_HEADS:
        return EMPTY
    control = setting.control(method)
    if control is not None and control.method.head == "plain":
        return Cell("= plain", "scaled at radius 1 is plain", "muted")
    if control is not None and control is setting.plain(method):
        return Cell(f"= {control.method.head}", "the same control", "muted")
    cell = gain(tests.get((setting.spec, method, "control")))
    if control is not None and control.method.head == "centred_cosine":
        return dataclasses.replace(cell, notes=(_CENTRED,))
    return cell


def _remark(spec: RunSpec, summary: Summary | None) -> str:
    """Say it where our number is far from the paper's although the experiment is meant to be the same."""
    number = paper.table1(spec) or paper.prototypes(spec)
    if number is None or summary is None or _is_other_experiment(spec):
        return ""
    apart, is_plain = 100 * summary.mean - number.value, spec.head == "plain"
    if abs(apart) <= _FAR:
        return ""
    numbers = "" if spec.precision == "32-true" else f", computed in {spec.precision}"
    beyond = summary.std is not None and abs(apart) > 3 * 100 * summary.std
    subset = "" if spec.imbalance == 1 else " The subset has the paper's class counts, but may hold other images."
    return (
        f"{rounded(abs(apart))} points {'above' if apart > 0 else 'below'} the paper's {number.value:.2f}"
        f"{', more than seeds explain' if beyond else ''}. The settings are those of the paper and its "
        f"released code{numbers}; "
        f"the cause is not known.{subset}{' Gains over this row are not the gains of the paper.' if is_plain else ''}"
    )


def _against_control(setting: Setting, method: Method) -> Comparison | None:
    return None if method.head in BASE_HEADS else setting.against(method, setting.control(method))


def _same_as_plain(label: str) -> Row:
    return Row((Cell(label), Cell("1"), EMPTY, Cell("= plain", "the same run", "muted"), EMPTY, EMPTY))


def cell_spec(setting: Setting, method: Method) -> RunSpec:
    """The run, but for its seed, that a method is in a setting."""
    return setting.spec.replace(
        head=method.head,
        radius=method.radius,
        head_options=method.head_options,
        loss=method.loss,
        loss_options=method.loss_options,
    )


def _paper_cell(spec: RunSpec) -> Cell:
    number = paper.table1(spec) or paper.prototypes(spec) or paper.long_tailed(spec) or paper.imagenet(spec)
    if number is None:
        return EMPTY
    bar = paper.error_bar(spec)
    detail = "" if bar is None else f"5 runs: {bar.value:.2f} ± {bar.std:.2f}"
    notes = list(paper.inconsistencies(spec))
    if paper.long_tailed(spec) is not None:
        notes.append(paper.BEST_EPOCH)
    if paper.imagenet(spec) is not None:
        notes.append(paper.UNTOLD)
    notes += _other_epochs(spec)
    if spec.max_train is not None or spec.max_test is not None:
        notes.append("These runs read a part of the data only: not the same experiment.")
    return Cell(f"{number.value:.2f}", detail, "", number.value, tuple(notes))


def _is_other_experiment(spec: RunSpec) -> bool:
    return bool(_other_epochs(spec)) or spec.max_train is not None or spec.max_test is not None


def _other_epochs(spec: RunSpec) -> list[str]:
    """Say if a run or the run it starts from has another length than in the paper."""
    protocol = _PROTOCOL_EPOCHS.get(spec.network) if spec.start_from is None else _SECOND_STAGE_EPOCHS
    first = [] if spec.start_from is None else _other_epochs(spec.start_from)
    if first or protocol is None or spec.epochs == protocol:
        return first
    return [f"The paper trains {protocol} epochs, these runs {spec.epochs}: not the same experiment."]


def _paper_values(spec: RunSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    lookups = {
        "table1": paper.table1,
        "prototypes": paper.prototypes,
        "fisher": paper.fisher,
        "long_tailed": paper.long_tailed,
        "imagenet": paper.imagenet,
    }
    for name, lookup in lookups.items():
        if (number := lookup(spec)) is not None:
            found[name] = number.value
    if (bar := paper.error_bar(spec)) is not None:
        found["error_bar"] = {"mean": bar.value, "std": bar.std}
    return found


def _plain_dict(comparison: Comparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    return {
        "difference": comparison.difference,
        "seeds": comparison.n,
        "p": comparison.p,
        "p_after_correction": comparison.adjusted,
        "verdict": comparison.verdict,
        "reason": comparison.reason,
    }
