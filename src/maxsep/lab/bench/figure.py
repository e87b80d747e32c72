"""Time against the number of classes, both logarithmic: a panel for each operation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maxsep.lab.bench.cases import DENSE, FUSED, MAXSEP, OPERATIONS, PLAIN
from maxsep.lab.bench.measuring import Row
from maxsep.lab.bench.timing import Spread
from maxsep.lab.report.svg import HEAD_COLOURS, PAPER, RULE, SOFT, Figure, canvas, finish

__all__ = ["bench_figure", "write_figure"]

TITLES = {
    "construction": "Construction",
    "product": "Product, forward and backward",
    "head": "Head and loss, forward and backward",
}
RATIOS = (0.1, 0.2, 0.5, 0.8, 1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500)
LOOKS: dict[str, dict[str, Any]] = {
    PLAIN: {"color": HEAD_COLOURS["plain"], "marker": "s", "label": "plain nn.Linear", "zorder": 2},
    DENSE: {"color": HEAD_COLOURS["scaled"], "marker": "^", "label": "dense matrix", "zorder": 3},
    FUSED: {"color": HEAD_COLOURS["centred"], "marker": "D", "label": "maxsep, fused loss", "zorder": 5},
    MAXSEP: {"color": HEAD_COLOURS["maxsep"], "marker": "o", "label": "maxsep", "zorder": 4},
}


def bench_figure(rows: Sequence[Row], where: str, png: Path | None = None) -> Figure:
    """Draw what was measured: times of each operation, and the head's as multiples of the plain layer's.

    Args:
        rows: What `measure` returned.
        where: The machine and the sizes, for the foot of the figure.
        png: Also draw it to this file.
    """
    with canvas(8.6, 6.6) as (figure, axes):
        axes.remove()
        *panels, last = figure.subplots(2, 2).flat
        for panel, operation in zip(panels, OPERATIONS, strict=True):
            _draw_times(panel, operation, [row for row in rows if row.operation == operation])
        _draw_ratios(last, [row for row in rows if row.operation == "head" and row.form != PLAIN])
        handles = {label: handle for panel in panels for handle, label in zip(*_legend(panel), strict=True)}
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=len(handles))
        figure.supxlabel(where, fontsize=7, color=SOFT, x=0.01, ha="left")
        if png is not None:
            figure.savefig(png, dpi=160, facecolor=PAPER)
        return finish(figure, "bench", "Time against the number of classes", where, _words(rows))


def write_figure(rows: Sequence[Row], where: str, folder: Path) -> list[Path]:
    """Write `bench.svg` and `bench.png` to a folder."""
    svg, png = folder / "bench.svg", folder / "bench.png"
    svg.write_text(bench_figure(rows, where, png).file, encoding="utf-8")
    return [svg, png]


def _legend(panel: Any) -> tuple[list[Any], list[str]]:
    handles, labels = panel.get_legend_handles_labels()
    return handles, labels


def _draw_times(panel: Any, operation: str, rows: Sequence[Row]) -> None:
    for form, look in LOOKS.items():
        _line(panel, [(row.classes, row.milliseconds) for row in rows if row.form == form], look)
    _classes_axis(panel, rows)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,g}".replace(",", " "))
    panel.set_title(TITLES[operation])
    panel.set_ylabel("milliseconds")
    missing = [row for row in rows if row.milliseconds is None]
    if missing:  # room above the lines for what did not run
        low, high = panel.get_ylim()
        panel.set_ylim(low, high * (high / low) ** (0.05 + 0.07 * len(missing)))
    for line, row in enumerate(missing):
        told = f"{row.form} at {row.classes:,}: {_short(row.problem)}".replace(",", " ")
        panel.text(
            0.99, 0.98 - 0.07 * line, told, transform=panel.transAxes, va="top", ha="right", fontsize=7, color=SOFT
        )


def _draw_ratios(panel: Any, rows: Sequence[Row]) -> None:
    panel.axhline(1, color=LOOKS[PLAIN]["color"], linewidth=1.4)
    for form, look in LOOKS.items():
        _line(panel, [(row.classes, row.ratio) for row in rows if row.form == form], look)
    _classes_axis(panel, rows)
    low, high = panel.get_ylim()
    panel.set_ylim(low, max(high, 2))
    ticks = [tick for tick in RATIOS if low <= tick <= max(high, 2)]
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.set_title("Head and loss over a plain nn.Linear")
    panel.set_ylabel("times as long")


def _line(panel: Any, points: Sequence[tuple[int, Spread | None]], look: dict[str, Any]) -> None:
    there = [(classes, spread) for classes, spread in points if spread is not None]
    if there:
        x = [classes for classes, _ in there]
        low, high = [spread.low for _, spread in there], [spread.high for _, spread in there]
        panel.fill_between(x, low, high, color=look["color"], alpha=0.16, linewidth=0)
        panel.plot(x, [spread.median for _, spread in there], **look)


def _classes_axis(panel: Any, rows: Sequence[Row]) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    ticks = sorted({row.classes for row in rows})
    panel.set_xticks(ticks, [f"{tick:,}".replace(",", " ") for tick in ticks])
    panel.set_xlim(ticks[0] / 1.6, ticks[-1] * 1.6)
    panel.minorticks_off()
    panel.set_xlabel("classes")
    panel.grid(axis="x", color=RULE, linewidth=0.4)


def _short(problem: str | None) -> str:
    words = (problem or "").split(",")[0]
    return words if len(words) <= 44 else words[:43] + "…"


def _words(rows: Sequence[Row]) -> str:
    largest = max((row.classes for row in rows), default=0)
    told = [
        f"{row.operation}, {row.form}: {row.ratio.median:.2f} times nn.Linear"
        if row.ratio is not None
        else f"{row.operation}, {row.form}: {row.problem}"
        for row in rows
        if row.classes == largest and row.form != PLAIN
    ]
    return f"Time against the number of classes. At {largest:,} classes: {'; '.join(told)}."
