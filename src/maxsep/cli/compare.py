"""`maxsep compare DATA`: whether the head helps on one's own data, and by how much more than chance."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maxsep.cli.jobs import arguments
from maxsep.cli.options import Data, Device, Download, Fast, Json, Runs, execution, numbers, precision, words
from maxsep.cli.run_spec import checked, loss_options
from maxsep.cli.show import events, plan_table

if TYPE_CHECKING:
    from maxsep.lab.grid import Summary
    from maxsep.lab.run import Run
    from maxsep.lab.spec import Execution, RunSpec

EPILOG = (
    "Examples: maxsep compare digits --epochs 5; "
    "maxsep compare my/pictures --network resnet32 --epochs 30 --seeds 3 --budget 30m --out comparison; "
    "maxsep compare my/pictures --loss cross_entropy,ldam --loss-option reweight_from=24."
)

Losses = Annotated[
    list[str] | None,
    typer.Option(
        help="cross_entropy, label_aware_smoothing, ldam (with the cosine heads that it needs), and one of "
        "logit_adjusted and balanced_softmax, which are the same function (tau is 1); with commas or repeated."
    ),
]
LdamOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="An option of ldam, such as reweight_from=24: rare classes weigh more from that epoch on, counted from 0; "
        "with commas or repeated.",
    ),
]
Network = Annotated[
    str | None,
    typer.Option(help="mlp, resnet32, timm/NAME, ...; by default resnet32; digits: mlp, ImageNet: resnet50."),
]
Augmentation = Annotated[
    str | None,
    typer.Option(help="none, crop_flip, ...; by default crop_flip; digits, svhn: none, ImageNet: resized_crop_flip."),
]
Size = Annotated[int | None, typer.Option(help="Side that pictures are cut to; by default 32, of ImageNet 224.")]


def command(
    context: typer.Context,
    dataset: Annotated[
        str, typer.Argument(metavar="DATA", help="A folder of class folders, or digits, cifar10, ..., imagenet.")
    ] = "digits",
    network: Network = None,
    epochs: Annotated[int, typer.Option(min=1)] = 30,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every arm; fewer than 3 cannot be tested.")] = 3,
    radius: Annotated[list[str] | None, typer.Option(help="Radii, with commas or repeated; by default 1,0.1.")] = None,
    loss: Losses = None,
    loss_option: LdamOption = None,
    imbalance: Annotated[float, typer.Option(help="Cuts a long tail; 1 leaves the data as it is.")] = 1.0,
    augmentation: Augmentation = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="By default 16 to 128, by the number of images.")
    ] = None,
    optimiser: Annotated[str, typer.Option(help="sgd or adamw.")] = "sgd",
    learning_rate: Annotated[float | None, typer.Option(help="By default 0.1 for sgd, 0.001 for adamw.")] = None,
    size: Size = None,
    budget: Annotated[str | None, typer.Option(help="Stop in time, such as 30m; the same command goes on.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs with an estimate of their time.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that share the runs.")] = 1,
    runs: Runs = Path("runs"),
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("comparison"),
    data: Data = None,
    download: Download = False,
    device: Device = "auto",
    fast: Fast = None,
    as_json: Json = False,
) -> None:
    """Train plain, its controls and maxsep on your data, and tell what the matrix adds to its control."""
    from maxsep.lab.data import Dataset, with_order
    from maxsep.lab.estimate import num_train, parse_budget
    from maxsep.lab.recipes.compare import compare, usual_batch
    from maxsep.lab.spec import RunSpec

    limit = None if budget is None else parse_budget(budget)
    losses = words("--loss", loss, "cross_entropy")
    name = Dataset.find(dataset, data, size).name
    recipe = compare(
        name, network=network, epochs=epochs, seeds=seeds, imbalance=imbalance,
        radii=numbers("--radius", radius, "1,0.1") if radius else None, losses=losses,
        loss_options=loss_options("ldam" if "ldam" in losses else losses[0], loss_option),
        augmentation=augmentation, optimiser=optimiser, learning_rate=learning_rate,
        batch_size=batch_size or usual_batch(num_train(RunSpec(dataset=name, imbalance=imbalance))),
    )  # fmt: skip
    specs = with_order(map(checked, recipe.specs(precision=precision(device))), data, download=download)
    how = execution(device, fast, {specs[0].network})
    settings = {"runs": runs, "data_root": data, "download": download, "execution": how}
    _compare(context, specs, settings, budget=limit, dry_run=dry_run, jobs=jobs, out=out, as_json=as_json)


def _compare(
    context: typer.Context, specs: list[RunSpec], settings: dict[str, Any], *, budget: float | None, dry_run: bool,
    jobs: int, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Train what is missing and tell what came of it; of processes that share the work, the first tells."""
    from maxsep.lab import grid

    runs = settings["runs"]
    planned = grid.plan(specs, runs=runs, execution=settings["execution"])
    if dry_run:
        plan_table(planned, as_json)
        return
    left, start = [run.spec for run in planned if run.state != "finished"], time.monotonic()
    _rehearse(left, specs, **settings)
    if budget is not None:  # reading the pictures takes time, too
        budget = max(budget - (time.monotonic() - start), 1e-9)
    show: dict[str, Any] = {} if as_json else {"on_event": events()}
    summary = grid.run(specs, budget=budget, jobs=jobs, progress=not as_json, **show, **settings)
    line = shlex.join(["maxsep", "compare", *arguments(context, ("as_json", "jobs", "budget"), typed=True)])
    _tell(specs, runs, out, summary, line, as_json, settings["data_root"])
    raise typer.Exit(summary.status)


def _rehearse(
    left: Sequence[RunSpec], specs: Sequence[RunSpec], *, runs: Path, execution: Execution, data_root: Path | None,
    download: bool,
) -> None:  # fmt: skip
    """Meet once, before anything is trained, what would stop every run alike."""
    from maxsep.lab.data import Dataset
    from maxsep.lab.engine.losses import build_loss
    from maxsep.lab.engine.train import dry_run
    from maxsep.lab.report.own_data import check_data

    records = _finished(specs, runs)
    if left:
        data = dry_run(left[0], execution, data_root, download=download)
        for spec in {spec.loss: spec for spec in left}.values():  # the data are the same for all of them
            build_loss(spec, data.train.class_counts)
        check_data(records, data.train.class_counts, len(data.test), data.fingerprint)
    else:  # nothing to train, so nothing is read; but files are quickly counted
        dataset = Dataset.parse(specs[0].dataset)
        counts = dataset.train_counts(data_root) if dataset.is_own and specs[0].imbalance == 1 else None
        check_data(records, counts or (), files=dataset.fingerprint(data_root))


def _finished(specs: Sequence[RunSpec], runs: Path) -> list[Run]:
    """Read the runs of this comparison, and of the folder's others none."""
    from maxsep.lab.run import Run

    return [run for spec in specs if (run := Run(runs / spec.name)).state == "finished"]


def _tell(
    specs: Sequence[RunSpec], runs: Path, out: Path, summary: Summary, line: str, as_json: bool, data: Path | None
) -> None:
    """Print the verdict, or the same as JSON, and write the page of whatever is finished."""
    from rich.console import Console

    from maxsep.lab.report.own_data import verdict, write_page

    finished, failed = _finished(specs, runs), [spec.name for spec, _ in summary.failed]
    if finished:
        found = verdict(specs, finished)
        page = write_page(found, out, commands=[line], data_root=data)
        if as_json:
            typer.echo(json.dumps(found.to_dict() | {"failed": failed, "report": str(page)}))
        else:
            found.show(Console())
            typer.echo(f"report: {page}")
    elif as_json:
        typer.echo(json.dumps({"missing": [spec.name for spec in specs], "failed": failed, "report": None}))
    for spec, message in summary.failed:
        typer.echo(f"failed: {spec.title}: {message}", err=True)
