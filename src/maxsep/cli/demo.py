"""`maxsep demo`: what the head does, on real digits, in two minutes on two cores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from maxsep.lab.grid import Event
from maxsep.lab.spec import RunSpec

EPILOG = "Example: maxsep demo"
SIZES = (3, 10, 100, 1000)
SEARCH, TEST = "choosing the radius", "testing"


def command(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per head; fewer than 3 cannot be tested.")] = 3,
    epochs: Annotated[int | None, typer.Option(min=1, help="Shorter or longer training.")] = None,
) -> None:
    """Show the geometry, train long-tailed digits with and without the matrix, and write a report."""
    import torch

    from maxsep.lab import grid, recipes
    from maxsep.lab.report import write_report

    torch.set_num_threads(1)  # the networks are so small that threads would wait for each other
    typer.echo("One fixed matrix puts the classes as far apart as geometry allows; measured from the matrix:")
    for size in SIZES:
        typer.echo(f"  {size:>5} classes: any two class vectors {measured_angle(size)} degrees apart")
    recipe = recipes.get("demo")
    runs = out / "runs"
    with _bar() as bar:
        tally = Tally(bar, recipe.specs(seeds, epochs))
        summary = grid.reproduce(recipe, seeds=seeds, epochs=epochs, runs=runs, on_event=tally)
    if summary.failed:
        raise ValueError("; ".join(f"{spec.name}: {message}" for spec, message in summary.failed))
    page = write_report(runs, out, title="Maximum class separation: a demonstration on long-tailed digits")
    typer.echo(f"{summary}\nLook at it: {page.resolve()}")


def measured_angle(classes: int) -> str:
    """Measure the angle between any two columns of the matrix, in float64; a range if they differ in four digits.

    >>> measured_angle(3)
    '120.0000'
    """
    import torch

    from maxsep import simplex

    matrix = simplex(classes, dtype=torch.float64)
    rows, columns = torch.triu_indices(classes, classes, offset=1)
    angles = torch.rad2deg(torch.acos((matrix.T @ matrix)[rows, columns].clamp(-1, 1)))
    low, high = (f"{value.item():8.4f}" for value in (angles.min(), angles.max()))
    return low if low == high else f"{low} to {high}"


class Tally:
    """Two lines of a progress display, one for each phase; each run counts once, whichever call names it.

    The runs at the chosen radius are known only after the search: the second line's total grows then.
    """

    def __init__(self, bar: Any, specs: list[RunSpec]) -> None:
        self._bar = bar
        self._known = {SEARCH: set[str](), TEST: set[str]()}
        self._done = {SEARCH: set[str](), TEST: set[str]()}
        for spec in specs:
            self._known[_phase(spec)].add(spec.name)
        self._tasks = {phase: bar.add_task(phase, total=len(names)) for phase, names in self._known.items()}

    def __call__(self, event: Event) -> None:
        """Take note of something that happened to a run."""
        phase = _phase(event.spec)
        self._known[phase].add(event.spec.name)
        if event.kind != "start":
            self._done[phase].add(event.spec.name)
        told = f"{phase}: {event.spec.head}, radius {event.spec.radius:g}" if event.kind == "start" else phase
        counts = {"completed": len(self._done[phase]), "total": len(self._known[phase])}
        self._bar.update(self._tasks[phase], description=f"{told:<40}", **counts)


def _phase(spec: RunSpec) -> str:
    return SEARCH if spec.validation > 0 else TEST


def _bar() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
