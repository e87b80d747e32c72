"""`maxsep matrix C`: the matrix and the proof of its geometry, for any number of classes."""

from __future__ import annotations

import json
import math
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
    as_json: Json = False,
) -> None:
    """Show the matrix, the angle between any two classes, and how exact both are."""
    from maxsep import simplex
    from maxsep.simplex import certify

    _check_memory(classes)
    certificate = certify(classes)
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
        dense, kept = format_bytes(4 * classes * (classes - 1)), format_bytes(8 * classes)
        typer.echo(f"  dense it would take {dense}; its two coefficient vectors take {kept}.")
    typer.echo(
        f"  errors in float64: of squared norms {certificate.norm:.0e}, of the mean {certificate.mean:.0e}, of cosines "
        f"{certificate.cosine:.0e} times their value."
    )


def format_bytes(count: float) -> str:
    """Write a number of bytes in the unit that suits it.

    >>> format_bytes(800), format_bytes(8e6), format_bytes(4e12)
    ('800 B', '7.6 MiB', '3.6 TiB')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(int(math.log2(max(count, 1)) // 10), len(units) - 1)
    return f"{count:.0f} B" if power == 0 else f"{count / 1024**power:,.1f} {units[power]}"


def _check_memory(classes: int) -> None:
    needed, free = BYTES_PER_CLASS * classes, available_memory()
    if needed > free:
        raise ValueError(
            f"{classes:,} classes need about {needed / 2**30:,.1f} GiB of memory for the vectors of their certificate, "
            f"and {free / 2**30:,.1f} GiB are free. Ask for at most {free // BYTES_PER_CLASS:,} classes."
        )
