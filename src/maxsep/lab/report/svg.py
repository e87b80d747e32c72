"""Turn a matplotlib figure into an SVG, for a page or a file, that follows the light or dark scheme."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from maxsep.packages import load_package

INK, SOFT, RULE = "#1d2329", "#5c6670", "#d5dade"
HEAD_COLOURS = {
    "plain": "#6f7883",
    "scaled": "#b4690e",
    "maxsep": "#1464b4",
    "control": "#c0392f",
    "centred": "#4a7c7e",
    "learnable_matrix": "#7a52b3",
    "extra_layer": "#b0456f",
    "etf": "#3a7d44",
    "hpn": "#8a6a3d",
}
OTHER_COLOUR = "#50575e"
_VARIABLES = {
    **{INK: "var(--ink)", SOFT: "var(--soft)", RULE: "var(--rule)"},
    OTHER_COLOUR: "var(--c-other)",
    **{colour: f"var(--c-{head})" for head, colour in HEAD_COLOURS.items()},
}
_STYLE = Path(__file__).with_name("report.mplstyle")
COLOURS = Path(__file__).with_name("colours.css").read_text(encoding="utf-8")
"""The colours of both schemes as CSS variables, of pages and of figures in files."""
_FILE_WIDTH = 520
"""Pixels of a figure in a file, where no page sets its width."""
_TITLE_LETTERS, _TITLE_LINE = 50, 0.18
"""Letters that fit over axes of a figure 4.8 inches wide, and the height of a further line in inches."""


@dataclass(frozen=True)
class Figure:
    """A drawn figure: its SVG, and words for those who cannot see it."""

    id: str
    title: str
    caption: str
    alt: str
    svg: str

    @property
    def inline(self) -> str:
        """The SVG for a page, whose column sets its width and whose style its colours."""
        text = self.svg
        for colour, variable in _VARIABLES.items():
            text = text.replace(colour, variable)
        text = re.sub(r'id="([^"]+)"', rf'id="{self.id}-\1"', text)
        text = re.sub(r"url\(#([^)]+)\)", rf"url(#{self.id}-\1)", text)
        text = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{self.id}-\1"', text)
        label = html.escape(self.alt, quote=True).replace("\\", r"\\")
        return re.sub(r"<svg ", f'<svg role="img" aria-label="{label}" ', text, count=1)

    @property
    def file(self) -> str:
        """The SVG as a file, with its own size, colours and ground."""
        width, height = map(float, re.findall(r'viewBox="\S+ \S+ (\S+) (\S+)"', self.svg)[0])
        size = f'width="{_FILE_WIDTH}" height="{_FILE_WIDTH * height / width:.0f}"'
        inside = f'<style>{COLOURS}</style><rect width="100%" height="100%" style="fill: var(--card)"/>'
        return re.sub(r"<svg ([^>]*>)", lambda tag: f"<svg {size} {tag[1]}{inside}", self.inline, count=1)


@contextmanager
def canvas(width: float = 4.8, height: float = 3.0) -> Iterator[tuple[Any, Any]]:
    """Open a figure with one pair of axes in the house style; 4.8 inches read well at the width of a phone."""
    with panels(width, height, 1, 1) as (figure, grid):
        yield figure, grid.flat[0]


@contextmanager
def panels(
    width: float, height: float, rows: int, columns: int, heights: Sequence[float] | None = None
) -> Iterator[tuple[Any, Any]]:
    """Open a figure with an array (rows, columns) of axes in the house style; `heights` are those of the rows."""
    matplotlib = load_package("matplotlib", "lab")
    style = load_package("matplotlib.style", "lab").context(_STYLE)
    with matplotlib.rc_context(), style:  # no pyplot: no global state, no display, safe in threads
        figure = load_package("matplotlib.figure", "lab").Figure(figsize=(width, height))
        yield figure, figure.subplots(rows, columns, squeeze=False, height_ratios=heights)


def finish(figure: Any, id: str, title: str, caption: str, alt: str) -> Figure:
    """Write a figure as SVG without anything that changes from day to day. Call it inside `canvas`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.S)
    text = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", text, count=1)
    return Figure(id, title, caption, alt, re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text))


def heading(axes: Any, title: str) -> None:
    """Write a title over axes in as many lines as it needs; the figure grows by those lines."""
    lines = fill(title, _TITLE_LETTERS)
    axes.set_title(lines)
    axes.figure.set_figheight(axes.figure.get_figheight() + _TITLE_LINE * lines.count("\n"))


def legend_below(figure: Any, markerscale: float = 1.0) -> None:
    """Put one legend of all panels under the axes, where it hides no data; call it after drawing."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    longest = max(map(len, handles), default=0)
    columns = 3 if longest < 18 and len(handles) != 4 else 2 if longest < 30 else 1
    look = {"ncols": min(columns, max(len(handles), 1)), "columnspacing": 1.4, "markerscale": markerscale}
    figure.legend(handles.values(), handles, loc="outside lower center", **look)


def colour_of(head: str) -> str:
    """Return the colour that a head has in every figure."""
    return HEAD_COLOURS.get(head, OTHER_COLOUR)
