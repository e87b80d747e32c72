"""Figures on images from outside: histograms of the energy, and features in the plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maxsep.lab.report.collect import Record
from maxsep.lab.report.svg import INK, SOFT, Figure, colour_of, finish, head_line, legend_below, panels

KNOWN, OUTSIDE = colour_of("maxsep"), colour_of("scaled")
_CLASSES = ("maxsep", "extra_layer", "etf", "learnable_matrix", "hpn", "control", "plain")
"""Heads whose colours known classes borrow: they are told apart in both schemes."""
_DOTS = 50
"""Points drawn of every known class; the file holds more."""


def energy_figure(id: str, title: str, shapes: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw the negative energy of test images and outliers, a panel for each head, and print the gap of the means.

    Args:
        id: Identifier on the page.
        title: The setting and the outliers.
        shapes: For each head's label, a histogram of `detection.json`.
    """
    with panels(4.8, 0.8 + 1.75 * len(shapes), len(shapes), 1) as (figure, grid):
        ends = [edge for shape in shapes.values() for edge in shape["edges"]]
        for axes, (name, shape) in zip(grid.flat, shapes.items(), strict=True):
            edges = shape["edges"]
            axes.set_xlim(min(ends), max(ends))
            for label, key, colour in (("in-distribution", "known", KNOWN), ("outliers", "outside", OUTSIDE)):
                axes.stairs(shape[key], edges, fill=True, alpha=0.3, color=colour, linewidth=0)
                axes.stairs(shape[key], edges, color=colour, linewidth=1.4, label=label)
            for key, colour in (("known_mean", KNOWN), ("outside_mean", OUTSIDE)):
                axes.axvline(shape[key], color=colour, linewidth=1.0, linestyle=(0, (3, 2)))
            axes.set_yticks([])
            axes.grid(False)
            head_line(axes, f"{name}: mean gap {_gap(shape)}")
        grid.flat[-1].set_xlabel("negative energy, log \N{N-ARY SUMMATION} exp(logits)")
        legend_below(figure)
        words = "; ".join(f"{name}: mean gap {_gap(shape)}" for name, shape in shapes.items())
        caption = f"{title}. Shares of all images in common bins; dashed: the means. {words}."
        return finish(figure, id, title, caption, f"Histograms of negative energy, {title}. {words}.")


def _gap(shape: Mapping[str, Any]) -> str:
    stds = shape.get("gap_in_stds")
    told = f"{shape['gap']:.2f}" + ("" if stds is None else f" ({stds:.2f} standard deviations)")
    return told.replace("-", "\N{MINUS SIGN}")


def plane_features_figure(id: str, records: Mapping[str, Record]) -> Figure | None:
    """Draw the features of known and unknown images: a row for each head, a column for each epoch.

    Args:
        id: Identifier on the page.
        records: For each head's label, a run with features in the plane.
    """
    told = {name: (record.features or {})["epochs"] for name, record in records.items()}
    epochs = sorted({int(epoch) for found in told.values() for epoch in found})
    with panels(4.8, 0.7 + 2.55 * len(records), len(records), len(epochs)) as (figure, grid):
        clouds = [cloud for found in told.values() for cloud in found.values()]
        values = [value for cloud in clouds for point in (*cloud["known"], *cloud["unknown"]) for value in point]
        limits = (min(0.0, min(values)), max(values))
        for column, epoch in enumerate(epochs):
            for row, (name, record) in enumerate(records.items()):
                axes = grid[row][column]
                _scatter(axes, record.features or {}, str(epoch), limits)
                axes.set_title(f"{name}, epoch {epoch}")
        legend_below(figure, markerscale=2.5)
        heads, times = ", ".join(records), ", ".join(map(str, epochs))
        caption = "Features of test images: known classes in colour, unknown classes as crosses. All have one scale."
        alt = f"Two-dimensional features of known and unknown classes for {heads} after epochs {times}."
        return finish(figure, id, "Features in the plane", caption, alt)


def _scatter(axes: Any, features: Mapping[str, Any], epoch: str, limits: tuple[float, float]) -> None:
    found = features["epochs"].get(epoch)
    margin = 0.04 * (limits[1] - limits[0])
    for set_limits in (axes.set_xlim, axes.set_ylim):
        set_limits(limits[0] - margin, limits[1] + margin)
    axes.set_aspect("equal")
    axes.grid(False)
    axes.axhline(0, color=SOFT, linewidth=0.5)
    axes.axvline(0, color=SOFT, linewidth=0.5)
    if found is None:
        return
    for label, name in enumerate(features["classes"]):
        points = [p for p, y in zip(found["known"], found["labels"], strict=True) if y == label][:_DOTS]
        colour = colour_of(_CLASSES[label % len(_CLASSES)])
        look = {"color": colour, "marker": "o", "markersize": 2.2, "markeredgewidth": 0, "linestyle": "none"}
        axes.plot([p[0] for p in points], [p[1] for p in points], label=name, **look)
    points = found["unknown"][: 4 * _DOTS]
    look = {"color": INK, "marker": "x", "markersize": 2.6, "markeredgewidth": 0.5, "linestyle": "none", "alpha": 0.6}
    axes.plot([p[0] for p in points], [p[1] for p in points], label="unknown", **look)


def norms_figure(id: str, histories: Mapping[str, Sequence[Mapping[str, Any]]], heads: Mapping[str, str]) -> Figure:
    """Draw the mean norm of features of known and unknown images over the epochs.

    Args:
        id: Identifier on the page.
        histories: For each label, the lines of a run's log.
        heads: The head of each label, which decides the colour.
    """
    with panels(4.8, 3.0, 1, 1) as (figure, grid):
        axes = grid.flat[0]
        ends = []
        for label, lines in histories.items():
            points = [(x["epoch"] + 1, x["norm_known"], x["norm_unknown"]) for x in lines if "norm_unknown" in x]
            for place, (kind, dashes) in enumerate((("known", "-"), ("unknown", (0, (4, 2)))), 1):
                look = {"color": colour_of(heads[label]), "linestyle": dashes}
                marker = "o" if len(points) == 1 else ""
                axes.plot(
                    [p[0] for p in points], [p[place] for p in points], label=f"{label}, {kind}", marker=marker, **look
                )
            ends.append(f"{label} ends at {points[-1][1]:.2f} for known and {points[-1][2]:.2f} for unknown images")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title("Mean norm of features")
        legend_below(figure)
        words = "; ".join(ends)
        return finish(figure, id, "Mean norm of features", f"{words}.", f"Mean norm of features over epochs: {words}.")
