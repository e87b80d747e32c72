"""How many runs look on a terminal: what is planned, what is going on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import typer

from maxsep.lab.grid import Event, PlannedRun, format_seconds


def events() -> Callable[[Event], None]:
    """Return a callback that prints a line for each run of a grid."""

    def tell(event: Event) -> None:
        place = f"[{event.index}/{event.total}]"
        if event.kind == "start":
            typer.echo(f"{place} {event.spec.title}  (about {format_seconds(event.seconds)})")
        elif event.kind == "postponed":
            typer.echo(f"{place} left for next time (needs about {format_seconds(event.seconds)}): {event.spec.title}")
        elif event.kind == "failed":
            typer.echo(f"{place} FAILED: {event.message}")
        elif event.kind == "elsewhere":
            typer.echo(f"{place} in the hands of another process: {event.spec.title}")
        elif event.kind == "finished":
            typer.echo(f"{place} done in {format_seconds(event.seconds)}")

    return tell


def plan_table(planned: Sequence[PlannedRun], as_json: bool) -> None:
    """Print the runs with their state and estimated time, and the sum."""
    if as_json:
        rows = [
            {"name": run.spec.name, "state": run.state, "seconds": run.estimate.seconds, "basis": run.estimate.basis}
            for run in planned
        ]
        typer.echo(json.dumps(rows))
        return
    for run in planned:
        time = "-" if run.state == "finished" else format_seconds(run.estimate.seconds)
        typer.echo(f"{run.state:>10}  {time:>13}  {run.spec.title}")
    left = [run for run in planned if run.state != "finished"]
    basis = sorted({run.estimate.basis for run in left})
    total = format_seconds(sum(run.estimate.seconds for run in left))
    typer.echo(
        f"{len(left)} of {len(planned)} runs to train, about {total} in all ({'; '.join(basis) or 'none left'})."
    )
