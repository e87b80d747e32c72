"""`maxsep compare DATA`: whether the matrix helps on your data, with intervals over seeds."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from maxsep.cli import app
from maxsep.cli.reproduce import show_event, show_plan, show_search, warn_of_budget
from maxsep.cli.train import check_spec, count_images, parse_settings
from maxsep.lab import grid
from maxsep.lab.cluster import trains_on_gpu
from maxsep.lab.data import Dataset, list_once, with_order
from maxsep.lab.engine.train import dry_run as try_run
from maxsep.lab.environment import default_precision
from maxsep.lab.grid import PlannedRun, Summary, format_seconds, parse_budget
from maxsep.lab.recipes.compare import LOSSES, compare, usual_batch
from maxsep.lab.recipes.fine_tuning import fine_tuning
from maxsep.lab.reference import load_reference
from maxsep.lab.report.own_data import verdict, write_page
from maxsep.lab.report.runs import check_data
from maxsep.lab.run import Run
from maxsep.lab.search import FOLDER, SHARE, Choice, Search, candidates_of, choose_radius, search
from maxsep.lab.spec import Execution, Options, RunSpec

DatasetName = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A folder of class folders or a table (PATH?size=64), hf:PATH_OR_NAME, digits, cifar10, ...",
    ),
]
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
    dataset: DatasetName = "digits",
    network: Network = None,
    weights: app.Weights = None,
    image_size: app.ImageSize = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="By default 30; for pretrained weights 10.")] = None,
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
    on: app.On = None,
    gpus: app.Gpus = 1.0,
    dry_run: app.DryRun = False,
    skip_broken: app.SkipBroken = False,
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
        data_source = Dataset.find(dataset, data, skip_broken=skip_broken, download=download)
        start = fine_tuning(data_source, network or data_source.default_network, weights, image_size)
        is_small = data_source.is_own or data_source.source == "digits" or bool(start.get("weights"))
        count = count_images(RunSpec(dataset=data_source.name, imbalance=imbalance), data)
        fields: dict[str, Any] = {
            "start": start, "epochs": epochs, "seeds": seeds, "imbalance": imbalance, "losses": losses,
            "optimiser": optimiser or ("adamw" if is_small else "sgd"), "learning_rate": learning_rate,
            "augmentation": augmentation, "batch_size": batch_size or usual_batch(count),
            "loss_options": _loss_options(settings or (), losses),
        }  # fmt: skip
        precision = default_precision(device, trains_on_gpu(on, device))
        list_runs = partial(_list_runs, data_source.name, fields, precision, data, download)
        specs = list_runs(app.split("--radius", radius, "1,0.1", float) if radius and radius != ["auto"] else None)
        check_spec(specs[-1])
        where, execution = {"jobs": jobs, "on": on, "gpus": gpus}, Execution(device=device, weights=weights)
        work = _Work(runs, data, download, execution, where, limit, as_json)
        if dry_run:
            show_plan(work.plan(specs, is_small and learning_rate is None), limit, jobs, as_json)
            return
        work.check(specs)
        done = Search(specs)
        if radius == ["auto"]:
            chosen, done = choose_radius(_matrix(specs), rates=[learning_rate] if learning_rate else (), **work.search)
            specs = specs if chosen is None else list_runs([chosen])
            done = Search(specs if done.specs else [], done.choices, done.summary)
        if done.specs and is_small and learning_rate is None:
            done = work.choose(specs)
        summary = work.train(done.specs) if done.specs else done.summary
        raise typer.Exit(_show(done.specs or specs, done.choices, work, out, summary))


def _list_runs(
    name: str, fields: dict[str, Any], precision: str, data: Path | None, download: bool, radii: Sequence[float] | None
) -> list[RunSpec]:
    return with_order(compare(name, radii=radii, **fields).specs(precision=precision), data, download=download)


@dataclass
class _Work:
    """Where and how the runs of a comparison are computed."""

    runs: Path
    data: Path | None
    download: bool
    execution: Execution
    where: dict[str, Any]
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
        return arguments | {"execution": self.execution} | self.where

    @property
    def local(self) -> Execution:
        """How this machine computes: it may have no GPU where the cluster has."""
        return replace(self.execution, device="auto") if self.where["on"] else self.execution

    @property
    def how(self) -> dict[str, Any]:
        """The arguments of `grid.plan`."""
        return {"execution": self.execution, "on_gpu": trains_on_gpu(self.where["on"], self.execution.device)}

    @property
    def search(self) -> dict[str, Any]:
        """The arguments of `search`, which says what it does."""
        return self.limits | {"on_event": None if self.as_json else show_search}

    def choose(self, specs: Sequence[RunSpec]) -> Search:
        """Search learning rates, or say how much of the budget that would need."""
        done = search(specs, **self.search)
        self.say_if_left_out(done)
        return done

    def say_if_left_out(self, done: Search) -> bool:
        """Return whether the budget has no room for a search; say how much it would need."""
        left = self.limits["budget"]
        is_left_out: bool = left is not None and done.seconds > SHARE * left
        if is_left_out and done.seconds < math.inf and not self.as_json:
            times = f"about {format_seconds(done.seconds)} of the budget of {format_seconds(self.budget or 0)}"
            enough = f"--budget {math.ceil(done.seconds / SHARE / 60) + 1}m includes it"
            typer.echo(f"maxsep: no search for learning rates: it would need {times} ({enough})", err=True)
        return is_left_out

    def plan(self, specs: Sequence[RunSpec], searches: bool) -> list[PlannedRun]:
        """List the runs; those of the search that precedes them too, unless it is complete."""
        before: list[PlannedRun] = []
        if searches:
            known = search(specs, **self.limits | {"budget": 1e-9})
            specs = known.specs or specs
            is_done = bool(known.specs) and all(choice.trials for choice in known.choices)
            if not (is_done or self.say_if_left_out(known)):
                before = grid.plan(candidates_of(specs, self.data), runs=self.runs / FOLDER, **self.how)
        return before + grid.plan(specs, runs=self.runs, **self.how)

    def train(self, specs: Sequence[RunSpec]) -> Summary:
        """Train the runs, unless the images have changed since some of them were trained."""
        self.check(specs)
        warn_of_budget(grid.plan(specs, runs=self.runs, **self.how), self.budget, self.where["jobs"])
        progress, on_event = not self.as_json and self.where["jobs"] == 1, None if self.as_json else show_event
        return grid.run(specs, progress=progress, on_event=on_event, **self.limits)

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
            splits = try_run(spec, self.local, self.data, download=self.download)
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


def _show(specs: Sequence[RunSpec], choices: Sequence[Choice], work: _Work, out: Path, summary: Summary) -> int:
    """Print the verdict, write the page of the finished runs, and return the exit status."""
    page, answer = None, {"missing": [spec.name for spec in specs]}
    if finished := _finished(specs, work.runs):
        reference = load_reference(specs[0], work.runs, work.data, download=work.download, execution=work.local)
        counts = Dataset.parse(specs[0].dataset).test_counts(work.data)
        result = verdict(specs, finished, reference, choices, counts)
        page, answer = write_page(result, out, data_root=work.data), result.to_dict()
        if not work.as_json:
            result.show(app.console())
    if work.as_json:
        failed = [spec.name for spec, _ in summary.failed]
        typer.echo(json.dumps(answer | {"failed": failed, "report": None if page is None else str(page)}))
    else:
        typer.echo(str(summary) if page is None else f"report: {page}")
    for spec, message in summary.failed:
        typer.echo(f"maxsep: {spec.title} failed: {message}", err=True)
    return summary.status
