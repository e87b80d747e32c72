"""`maxsep reproduce NAME`: one table or figure of the paper, run by run, within a time budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maxsep.cli.options import Data, Device, Download, Fast, Json, Runs, execution
from maxsep.cli.options import precision as default_precision
from maxsep.cli.show import events, plan_table

if TYPE_CHECKING:
    from maxsep.lab.grid import Summary

EPILOG = (
    "Example: maxsep reproduce table1 --data data --only imbalance=0.01,dataset=cifar10 --seeds 3 --budget 25m. "
    "Names: table1, errorbars, fixed, frequency, fisher, prototypes, longtail, beyond_search, beyond, imagenet, ood, "
    "openset, features2d, demo."
)


def command(
    name: Annotated[
        str, typer.Argument(help="Which table or figure: table1, longtail, beyond, ood, ...; all are named below.")
    ],
    data: Data = None,
    download: Download = False,
    runs: Runs = Path("runs"),
    only: Annotated[
        str | None, typer.Option(help="Keep some runs: field=value, or a part of the name; commas join.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; by default the recipe's own.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Another number of epochs than the paper's.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Stop cleanly in time, such as 25m; the same command goes on.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="32-true, bf16-mixed, 16-mixed (GPU), ...; by default bf16-mixed on a GPU."),
    ] = None,
    max_train: Annotated[int | None, typer.Option(min=1, help="At most so many training images: a smoke run.")] = None,
    max_test: Annotated[int | None, typer.Option(min=1, help="At most so many test images.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs with an estimate of their time.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the report; by default RUNS/report.")] = None,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write the report at the end.")] = True,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that share the runs: small networks fill no GPU.")] = 1,
    device: Device = "auto",
    fast: Fast = None,
    as_json: Json = False,
) -> None:
    """Reproduce a table or figure: train what is missing, then write the report."""
    from maxsep.lab import grid, recipes
    from maxsep.lab.data import with_order
    from maxsep.lab.engine.train import check_precision
    from maxsep.lab.estimate import parse_budget
    from maxsep.lab.report import write_report

    recipe = recipes.get(name)
    numbers = precision or default_precision(device)
    check_precision(numbers)
    limit = None if budget is None else parse_budget(budget)
    specs = with_order(recipe.specs(seeds, epochs, only, numbers, max_train, max_test), data, download=download)
    how = execution(device, fast, {spec.network for spec in specs})
    if dry_run:
        plan_table(grid.plan(specs, runs=runs, execution=how), as_json)
        return
    grid.check_data(specs, after=recipe.after, runs=runs, data_root=data, download=download)
    show: dict[str, Any] = {} if as_json else {"on_event": events()}
    summary = grid.reproduce(
        recipe, seeds=seeds, epochs=epochs, only=only, precision=numbers, max_train=max_train, max_test=max_test,
        runs=runs, budget=limit, data_root=data, download=download, execution=how, jobs=jobs,
        progress=not as_json, **show,
    )  # fmt: skip
    page = write_report(runs, out or runs / "report") if report and (summary.finished or summary.skipped) else None
    _tell(summary, page, as_json)
    raise typer.Exit(summary.status)


def _tell(summary: Summary, page: Path | None, as_json: bool) -> None:
    """Say what became of the runs, and where the report lies."""
    if as_json:
        told: dict[str, Any] = {
            "finished": [spec.name for spec in summary.finished],
            "skipped": [spec.name for spec in summary.skipped],
            "failed": [spec.name for spec, _ in summary.failed],
            "postponed": [spec.name for spec in summary.postponed],
            "elsewhere": [spec.name for spec in summary.elsewhere],
            "notes": summary.notes,
        }
        typer.echo(json.dumps(told | {"seconds": summary.seconds, "report": None if page is None else str(page)}))
        return
    typer.echo(str(summary))
    for spec, message in summary.failed:
        typer.echo(f"failed: {spec.title}: {message}", err=True)
    if page is not None:
        typer.echo(f"report: {page}")
