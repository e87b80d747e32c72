"""`maxsep matrix C`: the matrix and the proof of its geometry, for any number of classes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from maxsep.cli.memory import available_memory
from maxsep.cli.options import Json

EPILOG = "Example: maxsep matrix 10"
SHOWN = 12
BYTES_PER_CLASS = 80
"""What a certificate holds at its peak: ten numbers of float64 for each class."""


def command(
    classes: Annotated[int, typer.Argument(help="Number of classes, at least 2.")],
    draw: Annotated[
        Path | None, typer.Option(help="Draw the class vectors of 3 or 4 classes to this SVG file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the matrix, the angle between any two classes, and how exact both are."""
    from maxsep import simplex
    from maxsep.simplex import certify

    _check_memory(classes)
    certificate = certify(classes)
    if draw is not None:
        _draw(classes, draw)
    angle = math.degrees(math.acos(-1 / (classes - 1)))
    if as_json:
        told = {"num_classes": classes, "angle": angle, "norm_error": certificate.norm}
        told |= {"cosine_error_times_k": certificate.cosine, "mean_error": certificate.mean}
        typer.echo(json.dumps(told))
        return
    typer.echo(f"{classes} classes, {classes - 1} outputs: any two class vectors are {angle:.4f} degrees apart.")
    if classes <= SHOWN:
        for row in simplex(classes).tolist():
            typer.echo("  " + "  ".join(f"{value:8.5f}" if value else f"{'0':>8}" for value in row))
    else:
        size = 4 * classes * (classes - 1) / 2**20
        typer.echo(
            f"  dense it would take {size:,.1f} MiB; its two coefficient vectors take {8 * classes / 2**20:,.3f}."
        )
    typer.echo(
        f"  errors in float64: squared norm {certificate.norm:.0e}, cosine {certificate.cosine:.0e} of 1/(C-1), "
        f"mean {certificate.mean:.0e}."
    )


def _check_memory(classes: int) -> None:
    needed, free = BYTES_PER_CLASS * classes, available_memory()
    if needed > free:
        raise ValueError(
            f"{classes:,} classes need about {needed / 2**30:,.1f} GiB of memory for the vectors of their certificate, "
            f"and {free / 2**30:,.1f} GiB are free. Ask for at most {free // BYTES_PER_CLASS:,} classes."
        )


def _draw(classes: int, path: Path) -> None:
    from maxsep.lab.report.geometry import plane_figure, space_figure

    figures = {3: plane_figure, 4: space_figure}
    if classes not in figures:
        raise ValueError(f"only 3 classes (a plane) and 4 classes (space) can be drawn, got {classes}.")
    path.write_text(figures[classes]().file, encoding="utf-8")
