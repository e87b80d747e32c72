"""`maxsep reproduce NAME`: train the runs of a table or figure; `maxsep demo`; `maxsep report RUNS`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from maxsep.cli import app
from maxsep.files import read_json, sha256_of
from maxsep.lab import grid, recipes
from maxsep.lab.cluster import trains_on_gpu
from maxsep.lab.data import with_order
from maxsep.lab.engine.train import check_precision
from maxsep.lab.environment import default_precision
from maxsep.lab.grid import Event, PlannedRun, Summary, format_seconds, parse_budget
from maxsep.lab.report import write_report
from maxsep.lab.report.own_data import verdict
from maxsep.lab.report.statistics import plural
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec


def reproduce_command(
    name: Annotated[str, typer.Argument(help=f"{', '.join((*recipes.names(), *recipes.ALIASES))}.")],
    only: Annotated[str | None, typer.Option(help="Select runs: field=value,... or parts of names.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; by default the recipe's.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Another number of epochs than the paper's.")] = None,
    precision: Annotated[str | None, typer.Option(help="32-true or bf16-mixed, the default on a GPU.")] = None,
    weights: app.Weights = None,
    budget: app.Budget = None,
    jobs: app.Jobs = 1,
    on: app.On = None,
    gpus: app.Gpus = 1.0,
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
    on_gpu = trains_on_gpu(on, device)
    numbers = precision or default_precision(device, on_gpu)
    check_precision(numbers)
    specs = with_order(recipe.specs(seeds, epochs, only, numbers), data, download=download)
    starts = {spec.weights for spec in specs} - {""}
    if weights is not None and starts and sha256_of(weights) not in starts:
        raise ValueError(f"--weights {weights}: no run of {name} starts from this file.")
    execution = Execution(device=device, weights=weights if starts else None)
    if precision is None:
        _name_other_precision(specs, runs, numbers)
    plan = partial(grid.plan, runs=runs, execution=execution, on_gpu=on_gpu)
    if dry_run:
        show_plan(plan(specs), limit, jobs, as_json)
        return
    lacking = grid.lacking_weights(specs, execution)
    startable = [spec for spec in specs if spec not in lacking]
    grid.check_data(startable, after=recipe.after, runs=runs, data_root=data, download=download)
    warn_of_budget(plan(startable), limit, jobs)
    summary = grid.reproduce(
        recipe, seeds=seeds, epochs=epochs, only=only, precision=numbers, runs=runs, budget=limit, jobs=jobs,
        on=on, gpus=gpus, data_root=data, download=download, execution=execution, progress=not as_json and jobs == 1,
        on_event=None if as_json else show_event,
    )  # fmt: skip
    page = None
    if summary.finished or summary.skipped:
        page = write_report(runs, out or runs / "report")
    _show(summary, page, as_json)
    raise typer.Exit(summary.status)


def _name_other_precision(specs: Sequence[RunSpec], runs: Path, precision: str) -> None:
    """Warn if runs are finished in the precision of another device: they are other runs."""
    other = next(name for name in ("bf16-mixed", "32-true") if name != precision)
    done = [Run(runs / spec.replace(precision=other).name).state == "finished" for spec in specs]
    if any(done):
        warnings.warn(
            f"{sum(done)} of these runs are finished in {other}; here they are trained in {precision}. To count them, "
            f"add --precision {other}.",
            stacklevel=2,
        )


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("demo"),
    seeds: app.Seeds = 3,
    epochs: Annotated[int | None, typer.Option(min=1, help="Another number of epochs.")] = None,
) -> None:
    """Train on long-tailed digits with and without the matrix, a minute on a CPU, and write a report."""
    specs = recipes.get("demo").specs(seeds, epochs, None, default_precision("cpu"))
    try:
        reproduce_command("demo", seeds=seeds, epochs=epochs, runs=out / "runs", out=out, device="cpu")
    finally:
        finished = [run for spec in specs if (run := Run(out / "runs" / spec.name)).state == "finished"]
        if len(finished) == len(specs):
            verdict(specs, finished).show(app.console())


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    out: Annotated[Path, typer.Option(help="Folder of report.html, report.md and report.json.")] = Path("report"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    as_json: app.Json = False,
) -> None:
    """Write the report of finished runs: one HTML page that needs nothing else, Markdown and JSON."""
    page = write_report(runs, out, **({} if title is None else {"title": title}))
    answer = {"report": str(page)} | read_json(page.with_name("report.json"))
    typer.echo(json.dumps(answer) if as_json else str(page))


def show_search(event: Event) -> None:
    """Print a line for each run of a search, with its learning rate, on the error stream."""
    settings = f"learning rate {event.spec.learning_rate:g}, {plural(event.spec.epochs, 'epoch')}{event.note}"
    show_event(event, f"search, {settings}: ", err=True)


def show_event(event: Event, prefix: str = "", *, err: bool = False) -> None:
    """Print a line for each run that starts, ends or is left out."""
    run, seconds = f"[{event.index}/{event.total}]", format_seconds(event.seconds)
    lines = {
        "start": f"{run} {event.spec.title}  (about {seconds})",
        "finished": f"{run} done in {seconds}",
        "lost": f"{run} {event.message}; it is started again",
        "failed": f"{run} FAILED: {event.message}",
        "postponed": f"{run} left for next time (about {seconds}): {event.spec.title}",
        "elsewhere": f"{run} another process trains it: {event.spec.title}",
    }
    if event.kind in lines:
        typer.echo(prefix + lines[event.kind], err=err)


def warn_of_budget(planned: Sequence[PlannedRun], budget: float | None, jobs: int) -> None:
    """Say on the error stream if a budget, in seconds, ends before all runs, or before those of one seed."""
    times: dict[int, float] = {}
    for run in planned:
        times[run.spec.seed] = times.get(run.spec.seed, 0.0) + run.estimate.seconds / jobs
    shortest, total = min(times.values(), default=0.0), sum(times.values())
    if budget is not None and budget < total:
        what, needs = ("all runs", total) if shortest <= budget else ("one run of every method", shortest)
        start = f"maxsep: the budget of {format_seconds(budget)} is too short for {what}"
        typer.echo(f"{start}, about {format_seconds(needs)}; the same command continues", err=True)


def show_plan(planned: Sequence[PlannedRun], budget: float | None, jobs: int, as_json: bool) -> None:
    """Print runs with their state and estimated time, and the sum; warn of a budget that is too short."""
    warn_of_budget(planned, budget, jobs)
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
