"""The angular Fisher score of the features beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from maxsep.lab.recipes import paper
from maxsep.lab.recipes.paper import PaperNumber
from maxsep.lab.report.comparison import Method, Setting
from maxsep.lab.report.model import Section
from maxsep.lab.report.statistics import Comparison, Summary, adjust
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table, gain, seeds_text

_HEADS = ("plain", "scaled", "maxsep")
_FAR = 1.5
"""The factor between the paper's score and ours that calls for a remark."""


def fisher_section(settings: Sequence[Setting]) -> Section | None:
    """Tabulate the angular Fisher score, with the paper's where it has one."""
    shown = [s for s in settings if s.spec.network == "resnet34"] or settings  # as the paper does
    found = [(s, m, summary) for s in shown for m in s.entries if (summary := _summary(s, m)) is not None]
    if not found:
        return None
    pairs = [_comparisons(setting, method) for setting, method, _ in found]
    corrected = adjust([comparison for pair in pairs for comparison in pair])
    numbers = [paper.fisher(setting.spec.replace(head=m.head, radius=m.radius)) for setting, m, _ in found]
    with_paper = any(number is not None for number in numbers)
    rows: list[Row] = []
    last: Setting | None = None
    for place, (setting, method, summary) in enumerate(found):
        cells = [Cell(setting.name(method)), Cell(f"{method.radius:g}")]
        cells += [_paper_cell(numbers[place])] if with_paper else []
        cells.append(_ours(setting, summary, numbers[place]))
        cells += [gain(comparison, 1, 4, less_is_better=True) for comparison in corrected[2 * place : 2 * place + 2]]
        rows.append(Row(tuple(cells), "" if setting is last else setting.label))
        last = setting
    columns = ("head", "radius", *(("paper",) if with_paper else ()), "ours")
    columns += ("difference to plain", "difference to scaled, same radius")
    caption = (
        "Lower is better. Behind a p-value stands the one after Holm's correction for the tests of this table, where "
        "it is another; in colour: what is still more than noise after it."
    )
    text = "Spread of the features within classes over the spread of class means, both in angle, on test features "
    text += "before the head." + (" The paper does not say which features it used." if with_paper else "")
    table = Table("fisher", "Angular Fisher score", columns, tuple(rows), caption, 1)
    return Section("fisher", "Angular Fisher score", (text,), (table,))


def _summary(setting: Setting, method: Method) -> Summary | None:
    return setting.entries[method].summary("angular_fisher") if method.head in _HEADS else None


def _comparisons(setting: Setting, method: Method) -> tuple[Comparison | None, Comparison | None]:
    control = None if method.head != "maxsep" or method.radius == 1 else setting.control(method)
    return (
        setting.against(method, setting.plain(method), "angular_fisher"),
        setting.against(method, control, "angular_fisher"),
    )


def _paper_cell(number: PaperNumber | None) -> Cell:
    return EMPTY if number is None else Cell(f"{number.value:.4f}", value=number.value)


def _ours(setting: Setting, summary: Summary, number: PaperNumber | None) -> Cell:
    spread = "" if summary.std is None else f" ± {summary.std:.4f}"
    notes: tuple[str, ...] = ()
    factor = 1.0 if number is None else summary.mean / number.value
    if not 1 / _FAR <= factor <= _FAR:
        notes = (
            f"{factor:.1f} times the paper's score. The paper gives neither the features nor every step of the "
            "formula, so the two columns may not measure the same thing; compare the rows of ours with each other.",
        )
    return Cell(f"{summary.mean:.4f}{spread}", seeds_text(summary.n), "", summary.mean, notes)
