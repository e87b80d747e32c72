"""Draw the figures of a report. Histories are the lines of a run's log; accuracies are fractions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maxsep.lab.report.statistics import Difference, signed
from maxsep.lab.report.summary import Gain
from maxsep.lab.report.svg import INK, RULE, SOFT, Figure, canvas, colour_of, finish, heading, legend_below, panels
from maxsep.packages import load_package

_DASHES: dict[str, Any] = {"scaled": (0, (5, 2)), "control": (0, (1.5, 1.5))}
_MARKERS = {"plain": "s", "scaled": "^", "control": "v", "maxsep": "o"}
_UNDER: dict[str, Any] = {"linewidth": 3.2, "alpha": 0.5}
"""The baseline's curve is broad and pale below the others: where methods train alike, both are seen."""
_CLASSES = ("maxsep", "extra_layer", "etf", "learnable_matrix", "hpn", "control", "plain")
"""Heads whose colours classes borrow: they differ in both schemes."""
_DOTS, _LETTERS = 50, 18
_OVER = "matrix \N{MINUS SIGN} linear", "matrix \N{MINUS SIGN} control"

Histories = Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]]
"""For each label, the head that decides its colour and the lines of a log."""


def forest_figure(gains: Sequence[Gain]) -> Figure:
    """Draw the gain of every measured cell with its interval, and the paper's as a hollow mark; scores stand below."""
    parts: dict[float, list[str | Gain]] = {}
    for table, scale in dict.fromkeys((gain.cell.table, gain.scale) for gain in gains):
        parts.setdefault(scale, []).extend((table, *(gain for gain in gains if gain.cell.table == table)))
    heights = [len(part) + 0.3 for part in parts.values()]
    with panels(4.0, 0.65 + 0.4 * len(parts) + 0.21 * sum(heights), len(parts), 1, heights) as (figure, grid):
        for axes, (scale, lines) in zip(grid.flat, parts.items(), strict=True):
            _forest(axes, scale, lines)
        legend_below(figure)
        words = "; ".join(f"{g.cell.table}, {g.label}: {g.format(g.to_baseline)}" for g in gains if g.to_baseline)
        caption = (
            "Measured cells of the paper: the matrix against the linear head (LDAM: its cosine head) and against its "
            "control, paired over seeds (splits for open sets). Lines are 95 % intervals, the band is ±1 point. A mark "
            "without a line is one seed; † is an earlier draw of the subset, which is not counted. Of the optimised "
            "prototypes the cells with the matrix are those of Table 1."
        )
        return finish(figure, "forest", "Gain of the matrix", caption, f"Gain of the matrix. {words}.")


def _forest(axes: Any, scale: float, lines: Sequence[str | Gain]) -> None:
    """Draw cells that share a scale, below the names of their tables."""
    if scale == 100:
        axes.axvspan(-1, 1, color=RULE, alpha=0.35, linewidth=0)
    axes.axvline(0, color=SOFT, linewidth=0.9)
    hollow = {"markerfacecolor": "none", "markeredgecolor": INK, "markersize": 6, "markeredgewidth": 1.0}
    for place, line in enumerate(lines):
        if isinstance(line, Gain):
            if line.paper is not None:
                axes.plot([scale * line.paper], [place], "o", zorder=4, label=f"paper, {_OVER[0]}", **hollow)
            _whisker(axes, line.to_baseline, scale, place - 0.1, "maxsep", _OVER[0])
            _whisker(axes, line.to_control, scale, place + 0.22, "scaled", _OVER[1])
    axes.set_yticks(range(len(lines)), [line if isinstance(line, str) else line.label for line in lines])
    for label, line in zip(axes.get_yticklabels(), lines, strict=True):
        if isinstance(line, str):
            label.set(color=INK, fontweight="bold", fontsize=8)
    name = "difference in points" if scale == 100 else "difference in score, lower is better"
    axes.set(ylim=(len(lines) - 0.4, -0.7), xlabel=name)
    axes.grid(False)
    axes.grid(axis="x")


def _whisker(axes: Any, difference: Difference | None, scale: float, place: float, head: str, label: str) -> None:
    if difference is None:
        return
    colour = colour_of(head)
    if difference.low is not None and difference.high is not None:
        ends = [scale * difference.low, scale * difference.high]
        axes.plot(ends, [place, place], "-", color=colour, linewidth=1.4, zorder=3)
    axes.plot([scale * difference.estimate], [place], _MARKERS[head], color=colour, markersize=4.5, label=label)


def class_gain_figure(
    id: str, title: str, counts: Sequence[int], gains: Mapping[str, tuple[str, Sequence[float]]]
) -> Figure:
    """Draw the gain of every class over the linear head against its training images; labels have heads and gains."""
    with canvas() as (figure, axes):
        size = {"markersize": 3.2, "alpha": 0.75} if len(counts) > 30 else {"markersize": 5}
        for name, (head, values) in gains.items():
            look = {"color": colour_of(head), "marker": _MARKERS.get(head, "o"), "linestyle": "none"}
            axes.plot(counts, [100 * value for value in values], label=name, **look, **size)
        axes.axhline(0, color=SOFT, linewidth=0.9)
        low, high = min(counts), max(counts)
        ticks = [n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000) if low <= n <= high]
        _logarithmic(axes.xaxis, ticks if len(ticks) > 1 else sorted({low, high}))
        axes.invert_xaxis()
        axes.set(xlabel="training images of the class (frequent to rare)", ylabel="gain over linear, points")
        words = "; ".join(f"{name}: mean {signed(100 * sum(v) / len(v))} points" for name, (_, v) in gains.items())
        return _titled(figure, axes, id, title, f"Gain of every class over the linear head, {title}. {words}.")


def curve_figures(id: str, title: str, histories: Histories) -> list[Figure]:
    """Draw training loss and, where a log has two evaluations, accuracy over the epochs."""
    figures = []
    for kind, key, scale, axis in (("loss", "train_loss", 1, "training loss"), ("curve", "top1", 100, "accuracy, %")):
        logs = {name: [line for line in lines if key in line] for name, (_, lines) in histories.items()}
        logs = {name: lines for name, lines in logs.items() if len(lines) > 1}
        if not logs:
            continue
        with canvas() as (figure, axes):
            for name, lines in logs.items():
                head = histories[name][0]
                look = _look(head) | ({"marker": ""} if kind == "loss" else {"markersize": 3})
                look |= {"markevery": -(-len(lines) // 25)} | (_UNDER if head in ("plain", "cosine") else {})
                _over_epochs(axes, lines, key, axis, scale, label=name, **look)
            values = [line[key] for lines in logs.values() for line in lines]
            if kind == "loss" and min(values) > 0 and max(values) > 20 * min(values):
                steps = [
                    n * 10.0**k for k in range(-6, 4) for n in ((1,) if max(values) > 100 * min(values) else (1, 2, 5))
                ]
                _logarithmic(axes.yaxis, [step for step in steps if min(values) <= step <= max(values)])
            ends = "; ".join(f"{name} ends at {scale * lines[-1][key]:.3g}" for name, lines in logs.items())
            figures.append(_titled(figure, axes, f"{kind}-{id}", title, f"{axis.capitalize()}, {title}: {ends}."))
    return figures


def norms_figure(histories: Histories) -> Figure:
    """Draw the mean norm of features of known and unknown images over the epochs."""
    ends = []
    with canvas() as (figure, axes):
        for name, (head, lines) in histories.items():
            logged = [line for line in lines if "norm_unknown" in line]
            for kind, dashes in (("known", "-"), ("unknown", (0, (4, 2)))):
                look: dict[str, Any] = {"color": colour_of(head), "linestyle": dashes}
                look["marker"] = "o" if len(logged) == 1 else ""
                _over_epochs(axes, logged, f"norm_{kind}", "mean norm", label=f"{name}, {kind}", **look)
                ends.append(f"{name}, {kind}: {logged[-1][f'norm_{kind}']:.2f}")
        axes.set_ylim(bottom=0)
        title, words = "Mean norm of features", f"In the last epoch {'; '.join(ends)}."
        return _titled(figure, axes, "features-norms", title, f"{title}. {words}", words)


def _over_epochs(
    axes: Any, lines: Sequence[Mapping[str, Any]], key: str, name: str, scale: int = 1, **look: Any
) -> None:
    axes.plot([line["epoch"] + 1 for line in lines], [scale * line[key] for line in lines], **look)
    axes.set(xlabel="epoch", ylabel=name)
    axes.xaxis.get_major_locator().set_params(integer=True)


def energy_figure(id: str, title: str, shapes: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw histograms of `detection.json`: the negative energy of test images and outliers, a panel for each method."""
    kinds = (("in-distribution", "known", colour_of("maxsep")), ("outliers", "outside", colour_of("scaled")))
    with panels(4.8, 0.8 + 1.75 * len(shapes), len(shapes), 1) as (figure, grid):
        ends, words = [edge for shape in shapes.values() for edge in shape["edges"]], []
        for axes, (name, shape) in zip(grid.flat, shapes.items(), strict=True):
            for label, key, colour in kinds:
                axes.stairs(shape[key], shape["edges"], fill=True, alpha=0.3, color=colour, linewidth=0)
                axes.stairs(shape[key], shape["edges"], color=colour, linewidth=1.4, label=label)
                axes.axvline(shape[f"{key}_mean"], color=colour, linewidth=1.0, linestyle=(0, (3, 2)))
            axes.set(xlim=(min(ends), max(ends)), yticks=[])
            axes.grid(False)
            stds = shape.get("gap_in_stds")
            gap = f"{shape['gap']:.2f}" + ("" if stds is None else f" ({stds:.2f} SD)")
            words.append(f"{name}: gap {gap}".replace("-", "\N{MINUS SIGN}"))
            heading(axes, words[-1])
        grid.flat[-1].set_xlabel("negative energy, log \N{N-ARY SUMMATION} exp(logits)")
        legend_below(figure)
        caption = f"{title}. Shares of images; dashed lines are means. SD: standard deviation within the two sets."
        return finish(figure, id, title, caption, f"Histograms of negative energy, {title}. {'; '.join(words)}.")


def features_figure(features: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw features in the plane of known and unknown images: a row for each method, a column for each epoch."""
    epochs = sorted({int(epoch) for record in features.values() for epoch in record["epochs"]})
    clouds = [cloud for record in features.values() for cloud in record["epochs"].values()]
    values = [value for cloud in clouds for point in (*cloud["known"], *cloud["unknown"]) for value in point]
    low, high = min(0.0, min(values)), max(values)
    limits = low - 0.04 * (high - low), high + 0.04 * (high - low)
    with panels(4.8, 0.7 + 2.55 * len(features), len(features), len(epochs)) as (figure, grid):
        for row, (name, record) in enumerate(features.items()):
            for column, epoch in enumerate(epochs):
                axes = grid[row][column]
                axes.axhline(0, color=SOFT, linewidth=0.5)
                axes.axvline(0, color=SOFT, linewidth=0.5)
                axes.grid(False)
                if str(epoch) in record["epochs"]:
                    _scatter(axes, record["epochs"][str(epoch)], record["classes"])
                axes.set(xlim=limits, ylim=limits, aspect="equal", title=f"{name}, epoch {epoch}")
        legend_below(figure, markerscale=2.5)
        caption = "Features of test images: known classes in colour, unknown classes as crosses. All have one scale."
        alt = f"Two-dimensional features for {', '.join(features)} after epochs {', '.join(map(str, epochs))}."
        return finish(figure, "features-plane", "Features in the plane", caption, alt)


def _scatter(axes: Any, cloud: Mapping[str, Any], classes: Sequence[str]) -> None:
    look: dict[str, Any]
    for label, name in enumerate(classes):
        points = [p for p, y in zip(cloud["known"], cloud["labels"], strict=True) if y == label][:_DOTS]
        look = {"color": colour_of(_CLASSES[label % len(_CLASSES)]), "markersize": 2.2, "markeredgewidth": 0}
        axes.plot([p[0] for p in points], [p[1] for p in points], "o", label=name, **look)
    points = cloud["unknown"][: 4 * _DOTS]
    look = {"color": INK, "markersize": 2.6, "markeredgewidth": 0.5, "alpha": 0.6}
    axes.plot([p[0] for p in points], [p[1] for p in points], "x", label="unknown", **look)


def confusion_figure(id: str, title: str, matrix: Sequence[Sequence[int]], classes: Sequence[str]) -> Figure:
    """Draw a confusion matrix as shares of each true class; numbers are written where there are few classes."""
    shares = [[count / max(sum(row), 1) for count in row] for row in matrix]
    blues = [colour_of("maxsep") + "00", colour_of("maxsep")]
    with canvas(4.8, 4.6) as (figure, axes):
        colours = load_package("matplotlib.colors", "lab").LinearSegmentedColormap.from_list("", blues)
        axes.imshow(shares, cmap=colours, vmin=0, vmax=1)
        for y, row in enumerate(shares if len(classes) <= 12 else []):
            for x, share in enumerate(row):
                if share:
                    look = {"ha": "center", "va": "center", "fontsize": 7, "color": "#ffffff" if share > 0.6 else INK}
                    axes.text(x, y, f"{100 * share:.0f}", **look)
        if len(classes) <= 30:
            names = [*map(_tick, classes)]
            axes.set_xticks(range(len(classes)), names, rotation=90)
            axes.set_yticks(range(len(classes)), names)
        axes.set(xlabel="predicted class", ylabel="true class")
        axes.grid(False)
        heading(axes, title)
        right = sum(matrix[i][i] for i in range(len(matrix))) / max(1, sum(map(sum, matrix)))
        alt = f"Confusion matrix, {title}: {100 * right:.1f} % on the diagonal."
        return finish(figure, id, title, "Percent of each true class.", alt)


def calibration_figure(
    id: str, title: str, curves: Mapping[str, tuple[str, Sequence[tuple[float, float, int]]]]
) -> Figure:
    """Draw accuracy over confidence: for each label the head and, by bin, mean confidence, accuracy and images."""
    words = []
    with canvas(4.8, 4.0) as (figure, axes):
        axes.plot([0, 100], [0, 100], color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
        for name, (head, bins) in curves.items():
            confidence, accuracy, counts = ([point[k] for point in bins] for k in range(3))
            axes.plot([100 * c for c in confidence], [100 * a for a in accuracy], label=name, **_look(head))
            ece = sum(n * abs(a - c) for c, a, n in bins) / max(1, sum(counts))
            words.append(f"{100 * ece:.1f} points ({name})")
        axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="probability of the predicted class, %", ylabel="accuracy, %")
        caption = (
            "Accuracy of test images by the probability of their predicted class. On the dashed line both agree. "
            f"Mean gap: {', '.join(words)}."
        )
        heading(axes, title)
        legend_below(figure)
        return finish(figure, id, title, caption, caption)


def _tick(name: str) -> str:
    """Shorten a class name for an axis; a dollar sign is no mathematics."""
    return (name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}").replace("$", r"\$")


def _titled(figure: Any, axes: Any, id: str, title: str, alt: str, caption: str = "") -> Figure:
    heading(axes, title)
    legend_below(figure)
    return finish(figure, id, title, caption, alt)


def _logarithmic(axis: Any, ticks: Sequence[float]) -> None:
    """Make an axis logarithmic with plain numbers: 0.1, 1, 1,000."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_ticks(ticks, labels=[f"{tick:,g}" if tick < 1000 else f"{tick:,.0f}" for tick in ticks])
    axis.set_minor_locator(load_package("matplotlib.ticker", "lab").NullLocator())


def _look(head: str) -> dict[str, Any]:
    return {"color": colour_of(head), "linestyle": _DASHES.get(head, "-"), "marker": _MARKERS.get(head, "o")}
