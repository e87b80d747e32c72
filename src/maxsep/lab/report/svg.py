"""Turn a matplotlib figure into an SVG that lives inside a page and follows its light or dark scheme."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import fill
from typing import Any

INK, SOFT, RULE, PAPER = "#1d2329", "#5c6670", "#d5dade", "#fefefe"
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
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    RULE: "var(--rule)",
    PAPER: "var(--card)",
    OTHER_COLOUR: "var(--c-other)",
    **{colour: f"var(--c-{head})" for head, colour in HEAD_COLOURS.items()},
}
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be read out, searched and styled
    "svg.hashsalt": "maxsep",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 9,
    "axes.edgecolor": RULE,
    "axes.linewidth": 0.8,
    "axes.labelcolor": SOFT,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "ytick.major.size": 0,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "figure.facecolor": "none",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.hspace": 0.08,
}

_TITLE_LETTERS, _TITLE_LINE = 50, 0.18
"""Letters that fit over axes of a figure 4.8 inches wide, and the height of a further line in inches."""


@dataclass(frozen=True)
class Figure:
    """A drawn figure: its SVG for a page, its SVG as a file, and words for those who cannot see it."""

    id: str
    title: str
    caption: str
    alt: str
    svg: str

    @property
    def inline(self) -> str:
        """The SVG for a page: colours are the page's variables, identifiers are the figure's own."""
        text = self.svg
        for colour, variable in _VARIABLES.items():
            text = text.replace(colour, variable)
        text = re.sub(r'id="([^"]+)"', rf'id="{self.id}-\1"', text)
        text = re.sub(r"url\(#([^)]+)\)", rf"url(#{self.id}-\1)", text)
        text = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{self.id}-\1"', text)
        label = html.escape(self.alt, quote=True)
        return re.sub(r"<svg ", f'<svg role="img" aria-label="{label}" ', text, count=1)

    @property
    def file(self) -> str:
        """The SVG as a file of its own, on a white ground."""
        ground = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
        return re.sub(r"(<svg [^>]*>)", rf"\1{ground}", self.svg, count=1)


@contextmanager
def canvas(width: float = 4.8, height: float = 3.0, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Open a figure with one pair of axes in the house style; it is closed at the end.

    Args:
        width: In inches; 4.8 reads well at the width of a phone.
        height: In inches.
        **options: Passed to `add_subplot`, such as `projection="3d"`.
    """
    with _figure(width, height) as figure:
        yield figure, figure.add_subplot(**options)


@contextmanager
def panels(width: float, height: float, rows: int, columns: int) -> Iterator[tuple[Any, Any]]:
    """Open a figure with an array (rows, columns) of axes in the house style; it is closed at the end."""
    with _figure(width, height) as figure:
        yield figure, figure.subplots(rows, columns, squeeze=False)


@contextmanager
def _figure(width: float, height: float) -> Iterator[Any]:
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise ImportError('figures need matplotlib: pip install "maxsep[lab]"') from error
    with matplotlib.rc_context(_STYLE):  # no pyplot: no global state, no display, safe in threads
        yield Canvas(figsize=(width, height))


def finish(figure: Any, id: str, title: str, caption: str, alt: str) -> Figure:
    """Write a figure as SVG without anything that changes from day to day. Call it inside `canvas`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    text = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text)
    return Figure(id, title, caption, alt, text)


def head_line(axes: Any, title: str) -> None:
    """Write a title over axes as wide as the figure, in as many lines as it needs; the figure grows by those lines."""
    lines = fill(title, _TITLE_LETTERS)
    axes.set_title(lines)
    figure = axes.figure
    figure.set_figheight(figure.get_figheight() + _TITLE_LINE * lines.count("\n"))


def legend_below(figure: Any, markerscale: float = 1.0) -> None:
    """Put one legend of all panels under the axes, where it hides no data; call it after drawing."""
    shown: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    longest = max(map(len, shown), default=0)
    columns = 3 if longest < 18 and len(shown) != 4 else 2 if longest < 30 else 1
    look = {"ncols": min(columns, max(len(shown), 1)), "columnspacing": 1.4, "markerscale": markerscale}
    figure.legend(shown.values(), shown, loc="outside lower center", **look)


def colour_of(head: str) -> str:
    """The colour that a head has in every figure."""
    return HEAD_COLOURS.get(head, OTHER_COLOUR)
