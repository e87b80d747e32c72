"""`maxsep compare DATA`: whether the matrix helps on your data, with intervals over seeds."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
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
from maxsep.lab.grid import PlannedRun, Summary, parse_budget
from maxsep.lab.recipes.compare import LOSSES, compare, usual_batch
from maxsep.lab.reference import Reference, load_reference
from maxsep.lab.report.own_data import check_data, verdict, write_page
from maxsep.lab.run import Run
from maxsep.lab.search import FOLDER, Choice, Search, candidates_of, choose_radius, search
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
    radius: Annotated[list[str] | None, typer.Option(help="Radii joined by commas, or auto; by default 1,0.1.")] = None,
    loss: Loss = None,
    settings: Setting = None,
    imbalance: app.Imbalance = 1.0,
    augmentation: Augmentation = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="By default 16 to 128, by the images.")] = None,
    optimiser: app.Optimiser = None,
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
        found = Dataset.find(dataset, data)
        is_small = found.is_own or found.source == "digits"
        images = count_images(RunSpec(dataset=found.name, imbalance=imbalance), data) or 1
        fields: dict[str, Any] = {
            "network": network, "epochs": epochs, "seeds": seeds, "imbalance": imbalance, "losses": losses,
            "augmentation": augmentation, "optimiser": optimiser or ("adamw" if is_small else "sgd"),
            "learning_rate": learning_rate, "batch_size": batch_size or usual_batch(images),
            "loss_options": _loss_options(settings or (), losses),
        }  # fmt: skip

        def list_runs(radii: Sequence[float] | None) -> list[RunSpec]:
            recipe = compare(found.name, radii=radii, **fields)
            return with_order(recipe.specs(precision=default_precision(device)), data, download=download)

        specs = list_runs(app.split("--radius", radius, "1,0.1", float) if radius and radius != ["auto"] else None)
        check_spec(specs[-1])
        work = _Work(runs, data, download, Execution(device=device), jobs, limit, as_json)
        if dry_run:
            show_plan(work.plan(specs, is_small and learning_rate is None), as_json)
            return
        work.check(specs)
        reference = load_reference(specs[0], runs, data, download=download)
        done = Search(specs)
        if radius == ["auto"]:
            chosen, done = choose_radius(_matrix(specs), rates=[learning_rate] if learning_rate else (), **work.limits)
            specs = specs if chosen is None else list_runs([chosen])
            done = Search(specs if done.specs else [], done.choices, done.summary)
        if done.specs and is_small and learning_rate is None:
            done = search(specs, **work.limits)
        summary = work.train(done.specs) if done.specs else done.summary
    _show(done.specs or specs, done.choices, reference, work, out, summary)
    raise typer.Exit(summary.status)


@dataclass
class _Work:
    """Where and how the runs of a comparison are computed."""

    runs: Path
    data: Path | None
    download: bool
    execution: Execution
    jobs: int
    budget: float | None
    as_json: bool

    def __post_init__(self) -> None:
        """Start the clock: reading the data counts."""
        self.start = time.monotonic()

    @property
    def limits(self) -> dict[str, Any]:
        """The arguments of `grid.run`."""
        left = None if self.budget is None else max(self.budget - (time.monotonic() - self.start), 1e-9)
        arguments = {"runs": self.runs, "data_root": self.data, "download": self.download, "budget": left}
        return arguments | {"execution": self.execution, "jobs": self.jobs}

    def plan(self, specs: Sequence[RunSpec], searches: bool) -> list[PlannedRun]:
        """List the runs; those of the search that precedes them too, unless it is complete."""
        before: list[PlannedRun] = []
        if searches:
            known = search(specs, **self.limits | {"budget": 1e-9})
            specs = known.specs or specs
            if not known.specs or not all(choice.trials for choice in known.choices):
                before = grid.plan(candidates_of(specs), runs=self.runs / FOLDER, execution=self.execution)
        return before + grid.plan(specs, runs=self.runs, execution=self.execution)

    def train(self, specs: Sequence[RunSpec]) -> Summary:
        """Train the runs, unless the images have changed since some of them were trained."""
        self.check(specs)
        show: dict[str, Any] = {
            "progress": not self.as_json and self.jobs == 1,
            "on_event": None if self.as_json else show_event,
        }
        return grid.run(specs, **show, **self.limits)

    def check(self, specs: Sequence[RunSpec]) -> None:
        """Raise before anything is trained what would stop every run; also if the data changed since earlier runs."""
        finished = _finished(specs, self.runs)
        done = {run.name for run in finished}
        missing = {spec.loss: spec for spec in specs if spec.name not in done}
        if not missing:  # nothing is read, but the files of a folder are listed quickly
            dataset = Dataset.parse(specs[0].dataset)
            counts = dataset.train_counts(self.data) if dataset.is_own and specs[0].imbalance == 1 else None
            check_data(finished, counts or (), files=dataset.fingerprint(self.data))
            return
        for spec in missing.values():
            splits = try_run(spec, self.execution, self.data, download=self.download)
        check_data(finished, splits.train.class_counts, len(splits.test), splits.fingerprint)


def _matrix(specs: Sequence[RunSpec]) -> RunSpec:
    """The first run of the matrix, whose radius is chosen."""
    return next((spec for spec in specs if spec.head == "maxsep"), specs[0])


def _loss_options(settings: Sequence[str], losses: Sequence[str]) -> Options:
    fields = parse_settings(settings, RunSpec(loss="ldam" if "ldam" in losses else losses[0]))
    if set(fields) - {"loss_options"}:
        raise ValueError(f"--set takes loss.NAME=VALUE here, got {', '.join(settings)}.")
    return tuple(fields.get("loss_options", ()))


def _finished(specs: Sequence[RunSpec], runs: Path) -> list[Run]:
    return [run for spec in specs if (run := Run(runs / spec.name)).state == "finished"]


def _show(
    specs: Sequence[RunSpec], choices: Sequence[Choice], reference: Reference, work: _Work, out: Path, summary: Summary
) -> None:
    """Print the verdict and write the page of the finished runs."""
    page, answer = None, {"missing": [spec.name for spec in specs]}
    if finished := _finished(specs, work.runs):
        result = verdict(specs, finished, reference, choices)
        page, answer = write_page(result, out, commands=[app.command_line()], data_root=work.data), result.to_dict()
        if not work.as_json:
            result.show(load_package("rich.console", "lab").Console())
    if work.as_json:
        failed = [spec.name for spec, _ in summary.failed]
        typer.echo(json.dumps(answer | {"failed": failed, "report": None if page is None else str(page)}))
    else:
        typer.echo(str(summary) if page is None else f"report: {page}")
    for spec, message in summary.failed:
        typer.echo(f"maxsep: {spec.title} failed: {message}", err=True)
