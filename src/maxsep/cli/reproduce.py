"""`maxsep reproduce NAME`: train the runs of a table or figure and write the report; `maxsep demo`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from maxsep.cli.app import Budget, Data, Device, Download, DryRun, Jobs, Json, Runs, show_table
from maxsep.lab import grid, recipes
from maxsep.lab.data import with_order
from maxsep.lab.engine.train import check_precision
from maxsep.lab.environment import default_precision
from maxsep.lab.grid import Event, PlannedRun, Summary, format_seconds, parse_budget
from maxsep.lab.report import write_report
from maxsep.lab.spec import Execution


def reproduce_command(
    name: Annotated[str, typer.Argument(help=f"{', '.join(recipes.names())}.")],
    only: Annotated[
        str | None, typer.Option(help="Select runs by field=value or a part of the name, joined by commas.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; by default the recipe's.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Another number of epochs than the paper's.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="32-true, bf16-mixed, ...; by default bf16-mixed on a GPU.")
    ] = None,
    budget: Budget = None,
    jobs: Jobs = 1,
    dry_run: DryRun = False,
    data: Data = None,
    download: Download = False,
    runs: Runs = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="Folder of the report; by default RUNS/report.")] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Train the missing runs of a table or figure, then write the report."""
    recipe = recipes.get(name)
    limit = None if budget is None else parse_budget(budget)
    numbers = precision or default_precision(device)
    check_precision(numbers)
    specs = with_order(recipe.specs(seeds, epochs, only, numbers), data, download=download)
    execution = Execution(device=device)
    if dry_run:
        show_plan(grid.plan(specs, runs=runs, execution=execution), as_json)
        return
    grid.check_data(specs, after=recipe.after, runs=runs, data_root=data, download=download)
    summary = grid.reproduce(
        recipe, seeds=seeds, epochs=epochs, only=only, precision=numbers, runs=runs, budget=limit, jobs=jobs,
        data_root=data, download=download, execution=execution, progress=not as_json and jobs == 1,
        on_event=None if as_json else show_event,
    )  # fmt: skip
    page = write_report(runs, out or runs / "report") if summary.finished or summary.skipped else None
    _show(summary, page, as_json)
    raise typer.Exit(summary.status)


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds; intervals need two or more.")] = 3,
    epochs: Annotated[int | None, typer.Option(min=1, help="Another number of epochs.")] = None,
) -> None:
    """Train on long-tailed digits with and without the matrix, a minute on a CPU, and write a report."""
    summary = grid.reproduce(recipes.get("demo"), seeds=seeds, epochs=epochs, runs=out / "runs", on_event=show_event)
    title = "Maximum class separation: a demonstration on long-tailed digits"
    _show(summary, write_report(out / "runs", out, title=title) if summary.finished or summary.skipped else None, False)
    raise typer.Exit(summary.status)


def show_event(event: Event) -> None:
    """Print a line for each run that starts, ends or is left out."""
    run, seconds = f"[{event.index}/{event.total}]", format_seconds(event.seconds)
    lines = {
        "start": f"{run} {event.spec.title}  (about {seconds})",
        "finished": f"{run} done in {seconds}",
        "failed": f"{run} FAILED: {event.message}",
        "postponed": f"{run} left for next time (about {seconds}): {event.spec.title}",
        "elsewhere": f"{run} another process trains it: {event.spec.title}",
    }
    if event.kind in lines:
        typer.echo(lines[event.kind])


def show_plan(planned: Sequence[PlannedRun], as_json: bool) -> None:
    """Print runs with their state and estimated time, and the sum."""
    if as_json:
        rows = [
            {"name": run.spec.name, "state": run.state, "seconds": run.estimate.seconds, "basis": run.estimate.basis}
            for run in planned
        ]
        typer.echo(json.dumps(rows))
        return
    show_table(["run", "state", "time"], [_plan_row(run) for run in planned])
    missing = [run for run in planned if run.state != "finished"]
    basis = "; ".join(sorted({run.estimate.basis for run in missing})) or "none left"
    total = format_seconds(sum(run.estimate.seconds for run in missing))
    typer.echo(f"{len(missing)} of {len(planned)} runs to train, about {total} in total ({basis})")


def _plan_row(run: PlannedRun) -> list[str]:
    return [run.spec.title, run.state, "" if run.state == "finished" else format_seconds(run.estimate.seconds)]


def _show(summary: Summary, page: Path | None, as_json: bool) -> None:
    if as_json:
        answer: dict[str, Any] = {
            name: [spec.name for spec in getattr(summary, name)]
            for name in ("finished", "skipped", "postponed", "elsewhere")
        }
        answer |= {"failed": [spec.name for spec, _ in summary.failed], "notes": summary.notes}
        typer.echo(json.dumps(answer | {"seconds": summary.seconds, "report": None if page is None else str(page)}))
        return
    typer.echo(str(summary))
    for spec, message in summary.failed:
        typer.echo(f"maxsep: {spec.title} failed: {message}", err=True)
    if page is not None:
        typer.echo(f"report: {page}")
