"""`maxsep bench`: time the head on this machine, against the dense matrix and nn.Linear."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import torch
import typer

from maxsep.cli import app
from maxsep.lab.benchmark import Timing, measure
from maxsep.lab.environment import hardware, pick_device, versions

CLASSES, QUICK = "100,1000,10000,100000", "100,1000"


def bench_command(
    device: app.Device = "auto",
    classes: Annotated[list[str] | None, typer.Option(help=f"By default {CLASSES}; {QUICK} with --quick.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = 128,
    features: Annotated[int, typer.Option(min=1, help="Width of the features before the head.")] = 512,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; one is CPU time, more are wall time.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds: small sizes, three rounds.")] = False,
    as_json: app.Json = False,
) -> None:
    """Time product, head and fused loss against the dense matrix and nn.Linear, and print a table."""
    sizes, place = sorted({*app.split("--classes", classes, QUICK if quick else CLASSES, int)}), pick_device(device)
    if sizes[0] < 2:
        raise ValueError(f"--classes must be at least 2, got {sizes[0]}.")
    torch.set_num_threads(threads)
    rows = measure(sizes, batch=batch, features=features, device=str(place), seconds=0.0 if quick else 0.25)
    machine = hardware(place)
    if as_json:
        settings = {"batch": batch, "features": features, "dtype": "float32", "classes": sizes}
        record = {"settings": settings, "hardware": machine, "versions": versions()}
        typer.echo(json.dumps(record | {"rows": [asdict(row) for row in rows]}, indent=1))
    else:
        app.show_table(["operation", "classes", "form", "ms", "x nn.Linear", "quartiles"], map(_cells, rows))
        clock = "CPU time" if place.type == "cpu" and threads == 1 else "wall time"
        names = ", ".join(f"{name} {value}" for name, value in machine.items())
        typer.echo(f"{names}; {clock}; medians, and quartiles of the ratio")
    if any(row.failed for row in rows):
        raise typer.Exit(1)


def _cells(row: Timing) -> list[str]:
    first = [row.operation, f"{row.classes:,}", row.form]
    if row.milliseconds is None or row.ratio is None:
        return [*first, "", "", row.problem or "nn.Linear failed"]
    numbers = [row.milliseconds.median, row.ratio.median, row.ratio.low, row.ratio.high]
    ms, ratio, low, high = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in numbers)
    return [*first, ms, ratio, f"{low} to {high}"]
