"""The figures of a report that show measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maxsep.lab.report.statistics import Summary
from maxsep.lab.report.svg import INK, SOFT, Figure, canvas, colour_of, finish, head_line, legend_below

_DASHES = {"scaled": (0, (5, 2)), "control": (0, (1.5, 1.5))}
_DODGE = 1.05
"""Heads are drawn this factor to the left and right of their radius."""
_MARKERS = {"plain": "s", "scaled": "^", "maxsep": "o"}
_UNDER: dict[str, dict[str, Any]] = {"plain": {"linewidth": 3.2, "alpha": 0.5}}
"""Curves drawn broad and pale below the others: where heads train alike, both are seen."""
_MOST_MARKERS = 25


def radius_figure(
    id: str,
    curves: Mapping[str, Sequence[tuple[float, Summary]]],
    plain: Summary | None,
    chosen: Mapping[str, float],
    where: str,
) -> Figure:
    """Draw accuracy against the radius for each head, with the chosen radius ringed.

    Args:
        id: Identifier on the page.
        curves: For each head, pairs of radius and accuracy (fractions).
        plain: Accuracy of the plain head, drawn as a level line.
        chosen: The radius chosen for each head.
        where: What was measured on which data, for the axis.
    """
    with canvas(5.2, 3.2) as (figure, axes):
        for place, (head, points) in enumerate(curves.items()):
            dodge = _DODGE ** (2 * place - len(curves) + 1)  # equal values stand side by side
            radii = [radius * dodge for radius, _ in points]
            means = [100 * s.mean for _, s in points]
            spread = [100 * (s.std or 0.0) for _, s in points]
            axes.errorbar(radii, means, spread, label=head, **_look(head), capsize=2, elinewidth=0.9)
            if head in chosen:
                best = dict(points)[chosen[head]].mean * 100
                ring = {"markersize": 9 + 4.5 * place, "markerfacecolor": "none", "markeredgewidth": 1.3}
                axes.plot([chosen[head] * dodge], [best], "o", color=colour_of(head), **ring)
        if plain is not None:
            axes.axhline(100 * plain.mean, color=colour_of("plain"), linewidth=1.1, label="plain")
        axes.set_xscale("log")
        ticks = sorted({radius for points in curves.values() for radius, _ in points})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("radius (logarithmic)")
        axes.set_title(f"{where[0].upper()}{where[1:]}, %")
        legend_below(figure)
        best_text = ", ".join(f"{head}: {radius:g}" for head, radius in chosen.items())
        alt = f"{where.capitalize()} against the radius for {', '.join(curves)}. Best radius: {best_text}."
        caption = f"{where.capitalize()} against the radius; bars are one standard deviation over seeds."
        if chosen:
            caption += " A ring marks each head's best radius."
        return finish(figure, id, "Accuracy against the radius", caption, alt)


def frequency_figure(id: str, title: str, counts: Sequence[int], gains: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the gain in accuracy per class over the plain head against the class's number of training images.

    Args:
        id: Identifier on the page.
        title: The setting.
        counts: Training images of each class.
        gains: For each head, the gain of each class (fractions, averaged over seeds).
    """
    with canvas(4.8, 3.0) as (figure, axes):
        crowded = len(counts) > 30
        for head, values in gains.items():
            look = {"color": colour_of(head), "marker": _MARKERS.get(head, "o"), "linestyle": "none"}
            size = {"markersize": 3.2, "alpha": 0.75} if crowded else {"markersize": 5}
            axes.plot(counts, [100 * value for value in values], label=head, **look, **size)
        axes.axhline(0, color=SOFT, linewidth=0.9)
        axes.set_xscale("log")
        axes.invert_xaxis()
        low, high = min(counts), max(counts)
        ticks = [n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000) if low <= n <= high]
        ticks = ticks if len(ticks) > 1 else sorted({low, high})
        axes.set_xticks(ticks, [f"{tick:,}".replace(",", " ") for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("training images of the class (frequent to rare)")
        axes.set_ylabel("gain over plain, points")
        head_line(axes, title)
        legend_below(figure)
        words = "; ".join(f"{head}: mean gain {100 * sum(v) / len(v):+.1f} points" for head, v in gains.items())
        alt = f"Gain per class over the plain head against class frequency, {title}. {words}."
        return finish(figure, id, title, "", alt)


def bars_figure(id: str, title: str, groups: Sequence[tuple[str, Mapping[str, Summary]]]) -> Figure:
    """Draw accuracy as bars: a group for each imbalance, a bar for each head.

    The axis starts near the lowest bar and says so, because differences are small beside accuracies.

    Args:
        id: Identifier on the page.
        title: Dataset and network.
        groups: Label of a group, and the accuracy (fractions) of each head in it.
    """
    heads = list(dict.fromkeys(head for _, bars in groups for head in bars))
    with canvas(4.8, 3.2) as (figure, axes):
        width = 0.8 / max(len(heads), 1)
        for offset, head in enumerate(heads):
            there = [(i, bars[head]) for i, (_, bars) in enumerate(groups) if head in bars]
            places = [i + (offset - (len(heads) - 1) / 2) * width for i, _ in there]
            means = [100 * s.mean for _, s in there]
            spread = [100 * (s.std or 0.0) for _, s in there]
            axes.bar(places, means, width * 0.88, color=colour_of(head), label=head.replace("_", " "))
            axes.errorbar(places, means, spread, fmt="none", ecolor=INK, elinewidth=0.8, capsize=1.5)
        lowest = min(100 * (s.mean - (s.std or 0.0)) for _, bars in groups for s in bars.values())
        highest = max(100 * (s.mean + (s.std or 0.0)) for _, bars in groups for s in bars.values())
        start = max(0.0, lowest - 0.6 * (highest - lowest) - 1)
        axes.set_ylim(start, min(100.0, highest + 0.08 * (highest - start) + 0.5))
        axes.set_xticks(range(len(groups)), [label for label, _ in groups])
        axes.set_ylabel("test accuracy, %" + (f" (axis from {start:.0f})" if start > 0.5 else ""))
        head_line(axes, title)
        legend_below(figure)
        words = "; ".join(
            f"{label}: " + ", ".join(f"{head} {100 * s.mean:.1f}" for head, s in bars.items()) for label, bars in groups
        )
        return finish(figure, id, title, "", f"Test accuracy in percent, {title}. {words}.")


def curves_figure(
    id: str, title: str, histories: Mapping[str, Sequence[Mapping[str, Any]]], labels: Mapping[str, str]
) -> Figure:
    """Draw the training loss of each method over the epochs.

    Args:
        id: Identifier on the page.
        title: The setting.
        histories: For each method's label, the lines of its log.
        labels: The head of each label, which decides the colour.
    """
    with canvas(4.8, 3.0) as (figure, axes):
        for label, lines in histories.items():
            points = [(line["epoch"] + 1, line["train_loss"]) for line in lines if "train_loss" in line]
            style = _look(labels[label]) | {"marker": ""} | _UNDER.get(labels[label], {})
            axes.plot([x for x, _ in points], [y for _, y in points], label=label, **style)
        values = [line["train_loss"] for lines in histories.values() for line in lines if "train_loss" in line]
        if values and min(values) > 0 and max(values) > 20 * min(values):
            _logarithmic(axes, max(values) / min(values))
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylabel("training loss")
        head_line(axes, title)
        legend_below(figure)
        ends = "; ".join(
            f"{label} ends at {lines[-1].get('train_loss', float('nan')):.3g}"
            for label, lines in histories.items()
            if lines
        )
        return finish(figure, id, title, "", f"Training loss over epochs, {title}: {ends}.")


def accuracy_curves_figure(
    id: str, title: str, histories: Mapping[str, Sequence[Mapping[str, Any]]], labels: Mapping[str, str]
) -> Figure | None:
    """Draw the evaluated accuracy of each method over the epochs; nothing if no log has two evaluations.

    Args:
        id: Identifier on the page.
        title: The setting.
        histories: For each method's label, the lines of its log.
        labels: The head of each label, which decides the colour.
    """
    points = {
        label: [(line["epoch"] + 1, 100 * line["top1"]) for line in lines if "top1" in line]
        for label, lines in histories.items()
    }
    points = {label: found for label, found in points.items() if len(found) > 1}
    if not points:
        return None
    with canvas(4.8, 3.0) as (figure, axes):
        for label, found in points.items():
            style = _look(labels[label]) | {"markersize": 3, "markevery": -(-len(found) // _MOST_MARKERS)}
            style |= _UNDER.get(labels[label], {})
            axes.plot([x for x, _ in found], [y for _, y in found], label=label, **style)
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylabel("test accuracy, %")
        head_line(axes, title)
        legend_below(figure)
        ends = "; ".join(f"{label} ends at {found[-1][1]:.1f}" for label, found in points.items())
        return finish(figure, id, title, "", f"Accuracy in percent over epochs, {title}: {ends}.")


def _logarithmic(axes: Any, ratio: float) -> None:
    """Make the vertical axis logarithmic with numbers that are read without counting powers: 0.1, 1, 10."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_yscale("log")
    steps = (1.0,) if ratio > 100 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _look(head: str) -> dict[str, Any]:
    return {
        "color": colour_of(head),
        "linestyle": _DASHES.get(head, "-"),
        "marker": _MARKERS.get(head, "o"),
    }
