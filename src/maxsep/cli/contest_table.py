"""How a comparison on one's own data looks on a terminal: what was compared, the table, the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maxsep.lab.data import Dataset
from maxsep.lab.report.comparison import MATRIX_HEADS, Entry
from maxsep.lab.report.contest import Contest, Contestant
from maxsep.lab.report.statistics import Comparison
from maxsep.lab.report.tables import p_text, percent, rounded, signed
from maxsep.lab.report.tail import GROUPS, sizes
from maxsep.lab.report.verdict import verdict
from maxsep.lab.spec import RunSpec

EMPTY = "-"
_CONTROLS = {
    "plain": "scaled is the plain head times the radius: the control. At radius 1 it is plain itself.",
    "cosine": (
        "cosine is the plain head of LDAM, and the control of cosine_maxsep. The control of maxsep_cosine is "
        "centred_cosine, a plain layer whose logits are centred and normalised."
    ),
}
"""By plain head: what its matrix heads are compared with beside it."""


def about(found: Contest, specs: Sequence[RunSpec]) -> dict[str, Any]:
    """Say as data what was compared: the images, where the test images come from, the setting of all runs."""
    base = specs[0].replace(head="plain", radius=1.0, loss="cross_entropy", loss_options=(), seed=0).to_dict()
    images = {"class_counts": found.class_counts, "num_train": sum(found.class_counts) or None, "num_test": None}
    if found.records:
        images["num_test"] = found.records[0].metrics["num_test"]
    return {
        "data": specs[0].dataset,
        **images,
        "test_images": Dataset.parse(specs[0].dataset).test_description,
        "setting": base,
        "seeds": sorted({spec.seed for spec in specs}),
    }


def table(found: Contest, specs: Sequence[RunSpec]) -> list[str]:
    """Write the table in lines: what was compared, one row for each arm, then a verdict for each comparison."""
    return [*_header(found, specs), "", *_rows(found), "", *_verdicts(found)]


def _header(found: Contest, specs: Sequence[RunSpec]) -> list[str]:
    spec = specs[0]
    lines = []
    if found.records:
        test = f"{found.records[0].metrics['num_test']:,} test images ({Dataset.parse(spec.dataset).test_description})"
        counts = found.class_counts
        lines.append(f"{spec.dataset}: {sum(counts):,} training images of {len(counts)} classes, {test}.")
    tail = "" if spec.imbalance == 1 else f", a long tail of {spec.imbalance:g}"
    augmentation = "no augmentation" if spec.augmentation == "none" else spec.augmentation
    lines.append(
        f"{spec.network}, {spec.epochs} epochs of {spec.optimiser} at {spec.learning_rate:g}, batches of "
        f"{spec.batch_size}, {augmentation}{tail}."
    )
    lines.append("Accuracy after the last epoch; nothing was chosen on the test images, neither radius nor epoch.")
    return lines


def _rows(found: Contest) -> list[str]:
    bases = {item.method.plain.head for item in found.contestants}
    control = "over scaled, same radius" if bases == {"plain"} else "over its control"
    columns = ["", "accuracy, %", "seeds", f"over {' or '.join(sorted(bases, reverse=True))}", control]
    groups = [group for group in GROUPS if any(group in item.groups for item in found.contestants)]
    if found.unequal:
        columns[2:2] = ["mean over classes, %", *([f"{' / '.join(groups)}, %"] if groups else [])]
    grid = [columns, *(_row(item, groups, found.unequal) for item in found.contestants)]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in grid]
    notes = [note for base, note in _CONTROLS.items() if base in bases]
    rivals = any(item.rival for item in found.contestants)
    if len({item.method.loss for item in found.contestants}) > 1:
        losses = "losses with cross-entropy, by the plain head" if rivals else "losses with none: add cross_entropy"
        notes.append(f"Every head is compared with heads of the same loss; {losses}.")
    if found.tests == 1:
        notes.append("Differences in points; p of a paired two-sided t-test.")
    elif found.tests:
        notes.append(
            f"Differences in points; p of paired two-sided t-tests after Holm's correction for {found.tests} tests "
            "(the report has p before it, too)."
        )
    if found.unequal:
        of_heads = "The tests of heads are of the accuracy, those of losses of the mean over classes."
        tests = of_heads if rivals else "The tests are of the accuracy."
        notes.append(f"The classes are unequal: the mean over classes counts each alike. {tests}")
        notes += [f"{sizes(found.class_counts).capitalize()}."] if groups else []
    return [*lines, *notes]


def _row(item: Contestant, groups: Sequence[str], unequal: bool) -> list[str]:
    cells = [item.label, _percent(item.entry, "top1"), str(len(item.entry.values()) or EMPTY)]
    if unequal:
        shots = [rounded(item.groups[group], 1, scale=100) if group in item.groups else EMPTY for group in groups]
        cells[2:2] = [_percent(item.entry, "balanced"), *([" / ".join(shots)] if groups else [])]
    if item.is_plain:
        told = f"{_difference(item.over_loss)} over cross-entropy" if item.rival else ""
        return [*cells, told, ""]
    over = f"= {item.method.plain.head}" if item.method.head in MATRIX_HEADS else ""
    over = _difference(item.over_control) if item.has_control else over
    return [*cells, _difference(item.over_plain), over]


def _percent(entry: Entry, metric: str) -> str:
    summary = entry.summary(metric)
    return EMPTY if summary is None else percent(summary).text


def _difference(found: Comparison | None) -> str:
    if found is None:
        return EMPTY
    p = found.p if found.adjusted is None else found.adjusted
    return signed(found.difference, scale=100) + ("" if p is None else f" ({p_text(p)})")


def _verdicts(found: Contest) -> list[str]:
    return [f"{label}, against {other}: {verdict(comparison)}." for label, other, comparison in found.verdicts()]
