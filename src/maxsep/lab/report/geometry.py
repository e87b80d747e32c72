"""Figures of the geometry: the simplex itself and the angles between class vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from maxsep.lab.report.svg import INK, RULE, SOFT, Figure, canvas, colour_of, finish


def plane_figure() -> Figure:
    """Draw the three class vectors of three classes in the plane."""
    with canvas(4.8, 3.0) as (figure, axes):
        columns = _columns(3)
        _flat(axes)
        outline = [*columns, columns[0]]
        axes.plot([p[0] for p in outline], [p[1] for p in outline], color=RULE, linewidth=1.0)
        for number, (x, y) in enumerate(columns):
            arrow = {"arrowstyle": "-|>", "color": colour_of("maxsep"), "linewidth": 1.7, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (x, y), (0, 0), arrowprops=arrow)
            far = 1.08 if number == 0 else 1.14
            align = "left" if number == 0 else "center"
            axes.text(far * x, far * y, f"class {number}", ha=align, va="center", fontsize=8.5)
        axes.text(0.17, 0.3, "120°", ha="center", va="center", color=SOFT, fontsize=8.5)
        axes.set_xlim(-1.05, 1.6)
        axes.set_ylim(-1.2, 1.2)
        alt = "Three unit vectors from the centre of a triangle to its corners, 120 degrees apart."
        caption = "3 classes: a triangle, any two vectors 120° apart."
        return finish(figure, "plane", "3 classes: a triangle", caption, alt)


def space_figure() -> Figure:
    """Draw the four class vectors of four classes in space."""
    with canvas(4.8, 3.0, projection="3d") as (figure, axes):
        columns = _columns(4)
        axes.set_axis_off()
        for i, one in enumerate(columns):
            for other in columns[i + 1 :]:
                axes.plot(*zip(one, other, strict=True), color=RULE, linewidth=1.0)
        for number, corner in enumerate(columns):
            axes.plot(*zip((0, 0, 0), corner, strict=True), color=colour_of("maxsep"), linewidth=1.9)
            axes.plot(*[[value] for value in corner], "o", color=colour_of("maxsep"), markersize=4)
            axes.text(*(1.28 * value for value in corner), f"class {number}", ha="center", va="center", fontsize=8.5)
        axes.view_init(elev=20, azim=-62)
        axes.set_box_aspect((1, 1, 1), zoom=1.2)
        alt = "Four unit vectors from the centre of a tetrahedron to its corners, 109.5 degrees apart."
        caption = "4 classes: a tetrahedron, any two vectors 109.5° apart."
        return finish(figure, "space", "4 classes: a tetrahedron", caption, alt)


def ideal_angle_figure() -> Figure:
    """Draw the angle between any two class vectors against the number of classes."""
    import math

    classes = [2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200, 500, 1000]
    angles = [math.degrees(math.acos(-1 / (count - 1))) for count in classes]
    with canvas(4.8, 3.0) as (figure, axes):
        axes.plot(classes, angles, "o-", color=colour_of("maxsep"), markersize=3)
        axes.axhline(90, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.set_xscale("log")
        axes.set_xticks([2, 10, 100, 1000], ["2", "10", "100", "1000"])
        axes.minorticks_off()
        axes.set_yticks([90, 120, 150, 180], ["90°", "120°", "150°", "180°"])
        for count in (10, 100):
            angle = math.degrees(math.acos(-1 / (count - 1)))
            axes.annotate(f"{angle:.1f}°", (count, angle), (4, 6), textcoords="offset points", fontsize=8.5)
        axes.set_xlabel("classes")
        axes.set_ylabel("angle between two classes")
        alt = "The angle falls from 180 degrees for 2 classes over 96.4 for 10 and 90.6 for 100 toward 90."
        return finish(
            figure, "ideal-angle", "Angle between any two classes", "More classes, less room: toward 90°.", alt
        )


def angles_figure(id: str, title: str, angles: Mapping[str, Sequence[float]], ideal: float) -> Figure:
    """Draw the pairwise angles between the class vectors of several heads, one strip for each head.

    Args:
        id: Identifier on the page.
        title: The setting.
        angles: For each head's label (its first word names the head), all pairwise angles in degrees.
        ideal: The angle of the simplex.
    """
    heading = fill(title, 40)
    with canvas(4.8, 1.1 + 0.2 * heading.count("\n") + 0.62 * len(angles)) as (figure, axes):
        for row, (label, values) in enumerate(angles.items()):
            ordered = sorted(values)
            low, high, middle = ordered[0], ordered[-1], ordered[len(ordered) // 2]
            tenth, ninth = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
            colour = colour_of(label.split(",")[0].split(" ")[0])
            axes.plot([low, high], [row, row], color=colour, linewidth=1.2)
            axes.plot([tenth, ninth], [row, row], color=colour, linewidth=6, solid_capstyle="butt", alpha=0.55)
            axes.plot([middle], [row], "o", color=colour, markersize=5)
        axes.axvline(ideal, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.set_yticks(range(len(angles)), [fill(label, 22) for label in angles])  # room is left for the strips
        axes.set_ylim(len(angles) - 0.5, -0.5)
        axes.tick_params(axis="y", labelcolor=INK)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("angle between two class vectors, degrees")
        axes.set_title(heading)
        words = "; ".join(f"{label}: {min(v):.1f} to {max(v):.1f}" for label, v in angles.items())
        alt = f"Range of pairwise angles in degrees, {title}. {words}. The simplex has {ideal:.1f} throughout."
        caption = "Line: all pairs of classes; bar: the middle 80 %; dot: the median; dashed: the simplex."
        return finish(figure, id, title, caption, alt)


def _columns(num_classes: int) -> list[tuple[float, ...]]:
    from maxsep.simplex import simplex

    return [tuple(column) for column in simplex(num_classes).T.tolist()]


def _flat(axes: Any) -> None:
    axes.set_aspect("equal")
    axes.set_axis_off()
