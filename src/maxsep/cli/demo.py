"""`maxsep demo`: what the head does, on real digits, in two minutes on two cores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

EPILOG = "Example: maxsep demo"
SIZES = (3, 10, 100, 1000)


def command(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per head; fewer than 3 cannot be tested.")] = 3,
    epochs: Annotated[int | None, typer.Option(min=1, help="Shorter or longer training.")] = None,
) -> None:
    """Show the geometry, train long-tailed digits with and without the matrix, and write a report."""
    import torch

    from maxsep.lab import grid, recipes
    from maxsep.lab.report import render

    torch.set_num_threads(1)  # the networks are so small that threads would wait for each other
    _geometry()
    recipe = recipes.get("demo")
    runs = out / "runs"
    with _bar() as bar:
        task = bar.add_task("training", total=None)

        def tell(event: grid.Event) -> None:
            told = f"{event.spec.head}, radius {event.spec.radius:g}"
            if event.kind == "start":
                bar.update(task, total=event.total, description=f"training {told:<18}", completed=event.index - 1)
            else:
                bar.update(task, total=event.total, completed=event.index)

        summary = grid.reproduce(recipe, seeds=seeds, epochs=epochs, runs=runs, on_event=tell)
    if summary.failed:
        raise ValueError("; ".join(f"{spec.name}: {message}" for spec, message in summary.failed))
    page = render(runs, out, title="Maximum class separation: a demonstration on long-tailed digits")
    typer.echo(f"{summary}\nLook at it: {page.resolve()}")


def _geometry() -> None:
    typer.echo("One fixed matrix puts the classes as far apart as geometry allows:")
    for size in SIZES:
        angle = math.degrees(math.acos(-1 / (size - 1)))
        typer.echo(f"  {size:>5} classes: any two class vectors {angle:8.4f} degrees apart")


def _bar() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
