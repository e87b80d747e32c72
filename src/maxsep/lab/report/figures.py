"""The figures of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maxsep.lab.report.statistics import Difference, Summary
from maxsep.lab.report.summary import Gain
from maxsep.lab.report.svg import (
    INK,
    PAPER,
    RULE,
    SOFT,
    Figure,
    canvas,
    colour_of,
    finish,
    heading,
    legend_below,
    panels,
)
from maxsep.packages import load_package

_DASHES: dict[str, Any] = {"scaled": (0, (5, 2)), "control": (0, (1.5, 1.5))}
_MARKERS = {"plain": "s", "scaled": "^", "control": "v", "maxsep": "o"}
_UNDER: dict[str, Any] = {"linewidth": 3.2, "alpha": 0.5}
"""The baseline's curve is broad and pale below the others: where methods train alike, both are seen."""
_CLASSES = ("maxsep", "extra_layer", "etf", "learnable_matrix", "hpn", "control", "plain")
"""Heads whose colours classes borrow: they differ in both schemes."""
_DOTS = 50
_OVER = "matrix \N{MINUS SIGN} linear", "matrix \N{MINUS SIGN} control"

History = Sequence[Mapping[str, Any]]


def forest_figure(gains: Sequence[Gain]) -> Figure:
    """Draw the gain of every measured cell with its interval, and the paper's gain as a hollow mark."""
    lines: list[str | Gain] = []
    for group in dict.fromkeys(gain.cell.table for gain in gains):
        lines += [group, *(gain for gain in gains if gain.cell.table == group)]
    with canvas(4.0, 1.2 + 0.21 * len(lines)) as (figure, axes):
        axes.axvspan(-1, 1, color=RULE, alpha=0.35, linewidth=0)
        axes.axvline(0, color=SOFT, linewidth=0.9)
        for place, line in enumerate(lines):
            if isinstance(line, str):
                continue
            if line.paper is not None:
                look = {"markerfacecolor": "none", "markeredgecolor": INK, "markersize": 6, "markeredgewidth": 1.0}
                axes.plot([100 * line.paper], [place], "o", zorder=4, label=f"paper, {_OVER[0]}", **look)
            _whisker(axes, line.to_baseline, place - 0.1, "maxsep", _OVER[0])
            _whisker(axes, line.to_control, place + 0.22, "scaled", _OVER[1])
        axes.set_yticks(range(len(lines)), [f"{line}" if isinstance(line, str) else line.label for line in lines])
        for label, line in zip(axes.get_yticklabels(), lines, strict=True):
            if isinstance(line, str):
                label.set(color=INK, fontweight="bold", fontsize=8)
        axes.set_ylim(len(lines) - 0.4, -0.7)
        axes.set_xlabel("difference in points")
        axes.grid(False)
        axes.grid(axis="x")
        legend_below(figure)
        words = "; ".join(f"{g.label}: {g.to_baseline.format()}" for g in gains if g.to_baseline is not None)
        caption = (
            "Measured cells of the paper: the matrix against the linear head and against its control, paired over "
            "seeds (splits for open sets). Lines are 95 % intervals, the band is ±1 point. A mark without a line is "
            "one seed; † is an earlier draw of the subset, which is not counted."
        )
        return finish(figure, "forest", "Gain of the matrix", caption, f"Gain of the matrix in points. {words}.")


def _whisker(axes: Any, difference: Difference | None, place: float, head: str, label: str) -> None:
    if difference is None:
        return
    if difference.low is not None and difference.high is not None:
        ends = [100 * difference.low, 100 * difference.high]
        axes.plot(ends, [place, place], "-", color=colour_of(head), linewidth=1.4, zorder=3)
    axes.plot([100 * difference.estimate], [place], _MARKERS[head], color=colour_of(head), markersize=4.5, label=label)


def class_gain_figure(id: str, title: str, counts: Sequence[int], gains: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the gain of every class over the linear head against its number of training images.

    Args:
        id: Identifier on the page.
        title: The setting.
        counts: Training images of each class.
        gains: For each head, the gain of each class (fractions, averaged over seeds).
    """
    with canvas(4.8, 3.0) as (figure, axes):
        size = {"markersize": 3.2, "alpha": 0.75} if len(counts) > 30 else {"markersize": 5}
        for head, values in gains.items():
            look = {"color": colour_of(head), "marker": _MARKERS.get(head, "o"), "linestyle": "none"}
            axes.plot(counts, [100 * value for value in values], label=_LABELS.get(head, head), **look, **size)
        axes.axhline(0, color=SOFT, linewidth=0.9)
        axes.set_xscale("log")
        axes.invert_xaxis()
        low, high = min(counts), max(counts)
        ticks = [n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000) if low <= n <= high]
        ticks = ticks if len(ticks) > 1 else sorted({low, high})
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("training images of the class (frequent to rare)")
        axes.set_ylabel("gain over linear, points")
        heading(axes, title)
        legend_below(figure)
        words = "; ".join(f"{head}: mean {100 * sum(v) / len(v):+.1f} points" for head, v in gains.items())
        return finish(figure, id, title, "", f"Gain of every class over the linear head, {title}. {words}.")


_LABELS = {"plain": "linear", "scaled": "linear \N{MULTIPLICATION SIGN} radius"}


def radius_figure(id: str, title: str, curves: Mapping[str, Sequence[tuple[float, Summary]]], where: str) -> Figure:
    """Draw accuracy (fractions) against the radius for each head."""
    with canvas(4.8, 3.0) as (figure, axes):
        for place, (head, points) in enumerate(curves.items()):
            dodge = 1.05 ** (2 * place - len(curves) + 1)  # equal values stand side by side
            means = [100 * summary.mean for _, summary in points]
            spread = [100 * (summary.std or 0.0) for _, summary in points]
            radii = [radius * dodge for radius, _ in points]
            axes.errorbar(radii, means, spread, label=_LABELS.get(head, head), **_look(head), capsize=2, elinewidth=0.9)
        axes.set_xscale("log")
        ticks = sorted({radius for points in curves.values() for radius, _ in points})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("radius (logarithmic)")
        axes.set_ylabel(f"{where}, %")
        heading(axes, title)
        legend_below(figure)
        alt = f"{where.capitalize()} against the radius for {', '.join(curves)}, {title}."
        return finish(figure, id, title, "Bars are one standard deviation over seeds.", alt)


def curve_figures(id: str, title: str, histories: Mapping[str, tuple[str, History]]) -> list[Figure]:
    """Draw training loss and, where a log has two evaluations, accuracy over the epochs.

    Args:
        id: End of the identifiers.
        title: The setting.
        histories: For each label, the head that decides the colour and the lines of its log.
    """
    figures = []
    for kind, key, scale, axis in (("loss", "train_loss", 1, "training loss"), ("curve", "top1", 100, "accuracy, %")):
        points = {
            label: [(line["epoch"] + 1, scale * line[key]) for line in lines if key in line]
            for label, (_, lines) in histories.items()
        }
        points = {label: found for label, found in points.items() if len(found) > 1}
        if not points:
            continue
        with canvas(4.8, 3.0) as (figure, axes):
            for label, found in points.items():
                head = histories[label][0]
                look = _look(head) | {"markersize": 3, "markevery": -(-len(found) // 25)}
                look |= {"marker": ""} if kind == "loss" else {}
                look |= _UNDER if head in ("plain", "cosine") else {}
                axes.plot([x for x, _ in found], [y for _, y in found], label=label, **look)
            values = [y for found in points.values() for _, y in found]
            if kind == "loss" and min(values) > 0 and max(values) > 20 * min(values):
                _logarithmic(axes, max(values) / min(values))
            axes.set_xlabel("epoch")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set_ylabel(axis)
            heading(axes, title)
            legend_below(figure)
            ends = "; ".join(f"{label} ends at {found[-1][1]:.3g}" for label, found in points.items())
            figures.append(finish(figure, f"{kind}-{id}", title, "", f"{axis.capitalize()}, {title}: {ends}."))
    return figures


def energy_figure(id: str, title: str, shapes: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw the negative energy of test images and outliers, a panel for each method, and print the gap of the means.

    Args:
        id: Identifier on the page.
        title: The setting and the outliers.
        shapes: For each label, a histogram of `detection.json`.
    """
    kinds = (("in-distribution", "known", colour_of("maxsep")), ("outliers", "outside", colour_of("scaled")))
    with panels(4.8, 0.8 + 1.75 * len(shapes), len(shapes), 1) as (figure, grid):
        ends = [edge for shape in shapes.values() for edge in shape["edges"]]
        for axes, (name, shape) in zip(grid.flat, shapes.items(), strict=True):
            axes.set_xlim(min(ends), max(ends))
            for label, key, colour in kinds:
                axes.stairs(shape[key], shape["edges"], fill=True, alpha=0.3, color=colour, linewidth=0)
                axes.stairs(shape[key], shape["edges"], color=colour, linewidth=1.4, label=label)
                axes.axvline(shape[f"{key}_mean"], color=colour, linewidth=1.0, linestyle=(0, (3, 2)))
            axes.set_yticks([])
            axes.grid(False)
            heading(axes, f"{name}: mean gap {_gap(shape)}")
        grid.flat[-1].set_xlabel("negative energy, log \N{N-ARY SUMMATION} exp(logits)")
        legend_below(figure)
        words = "; ".join(f"{name}: mean gap {_gap(shape)}" for name, shape in shapes.items())
        caption = f"{title}. Shares of all images in common bins; dashed lines are the means."
        return finish(figure, id, title, caption, f"Histograms of negative energy, {title}. {words}.")


def features_figure(features: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw features in the plane of known and unknown images: a row for each method, a column for each epoch."""
    epochs = sorted({int(epoch) for found in features.values() for epoch in found["epochs"]})
    with panels(4.8, 0.7 + 2.55 * len(features), len(features), len(epochs)) as (figure, grid):
        clouds = [cloud for found in features.values() for cloud in found["epochs"].values()]
        values = [value for cloud in clouds for point in (*cloud["known"], *cloud["unknown"]) for value in point]
        limits = min(0.0, min(values)), max(values)
        for row, (name, found) in enumerate(features.items()):
            for column, epoch in enumerate(epochs):
                _scatter(grid[row][column], found, str(epoch), limits)
                grid[row][column].set_title(f"{name}, epoch {epoch}")
        legend_below(figure, markerscale=2.5)
        caption = "Features of test images: known classes in colour, unknown classes as crosses. All have one scale."
        alt = f"Two-dimensional features for {', '.join(features)} after epochs {', '.join(map(str, epochs))}."
        return finish(figure, "features-plane", "Features in the plane", caption, alt)


def norms_figure(histories: Mapping[str, tuple[str, History]]) -> Figure:
    """Draw the mean norm of features of known and unknown images over the epochs."""
    with canvas(4.8, 3.0) as (figure, axes):
        ends = []
        for label, (head, lines) in histories.items():
            points = [(x["epoch"] + 1, x["norm_known"], x["norm_unknown"]) for x in lines if "norm_unknown" in x]
            for place, (kind, dashes) in enumerate((("known", "-"), ("unknown", (0, (4, 2)))), 1):
                look = {"color": colour_of(head), "linestyle": dashes, "marker": "o" if len(points) == 1 else ""}
                axes.plot([p[0] for p in points], [p[place] for p in points], label=f"{label}, {kind}", **look)
            ends.append(f"{label} ends at {points[-1][1]:.2f} for known and {points[-1][2]:.2f} for unknown images")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title("Mean norm of features")
        legend_below(figure)
        words = "; ".join(ends)
        return finish(figure, "features-norms", "Mean norm of features", f"{words}.", f"Mean norms: {words}.")


def confusion_figure(id: str, title: str, matrix: Sequence[Sequence[int]], classes: Sequence[str]) -> Figure:
    """Draw a confusion matrix as shares of each true class; numbers are written where there are few classes."""
    shares = [[count / max(sum(row), 1) for count in row] for row in matrix]
    few = len(classes) <= 12
    with canvas(4.8, 4.6) as (figure, axes):
        cmap = load_package("matplotlib.colors", "lab").LinearSegmentedColormap.from_list(
            "", [colour_of("maxsep") + "00", colour_of("maxsep")]
        )
        axes.imshow(shares, cmap=cmap, vmin=0, vmax=1)
        for y, row in enumerate(shares if few else []):
            for x, share in enumerate(row):
                if matrix[y][x]:
                    axes.text(
                        x,
                        y,
                        f"{100 * share:.0f}",
                        ha="center",
                        va="center",
                        fontsize=7,
                        color=PAPER if share > 0.6 else INK,
                    )
        if len(classes) <= 30:
            axes.set_xticks(range(len(classes)), classes, rotation=90)
            axes.set_yticks(range(len(classes)), classes)
        axes.set_xlabel("predicted class")
        axes.set_ylabel("true class")
        axes.grid(False)
        heading(axes, title)
        right = sum(matrix[i][i] for i in range(len(matrix))) / max(1, sum(map(sum, matrix)))
        caption = "Percent of each true class."
        return finish(figure, id, title, caption, f"Confusion matrix, {title}: {100 * right:.1f} % on the diagonal.")


def _scatter(axes: Any, features: Mapping[str, Any], epoch: str, limits: tuple[float, float]) -> None:
    margin = 0.04 * (limits[1] - limits[0])
    axes.set(xlim=(limits[0] - margin, limits[1] + margin), ylim=(limits[0] - margin, limits[1] + margin))
    axes.set_aspect("equal")
    axes.grid(False)
    axes.axhline(0, color=SOFT, linewidth=0.5)
    axes.axvline(0, color=SOFT, linewidth=0.5)
    found = features["epochs"].get(epoch)
    if found is None:
        return
    look: dict[str, Any]
    for label, name in enumerate(features["classes"]):
        points = [p for p, y in zip(found["known"], found["labels"], strict=True) if y == label][:_DOTS]
        look = {"color": colour_of(_CLASSES[label % len(_CLASSES)]), "markersize": 2.2, "markeredgewidth": 0}
        axes.plot([p[0] for p in points], [p[1] for p in points], "o", label=name, **look)
    points = found["unknown"][: 4 * _DOTS]
    look = {"color": INK, "markersize": 2.6, "markeredgewidth": 0.5, "alpha": 0.6}
    axes.plot([p[0] for p in points], [p[1] for p in points], "x", label="unknown", **look)


def _gap(shape: Mapping[str, Any]) -> str:
    stds = shape.get("gap_in_stds")
    words = f"{shape['gap']:.2f}" + ("" if stds is None else f" ({stds:.2f} standard deviations)")
    return words.replace("-", "\N{MINUS SIGN}")


def _logarithmic(axes: Any, ratio: float) -> None:
    """Make the vertical axis logarithmic with plain numbers: 0.1, 1, 10."""
    ticker = load_package("matplotlib.ticker", "lab")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0,) if ratio > 100 else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())


def _look(head: str) -> dict[str, Any]:
    return {"color": colour_of(head), "linestyle": _DASHES.get(head, "-"), "marker": _MARKERS.get(head, "o")}
