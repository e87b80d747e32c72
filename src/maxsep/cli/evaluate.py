"""`maxsep evaluate RUN`: compute a run's numbers again from its weights, and test it on outliers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from maxsep.analysis import accuracy_by_shot
from maxsep.cli.app import Data, Device, Download, Json, show_table
from maxsep.lab.data import Dataset, check_outliers, fingerprints_differ, name_outliers
from maxsep.lab.engine import evaluate
from maxsep.lab.engine.evaluate import known_ece, with_rejected
from maxsep.lab.environment import pick_device
from maxsep.lab.ood import OODProtocol, detect, read_outliers
from maxsep.lab.run import Run

_SCORES = {
    "max_softmax": "max softmax",
    "max_logit": "max logit",
    "energy": "energy",
    "max_logit_centred": "max logit, centred",
    "energy_centred": "energy, centred",
    "mahalanobis": "Mahalanobis",
}
_NAMED = 3
"""Unreadable files that are named; --json names all."""


def evaluate_command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    dataset: Annotated[str | None, typer.Option(help="The run's dataset, if its folder has moved.")] = None,
    ood: Annotated[
        list[str] | None, typer.Option(help="Outliers: a folder of images, svhn, places, cifar10, ...; repeatable.")
    ] = None,
    mahalanobis: Annotated[bool, typer.Option(help="Score outliers by Mahalanobis distance too.")] = True,
    data: Data = None,
    download: Download = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Evaluate a run's weights: accuracy, loss, calibration error, accuracy per class; with --ood also outliers."""
    result = Run(run)
    name = result.spec.dataset if dataset is None else dataset
    outliers = tuple(name_outliers(item, data) for item in ood or [])
    for item in outliers:
        check_outliers(item, result.spec.dataset)
    if download:
        for item in (name, *(item for item in outliers if item in ("svhn", "cifar10", "cifar100"))):
            Dataset.find(item, data).read(data, download=True)
    for item in outliers:  # before anything is computed
        read_outliers(item, data, result.spec.dataset, result.preprocessing["shape"])
    metrics = _evaluate(result, dataset, data, device)
    if not as_json:  # before outliers, which may take long
        _show(metrics, result)
    record = None
    if outliers:
        protocol = OODProtocol(outliers=outliers, mahalanobis=mahalanobis, magnitudes=(0.0,), repeats=0)
        progress = (lambda message: None) if as_json else (lambda message: typer.echo(f"maxsep: {message}", err=True))
        record = detect(run, protocol, dataset=dataset, data_root=data, device=device, progress=progress)
        if as_json:
            metrics |= {"detection": record}
        else:
            _show_detection(record)
        _report_unreadable(record["sets"])
    if as_json:
        typer.echo(json.dumps(metrics))


def _evaluate(run: Run, dataset: str | None, data: Path | None, device: str) -> dict[str, Any]:
    """Compute the metrics from the weights; without weights return the stored ones."""
    if not run.has_weights:
        typer.echo(f"maxsep: {run.folder} was kept without its weights: these are its stored numbers.", err=True)
        unknown = with_rejected(run.unknown, None)
        return {**run.metrics, "ece": known_ece(run.spec, run.metrics), "unknown": unknown}
    metrics = evaluate(run.folder, data, device=str(pick_device(device)), dataset=dataset)
    name = dataset or run.spec.dataset
    used = Dataset.find(name, data)
    changed = fingerprints_differ(run.metrics.get("files"), used.fingerprint(data))
    if changed and (run.spec.validation or used.draws_test(data)):
        typer.echo(
            f"maxsep: warning: the images of {name} have changed since {run.folder} was trained, and the test images "
            "are split off anew: some of them may be training images of this run.",
            err=True,
        )
    return metrics


def _show(metrics: dict[str, Any], run: Run) -> None:
    names, counts = run.preprocessing["classes"], run.metrics["class_counts"]
    typer.echo(run.spec.name)
    top5 = f"top-5 {metrics['top5']:.2%}   " if len(names) > 5 else ""
    typer.echo(f"top-1 {metrics['top1']:.2%}   {top5}mean over classes {metrics['balanced']:.2%}")
    if max(counts) > 1.5 * min(counts):
        accuracies = [float("nan") if accuracy is None else accuracy for accuracy in metrics["per_class"]]
        groups = accuracy_by_shot(accuracies, counts)
        shots = {"many": "more than 100 images", "medium": "20 to 100", "few": "fewer than 20"}
        shown = [f"{name} ({shots[name]}) {groups[name]:.2%}" for name in shots if groups[name] is not None]
        typer.echo("   ".join(shown))
    ece = "not recorded" if metrics["ece"] is None else f"{metrics['ece']:.2%}"
    typer.echo(f"loss {metrics['loss']:.4f}   calibration error {ece}")
    if (unknown := metrics["unknown"]) is not None:
        score, rejected = unknown["score"], unknown["rejected"]
        share = "a share that was not recorded" if rejected is None else f"{rejected[score]:.2%}"
        threshold = unknown["thresholds"][score]
        typer.echo(f"unknown: {score} below {threshold:.4f}, which rejects {share} of the test images")
    cells = ["no test images" if value is None else f"{value:.2%}" for value in metrics["per_class"]]
    show_table(["class", "accuracy", "training images"], zip(names, cells, map(str, counts), strict=True))


def _show_detection(record: dict[str, Any]) -> None:
    for name, measured in record["sets"].items():
        typer.echo(f"\noutliers: {measured['origin']} ({name}, {measured['count']} images)")
        rows = []
        for score, label in _SCORES.items():
            if score in measured["scores"]:
                full = measured["scores"][score]["full"]
                rows.append([label, *(f"{full[metric]:.2%}" for metric in ("auroc", "aupr", "fpr95"))])
        show_table(["score", "AUROC", "AUPR", "FPR95"], rows)
    typer.echo("In-distribution images are positive. AUPR depends on the number of outliers; here all of them count.")


def _report_unreadable(sets: dict[str, Any]) -> None:
    for name, measured in sets.items():
        unreadable = measured["unreadable"]
        if unreadable:
            typer.echo(f"maxsep: {len(unreadable)} files of {name} cannot be read and were left out:", err=True)
        for item in unreadable[:_NAMED]:
            typer.echo(f"maxsep: {item['reason']}", err=True)
