"""The input step of the Mahalanobis detector: which one was chosen, and what the others would have given."""

from __future__ import annotations

from collections.abc import Mapping

from maxsep.lab.report.comparison import Entry, Setting
from maxsep.lab.report.statistics import summarise
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table, rounded

_CAPTION = (
    "AUROC in percent on all images, means over seeds; bold: the step chosen on outsiders made from training images, "
    "which no column here had a say in."
)


def chosen_steps(setting: Setting, where: str) -> list[str]:
    """Say which input steps were chosen; nothing if no run of the setting has that detector."""
    words = []
    for method, entry in setting.entries.items():
        found = sorted(_chosen(entry))
        words += [f"{setting.full_name(method)}: {' or '.join(f'{value:g}' for value in found)}"] if found else []
    if not words:
        return []
    return [f"Input step of the Mahalanobis detector, chosen on outsiders made from training images. {where}: "
            f"{'; '.join(words)}."]  # fmt: skip


def steps_table(id: str, title: str, setting: Setting, sets: Mapping[str, str]) -> Table | None:
    """Tabulate the AUROC at every input step.

    Args:
        id: Identifier on the page.
        title: The setting.
        setting: The runs.
        sets: For each set of outliers, what it is.
    """
    steps = sorted({float(step) for entry in setting.entries.values() for name in sets for step in _sweep(entry, name)})
    if len(steps) < 2:
        return None
    rows: list[Row] = []
    for name, origin in sets.items():
        group = origin
        for method, entry in setting.entries.items():
            sweep, chosen = _sweep(entry, name), _chosen(entry)
            if sweep:
                cells = [_cell(sweep.get(f"{step:g}", []), step in chosen) for step in steps]
                rows.append(Row((Cell(setting.full_name(method)), *cells), group))
                group = ""
    columns = ("head", *(f"step {step:g}" if step else "no step" for step in steps))
    return Table(id, f"Mahalanobis at every input step: {title}", columns, tuple(rows), _CAPTION, 1, folded=True)


def steps_taken(entry: Entry) -> set[float]:
    """The chosen steps of a head's runs that change an image."""
    return _chosen(entry) - {0.0}


def _sweep(entry: Entry, outliers: str) -> dict[str, list[float]]:
    """For each step, its AUROC for every seed."""
    found: dict[str, list[float]] = {}
    for record in entry.records.values():
        for step, told in (record.detection or {}).get("sets", {}).get(outliers, {}).get("sweep", {}).items():
            found.setdefault(step, []).append(float(told["auroc"]))
    return found


def _chosen(entry: Entry) -> set[float]:
    told = [(record.detection or {}).get("mahalanobis", {}).get("chosen") for record in entry.records.values()]
    return {value for value in told if isinstance(value, int | float)}


def _cell(values: list[float], chosen: bool) -> Cell:
    if not values:
        return EMPTY
    mean = summarise(values).mean
    return Cell(rounded(mean, scale=100), "", "strong" if chosen else "", 100 * mean)
