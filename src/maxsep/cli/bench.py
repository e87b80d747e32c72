"""`maxsep bench`: time the head on this machine, against the dense matrix and nn.Linear."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from maxsep.cli.app import Device, Json, show_table
from maxsep.lab.benchmark import Row, measure
from maxsep.lab.environment import hardware, pick_device, versions

CLASSES, QUICK = "100,1000,10000,100000", "100,1000"


def bench_command(
    device: Device = "auto",
    classes: Annotated[
        str | None, typer.Option(help=f"Numbers of classes; {CLASSES}, or {QUICK} with --quick.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = 128,
    features: Annotated[int, typer.Option(min=1, help="Width of the features before the head.")] = 512,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; one is CPU time, more are wall time.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds: small sizes, three rounds.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers to this JSON file.")] = None,
    as_json: Json = False,
) -> None:
    """Time construction, product, head and fused loss, and print a table."""
    sizes, place = _sizes(classes or (QUICK if quick else CLASSES)), pick_device(device)
    torch.set_num_threads(threads)
    options = {"seconds": 0.0} if quick else {}
    rows = measure(sizes, batch=batch, features=features, device=place, on_start=_progress, **options)
    settings = {"batch": batch, "features": features, "dtype": "float32", "classes": sizes}
    machine = hardware(place)
    record = {"settings": settings, "hardware": machine, "versions": versions()}
    text = json.dumps(record | {"rows": [asdict(row) for row in rows]}, indent=1)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    if as_json:
        typer.echo(text)
    else:
        show_table(["operation", "classes", "form", "ms", "x nn.Linear", "quartiles"], map(_cells, rows))
        clock = "CPU time" if place.type == "cpu" and threads == 1 else "wall time"
        typer.echo(f"{', '.join(map(str, machine.values()))}; {clock}; medians, and quartiles of the ratio")
    if any(row.failed for row in rows):
        raise typer.Exit(1)


def _progress(operation: str, classes: int) -> None:
    typer.echo(f"maxsep: {operation}, {classes:,} classes", err=True)


def _sizes(text: str) -> list[int]:
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 2:
        raise ValueError(f"--classes must be whole numbers of at least 2, such as {QUICK}, got {text!r}.")
    return sizes


def _cells(row: Row) -> list[str]:
    first = [row.operation, f"{row.classes:,}", row.form]
    if row.milliseconds is None or row.ratio is None:
        return [*first, "", "", row.problem or "nn.Linear failed"]
    numbers = [row.milliseconds.median, row.ratio.median, row.ratio.low, row.ratio.high]
    ms, ratio, low, high = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in numbers)
    return [*first, ms, ratio, f"{low} to {high}"]
