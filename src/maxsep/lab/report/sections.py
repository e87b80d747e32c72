"""The sections of a report, each built only if there are runs for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from maxsep.lab.recipes import paper
from maxsep.lab.recipes.recipe import choose_radii, validation_metric
from maxsep.lab.report.accuracy import accuracy_tables, cell_spec, compares_directions, has_directions
from maxsep.lab.report.comparison import Entry, Method, Setting, duel
from maxsep.lab.report.family import Family
from maxsep.lab.report.figures import (
    accuracy_curves_figure,
    bars_figure,
    curves_figure,
    frequency_figure,
    radius_figure,
)
from maxsep.lab.report.model import Section
from maxsep.lab.report.statistics import Summary
from maxsep.lab.report.svg import Figure
from maxsep.lab.report.tables import Table
from maxsep.lab.spec import RunSpec

_MOST_FIGURES = 12
_PAPER_RADIUS = {"resnet34": 0.1, "convnet": 1.0}
_DRAWN = ("plain", "scaled", "maxsep", "learnable_matrix", "extra_layer", "etf")
_LEARNED = ("learnable_matrix", "extra_layer", "etf")
_DIRECTIONS = {
    "cosine": "plain",
    "cosine_maxsep": "maxsep",
    "centred_cosine": "centred",
    "maxsep_cosine": "learnable_matrix",
}
"""Heads that compare directions, and whose colour they have where no such head is beside them."""
_Logs = Mapping[str, Sequence[Mapping[str, Any]]]


def accuracy_section(settings: Sequence[Setting], tests: Family | None = None) -> Section | None:
    """Compare accuracies with the paper, with `plain` and with the control."""
    if not settings:
        return None
    heads = "plain, as the paper does, and over scaled, a plain head multiplied by the same radius"
    if compares_directions(settings):
        heads = "cosine, the plain head of losses for cosines, and over the control of the head, where that is another"
    elif has_directions(settings):
        heads = (
            "plain, as the paper does (cosine for heads that compare directions), and over the control of the head: "
            "scaled, a plain head multiplied by the same radius, or for heads that compare directions one of their own"
        )
    text = (f"Every gain is shown twice: over {heads}. Only the second says what the matrix itself does.",)
    tables = tuple(accuracy_tables(settings, tests))
    runs = (cell_spec(setting, method) for setting in settings for method in setting.entries)
    after = (paper.PATTERN,) if any(map(paper.table1, runs)) else ()
    return Section("accuracy", "Accuracy", text, tables, after=after)


def chosen_radii(settings: Sequence[Setting]) -> dict[RunSpec, dict[str, float]]:
    """The radius that held-out data chose for each head, for every setting that was searched to the end.

    The key is the searched setting on all of its training data: the choice holds there and nowhere else. A search
    with runs missing chooses nothing.
    """
    return {
        setting.spec.replace(validation=0.0): choose_radii(_scores(setting))
        for setting in settings
        if _curves(setting) and _is_complete(setting)
    }


def radius_section(validation: Sequence[Setting], test: Sequence[Setting]) -> Section | None:
    """Show accuracy against the radius: on held-out training data, and on test data where several were run."""
    figures: list[Figure] = []
    text: list[str] = []
    for number, setting in enumerate(validation, 1):
        if curves := _curves(setting):
            complete = _is_complete(setting)
            chosen = choose_radii(_scores(setting)) if complete else {}
            figures.append(_radius_figure(f"radius-{number}", setting, curves, chosen, "held-out data"))
            if not complete:
                text.append(
                    f"{setting.label}: the search for the radius is not complete, some of its runs are missing. "
                    "Nothing was chosen."
                )
                continue
            words = ", ".join(f"{radius:g} for {head}" for head, radius in chosen.items())
            part = f"{100 * setting.spec.validation:g} %"
            kind = "the mean accuracy of the classes" if _metric(setting) == "balanced" else "the accuracy"
            text.append(
                f"{setting.label}: the radius was chosen by {kind} on {part} of every training class, held out and "
                f"never trained on; the test set was not read. Best: {words}."
            )
    searched = {(setting.spec.dataset, setting.spec.network) for setting in validation}
    for number, setting in enumerate(test, 1):
        curves = _curves(setting)
        if curves and (setting.spec.dataset, setting.spec.network) not in searched:
            figures.append(_radius_figure(f"radius-test-{number}", setting, curves, {}, "test data"))
            text.append(
                f"{setting.label}: the test accuracies of the radii that were run are shown for comparison; nothing "
                "was chosen by them."
            )
    if not figures:
        return None
    text.insert(
        0,
        "The radius multiplies the logits and, squared, the step size of the last layer. One radius does not suit all "
        "data: the paper's 0.1 was found on CIFAR.",
    )
    return Section("radius", "What the radius does", tuple(text), figures=tuple(figures))


def frequency_section(settings: Sequence[Setting]) -> Section | None:
    """Show the gain of each class over the plain head against its number of training images."""
    figures: list[Figure] = []
    for number, setting in enumerate(settings, 1):
        plain = setting.entries.get(Method("plain", 1.0))
        counts = setting.class_counts
        if not setting.is_tailed or plain is None or not counts or min(counts) == 0:
            continue
        for radius in _radii(setting):
            gains = {
                head: values
                for head in ("scaled", "maxsep")
                if (entry := setting.entries.get(Method(head, radius)))
                and (values := _class_gains(entry, plain, len(counts)))
            }
            if gains:
                title = f"{setting.label}, radius {radius:g}"
                figures.append(frequency_figure(f"frequency-{number}-{len(figures)}", title, counts, gains))
    if not figures:
        return None
    text = ["Test accuracy of each class minus that of the plain head, averaged over common seeds."]
    return Section("frequency", "Gain per class against class frequency", *_first(text, figures))


def fixed_section(settings: Sequence[Setting]) -> Section | None:
    """Show fixed against learnable matrices as bars."""
    wanted = [s for s in settings if any(method.head in _LEARNED for method in s.entries)]
    figures = []
    for number, (title, group) in enumerate(groupby(wanted, key=lambda setting: setting.title), 1):
        bars = []
        for setting in group:
            found = {
                method.head: summary
                for method, entry in setting.entries.items()
                if method.head != "hpn" and _is_main(setting, method) and (summary := entry.summary())
            }
            bars.append((setting.balance.removeprefix("imbalance "), found))
        figures.append(bars_figure(f"fixed-{number}", title, bars))
    if not figures:
        return None
    text = (
        "The paper says that the fixed matrix beats both the same matrix trained on (learnable matrix) and an extra "
        "trained layer; it prints a figure without numbers. Bars are means, whiskers one standard deviation.",
        *filter(None, (duel(wanted, "maxsep", other) for other in _LEARNED)),
    )
    return Section("fixed", "Should the matrix be fixed?", text, figures=tuple(figures))


def curves_section(settings: Sequence[Setting]) -> Section | None:
    """Show training loss and accuracy over the epochs: a pair of figures for each loss that several heads share.

    A curve without another beside it is drawn only where a report would have none.
    """
    found = [(number, *drawn) for number, setting in enumerate(settings, 1) for drawn in _histories(setting)]
    found = [drawn for drawn in found if len(drawn[2]) > 1] or found
    figures: list[Figure] = []
    for number, title, histories, heads in found:
        place = f"{number}-{len(figures)}"
        figures.append(curves_figure(f"loss-{place}", title, histories, heads))
        accuracy = accuracy_curves_figure(f"curve-{place}", title, histories, heads)
        figures += [] if accuracy is None else [accuracy]
    if not figures:
        return None
    text = ["One seed for each head, the lowest that all of them share."]
    return Section("curves", "Training curves", *_first(text, figures))


def _first(text: list[str], figures: list[Figure]) -> tuple[tuple[str, ...], tuple[Table, ...], tuple[Figure, ...]]:
    """Keep a page readable: the first figures, and a sentence that says so."""
    if len(figures) > _MOST_FIGURES:
        text.append(f"The first {_MOST_FIGURES} of {len(figures)} figures are shown; the run folders hold the others.")
    return tuple(text), (), tuple(figures[:_MOST_FIGURES])


def _curves(setting: Setting) -> dict[str, list[tuple[float, Summary]]]:
    """Accuracy by radius of the heads that were run at three radii or more."""
    curves: dict[str, list[tuple[float, Summary]]] = {"scaled": [], "maxsep": []}
    metric = _metric(setting)
    for method, entry in setting.entries.items():
        head = "scaled" if method == Method("plain", 1.0) else method.head
        if head in curves and method.loss == "cross_entropy" and (summary := entry.summary(metric)):
            curves[head].append((method.radius, summary))
    return {head: sorted(points, key=lambda p: p[0]) for head, points in curves.items() if len(points) >= 3}


def _is_complete(setting: Setting) -> bool:
    """Whether all heads of a search were run at the same radii, each with as many seeds."""
    curves = _curves(setting).values()
    radii = {tuple(radius for radius, _ in points) for points in curves}
    seeds = {summary.n for points in curves for _, summary in points}
    return len(radii) == len(seeds) == 1


def _scores(setting: Setting) -> dict[tuple[str, float], list[float]]:
    curves = _curves(setting)
    return {(head, radius): [summary.mean] for head, points in curves.items() for radius, summary in points}


def _radius_figure(
    id: str,
    setting: Setting,
    curves: Mapping[str, Sequence[tuple[float, Summary]]],
    chosen: Mapping[str, float],
    where: str,
) -> Figure:
    plain = setting.entries.get(Method("plain", 1.0))
    kind = "mean accuracy of classes" if _metric(setting) == "balanced" else "accuracy"
    return radius_figure(id, curves, plain.summary(_metric(setting)) if plain else None, chosen, f"{kind} on {where}")


def _metric(setting: Setting) -> str:
    return validation_metric(setting.spec.imbalance) if setting.spec.validation else "top1"


def _class_gains(entry: Entry, plain: Entry, num_classes: int) -> list[float] | None:
    rows = []
    for seed in sorted(set(entry.records) & set(plain.records)):
        ours = entry.records[seed].metrics.get("per_class")
        theirs = plain.records[seed].metrics.get("per_class")
        if ours and theirs and len(ours) == len(theirs) == num_classes and None not in [*ours, *theirs]:
            rows.append([a - b for a, b in zip(ours, theirs, strict=True)])
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)] if rows else None


def main_radius(setting: Setting) -> float:
    """The radius to show where a figure has room for one: the chosen, the paper's, or else the first.

    Never the best on test data: that would be a choice by test data.
    """
    radii = [method.radius for method in setting.entries if method.head == "maxsep"]
    for wanted in (setting.focus, _PAPER_RADIUS.get(setting.spec.network)):
        if wanted in radii:
            return float(wanted or 1.0)
    return radii[0] if radii else 1.0


def _radii(setting: Setting) -> list[float]:
    """The radii at which the matrix was run, the main one first."""
    main = main_radius(setting)
    return sorted({m.radius for m in setting.entries if m.head == "maxsep"}, key=lambda r: (r != main, -r))


def _is_main(setting: Setting, method: Method) -> bool:
    if method.head == "scaled":
        return method.radius == main_radius(setting)
    others = [m for m in setting.entries if m.head == method.head]
    return len(others) == 1 or method.radius == main_radius(setting)


def _radius_suffix(setting: Setting) -> str:
    radius = main_radius(setting)
    return f", radius {radius:g}"


def _histories(setting: Setting) -> Iterator[tuple[str, _Logs, dict[str, str]]]:
    """For each loss a title, the logs of one seed for each head, and the head whose colour each label has."""
    losses: dict[str, list[Entry]] = {}
    for method, entry in setting.entries.items():
        if _is_main(setting, method):
            losses.setdefault(method.loss_label, []).append(entry)
    for loss, entries in losses.items():
        has_plain = any(entry.method.head == "plain" for entry in entries)
        colours = {head: head for head in _DRAWN} | ({} if has_plain else _DIRECTIONS)
        drawn = [entry for entry in entries if entry.method.head in colours]
        common = set.intersection(*(set(entry.records) for entry in drawn)) if drawn else set()
        logs = {entry.method.head: entry.records[min(common)].history for entry in drawn} if common else {}
        shown = {head.replace("_", " "): lines for head, lines in logs.items() if len(lines) > 1}
        if shown:
            said = "" if loss == "cross-entropy" else f", {loss}"
            heads = {label: colours[label.replace(" ", "_")] for label in shown}
            yield setting.label + said + _radius_suffix(setting), shown, heads
