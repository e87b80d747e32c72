"""`maxsep reproduce NAME`: train the runs of a table or figure; `maxsep demo`; `maxsep report RUNS`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from maxsep.cli import app
from maxsep.lab import grid, recipes
from maxsep.lab.data import with_order
from maxsep.lab.engine.train import check_precision
from maxsep.lab.environment import default_precision
from maxsep.lab.grid import Event, PlannedRun, Summary, format_seconds, parse_budget
from maxsep.lab.report import write_report
from maxsep.lab.spec import Execution


def reproduce_command(
    name: Annotated[str, typer.Argument(help=f"{', '.join(recipes.names())}.")],
    only: Annotated[str | None, typer.Option(help="Select runs: field=value,... or parts of names.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; by default the recipe's.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Another number of epochs than the paper's.")] = None,
    precision: Annotated[str | None, typer.Option(help="32-true or bf16-mixed, the default on a GPU.")] = None,
    budget: app.Budget = None,
    jobs: app.Jobs = 1,
    dry_run: app.DryRun = False,
    data: app.Data = None,
    download: app.Download = False,
    runs: app.Runs = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="Folder of the report; by default RUNS/report.")] = None,
    device: app.Device = "auto",
    as_json: app.Json = False,
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
    page = None
    if summary.finished or summary.skipped:
        page = write_report(runs, out or runs / "report", commands=[app.command_line()])
    _show(summary, page, as_json)
    raise typer.Exit(summary.status)


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("demo"),
    seeds: app.Seeds = 3,
    epochs: Annotated[int | None, typer.Option(min=1, help="Another number of epochs.")] = None,
) -> None:
    """Train on long-tailed digits with and without the matrix, a minute on a CPU, and write a report."""
    reproduce_command("demo", seeds=seeds, epochs=epochs, runs=out / "runs", out=out, device="cpu")


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    out: Annotated[Path, typer.Option(help="Folder of report.html, report.md and report.json.")] = Path("report"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Write the report of finished runs: one HTML page that needs nothing else, Markdown and JSON."""
    typer.echo(str(write_report(runs, out, **({} if title is None else {"title": title}))))


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
        rows = [{"name": run.spec.name, "state": run.state, **asdict(run.estimate)} for run in planned]
        typer.echo(json.dumps(rows))
        return
    times = [format_seconds(run.estimate.seconds) if run.estimate.seconds else "" for run in planned]
    cells = [[run.spec.title, run.state, seconds] for run, seconds in zip(planned, times, strict=True)]
    app.show_table(["run", "state", "time"], cells)
    missing = [run for run in planned if run.state != "finished"]
    basis = "; ".join(sorted({run.estimate.basis for run in missing})) or "none left"
    total = format_seconds(sum(run.estimate.seconds for run in missing))
    typer.echo(f"{len(missing)} of {len(planned)} runs to train, about {total} in total ({basis})")


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
