"""`maxsep evaluate RUN`: compute a run's numbers again from its weights, and test it on outliers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from maxsep.analysis import accuracy_by_shot
from maxsep.cli import app
from maxsep.lab.data import Dataset, check_outliers, fingerprints_differ, name_outliers
from maxsep.lab.engine import evaluate
from maxsep.lab.engine.evaluate import known_ece, with_rejected
from maxsep.lab.environment import pick_device
from maxsep.lab.ood import OODProtocol, detect, read_outliers
from maxsep.lab.run import Run
from maxsep.packages import printable

Outliers = Annotated[
    list[str] | None, typer.Option(help="Outliers: a folder of images, svhn, places, cifar10, ...; repeatable.")
]


def evaluate_command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    dataset: Annotated[str | None, typer.Option(help="The run's dataset, if its folder has moved.")] = None,
    ood: Outliers = None,
    mahalanobis: Annotated[bool, typer.Option(help="Score outliers by Mahalanobis distance too.")] = True,
    data: app.Data = None,
    download: app.Download = False,
    device: app.Device = "auto",
    as_json: app.Json = False,
) -> None:
    """Evaluate a run's weights: accuracy, loss, calibration error, accuracy per class; with --ood also outliers."""
    result = Run(run)
    trained_on = result.spec.dataset
    outliers = tuple(name_outliers(item, data) for item in ood or [])
    for item in outliers:
        check_outliers(item, trained_on)
    if download:
        for item in (dataset or trained_on, *{"svhn", "cifar10", "cifar100"} & {*outliers}):
            Dataset.find(item, data, download=True).read(data, download=True)
    for item in outliers:  # before anything is computed
        read_outliers(item, data, trained_on, tuple(result.preprocessing["shape"]))
    metrics = _evaluate(result, dataset, data, device)
    if not as_json:  # before outliers, which may take long
        _show(metrics, result)
    if outliers:
        protocol = OODProtocol(outliers=outliers, mahalanobis=mahalanobis, magnitudes=(0.0,), repeats=0)
        how: dict[str, Any] = {"dataset": dataset, "data_root": data, "device": device}
        if not as_json:
            how["progress"] = lambda message: typer.echo(f"maxsep: {printable(message)}", err=True)
        metrics["detection"] = detect(run, protocol, **how)
        _show_outliers(metrics["detection"]["sets"], as_json)
    if as_json:
        typer.echo(json.dumps(metrics))


def _evaluate(run: Run, dataset: str | None, data: Path | None, device: str) -> dict[str, Any]:
    """Compute the metrics from the weights; without weights return the stored ones."""
    if not run.has_weights:
        typer.echo(f"maxsep: {run.folder} was kept without its weights: these are its stored numbers.", err=True)
        return run.metrics | {"ece": known_ece(run.spec, run.metrics), "unknown": with_rejected(run.unknown, None)}
    metrics = evaluate(run.folder, data, device=str(pick_device(device)), dataset=dataset)
    data_source = Dataset.find(dataset or run.spec.dataset, data)
    changed = fingerprints_differ(run.metrics.get("files"), data_source.fingerprint(data))
    if changed and (run.spec.validation or data_source.draws_test(data)):
        problem = "the new test split may contain training images of this run"
        typer.echo(f"maxsep: warning: the images of {data_source.name} have changed: {problem}", err=True)
    return metrics


def _show(metrics: dict[str, Any], run: Run) -> None:
    names, counts = run.preprocessing["classes"], run.metrics["class_counts"]
    typer.echo(run.spec.name)
    top5 = f"top-5 {metrics['top5']:.2%}   " if len(names) > 5 else ""
    typer.echo(f"top-1 {metrics['top1']:.2%}   {top5}mean over classes {metrics['balanced']:.2%}")
    if max(counts) > 1.5 * min(counts):
        accuracies = [float("nan") if accuracy is None else accuracy for accuracy in metrics["per_class"]]
        groups = accuracy_by_shot(accuracies, counts)
        limits = {"many": "> 100", "medium": "20 to 100", "few": "< 20"}
        texts = [f"{name} ({limits[name]} images) {groups[name]:.2%}" for name in limits if groups[name] is not None]
        typer.echo("   ".join(texts))
    ece = "not recorded" if metrics["ece"] is None else f"{metrics['ece']:.2%}"
    typer.echo(f"loss {metrics['loss']:.4f}   calibration error {ece}")
    if (unknown := metrics["unknown"]) is not None:
        score, rejected = unknown["score"], unknown["rejected"]
        share = "" if rejected is None else f", which rejects {rejected[score]:.2%} of the test images"
        typer.echo(f"unknown: {score} below {unknown['thresholds'][score]:.4f}{share}")
    cells = ["no test images" if value is None else f"{value:.2%}" for value in metrics["per_class"]]
    app.show_table(["class", "accuracy", "training images"], zip(names, cells, map(str, counts), strict=True))


def _show_outliers(sets: dict[str, Any], as_json: bool) -> None:
    for name, measured in sets.items():
        if not as_json:
            typer.echo(f"\noutliers: {printable(measured['origin'])} ({printable(name)}, {measured['count']} images)")
            metrics = {score: row["full"] for score, row in measured["scores"].items() if not score.endswith("no_step")}
            rows = [[s, *(f"{row[key]:.2%}" for key in ("auroc", "aupr", "fpr95"))] for s, row in metrics.items()]
            app.show_table(["score", "AUROC", "AUPR", "FPR95"], rows)
        for item in measured["unreadable"][:3]:
            typer.echo(f"maxsep: {printable(item['reason'])}", err=True)
        if len(measured["unreadable"]) > 3:
            typer.echo(f"maxsep: {len(measured['unreadable'])} files of {printable(name)} could not be read", err=True)
    if not as_json:
        typer.echo("In-distribution images are positive. AUPR depends on the number of outliers; all of them count.")
