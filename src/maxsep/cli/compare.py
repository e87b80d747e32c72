"""`maxsep compare DATA`: whether the matrix helps on your data, with intervals over seeds."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from maxsep.cli import app
from maxsep.cli.reproduce import show_event, show_plan
from maxsep.cli.train import check_spec, count_images, parse_settings
from maxsep.lab import grid
from maxsep.lab.data import Dataset, list_once, with_order
from maxsep.lab.engine.train import dry_run as try_run
from maxsep.lab.environment import default_precision
from maxsep.lab.grid import Summary, parse_budget
from maxsep.lab.recipes.compare import LOSSES, compare, usual_batch
from maxsep.lab.reference import Reference, load_reference
from maxsep.lab.report.own_data import check_data, verdict, write_page
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, Options, RunSpec
from maxsep.packages import load_package

Network = Annotated[
    str | None, typer.Option(help="mlp, resnet32, timm/NAME, ...; by default resnet32, for digits mlp.")
]
Loss = Annotated[list[str] | None, typer.Option(help=f"{', '.join(LOSSES)}; joined by commas.")]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="loss.NAME=VALUE", help="An option of ldam, such as loss.reweight_from=24."),
]
Augmentation = Annotated[
    str | None, typer.Option(help="none, crop_flip, ...; by default crop_flip, for digits and svhn none.")
]


def compare_command(
    dataset: Annotated[
        str, typer.Argument(metavar="DATA", help="A folder of class folders (PATH?size=64), digits, cifar10, ...")
    ] = "digits",
    network: Network = None,
    epochs: app.Epochs = 30,
    seeds: app.Seeds = 3,
    radius: Annotated[list[str] | None, typer.Option(help="Radii, joined by commas; by default 1,0.1.")] = None,
    loss: Loss = None,
    settings: Setting = None,
    imbalance: app.Imbalance = 1.0,
    augmentation: Augmentation = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="By default 16 to 128, by the images.")] = None,
    optimiser: app.Optimiser = "sgd",
    learning_rate: app.LearningRate = None,
    budget: app.Budget = None,
    jobs: app.Jobs = 1,
    dry_run: app.DryRun = False,
    data: app.Data = None,
    download: app.Download = False,
    runs: app.Runs = Path("runs"),
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("comparison"),
    device: app.Device = "auto",
    as_json: app.Json = False,
) -> None:
    """Train the linear head, its controls and maxsep on your data, and print what the matrix adds to its control."""
    limit, losses = None if budget is None else parse_budget(budget), app.split("--loss", loss, "cross_entropy", str)
    with list_once():
        name = Dataset.find(dataset, data).name
        images = count_images(RunSpec(dataset=name, imbalance=imbalance), data) or 1
        recipe = compare(
            name, network=network, epochs=epochs, seeds=seeds, imbalance=imbalance, losses=losses,
            radii=app.split("--radius", radius, "1,0.1", float) if radius else None, augmentation=augmentation,
            optimiser=optimiser, learning_rate=learning_rate, batch_size=batch_size or usual_batch(images),
            loss_options=_loss_options(settings or (), losses),
        )  # fmt: skip
        specs = with_order(recipe.specs(precision=default_precision(device)), data, download=download)
        check_spec(specs[-1])
        execution = Execution(device=device)
        if dry_run:
            show_plan(grid.plan(specs, runs=runs, execution=execution), as_json)
            return
        how: dict[str, Any] = {"runs": runs, "data_root": data, "download": download, "execution": execution}
        start = time.monotonic()
        _check(specs, **how)
        reference = load_reference(specs[0], runs, data, download=download)
        if limit is not None:  # reading the data counts
            limit = max(limit - (time.monotonic() - start), 1e-9)
        show: dict[str, Any] = {"progress": not as_json and jobs == 1, "on_event": None if as_json else show_event}
        summary = grid.run(specs, budget=limit, jobs=jobs, **show, **how)
    _show(specs, runs, reference, out, data, summary, as_json)
    raise typer.Exit(summary.status)


def _loss_options(settings: Sequence[str], losses: Sequence[str]) -> Options:
    fields = parse_settings(settings, RunSpec(loss="ldam" if "ldam" in losses else losses[0]))
    if set(fields) - {"loss_options"}:
        raise ValueError(f"--set takes loss.NAME=VALUE here, got {', '.join(settings)}.")
    return tuple(fields.get("loss_options", ()))


def _check(
    specs: Sequence[RunSpec], *, runs: Path, data_root: Path | None, download: bool, execution: Execution
) -> None:
    """Raise before anything is trained what would stop every run; also if the data changed since earlier runs."""
    finished = _finished(specs, runs)
    done = {run.name for run in finished}
    missing = {spec.loss: spec for spec in specs if spec.name not in done}
    if not missing:  # nothing is read, but the files of a folder are listed quickly
        dataset = Dataset.parse(specs[0].dataset)
        counts = dataset.train_counts(data_root) if dataset.is_own and specs[0].imbalance == 1 else None
        check_data(finished, counts or (), files=dataset.fingerprint(data_root))
        return
    for spec in missing.values():
        splits = try_run(spec, execution, data_root, download=download)
    check_data(finished, splits.train.class_counts, len(splits.test), splits.fingerprint)


def _finished(specs: Sequence[RunSpec], runs: Path) -> list[Run]:
    return [run for spec in specs if (run := Run(runs / spec.name)).state == "finished"]


def _show(
    specs: Sequence[RunSpec], runs: Path, reference: Reference, out: Path, data: Path | None, summary: Summary,
    as_json: bool,
) -> None:  # fmt: skip
    """Print the verdict and write the page of the finished runs."""
    page, answer = None, {"missing": [spec.name for spec in specs]}
    if finished := _finished(specs, runs):
        result = verdict(specs, finished, reference)
        page, answer = write_page(result, out, commands=[app.command_line()], data_root=data), result.to_dict()
        if not as_json:
            result.show(load_package("rich.console", "lab").Console())
    if as_json:
        failed = [spec.name for spec, _ in summary.failed]
        typer.echo(json.dumps(answer | {"failed": failed, "report": None if page is None else str(page)}))
    else:
        typer.echo(str(summary) if page is None else f"report: {page}")
    for spec, message in summary.failed:
        typer.echo(f"maxsep: {spec.title} failed: {message}", err=True)
