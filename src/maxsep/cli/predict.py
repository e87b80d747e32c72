"""`maxsep predict MODEL IMAGES` classifies images; `maxsep export RUN` writes a model that it can read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from maxsep.cli import app
from maxsep.cli.train import FEW_HELD
from maxsep.lab.export import export
from maxsep.lab.predict import Classifier, Prediction, Unreadable, classify, find_images, open_model
from maxsep.lab.report.statistics import plural
from maxsep.packages import printable


def predict_command(
    model: Annotated[Path, typer.Argument(help="A run folder, or a folder that maxsep export wrote.")],
    images: Annotated[list[str], typer.Argument(help="Image files, folders of them, or patterns.")],
    score: Annotated[str | None, typer.Option(help="max_logit (the default), max_softmax or energy.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Scores below it are unknown; by default the run's.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of classes to print.")] = 1,
    device: app.Device = "auto",
    as_json: app.Json = False,
) -> None:
    """Classify images: path, class, probability, score, and `unknown` if the score is below the threshold.

    Images that cannot be read are listed at the end, on the error stream; the exit code is 2 if none can be read.
    """
    classifier = open_model(model, device)
    score = classifier.score if score is None else score
    limit = classifier.threshold(score) if threshold is None else threshold
    files = find_images(images)
    predictions = classify(classifier, files.images, score=score, threshold=limit, top=top)
    if files.images:
        typer.echo(_explain(classifier, score, limit, from_run=threshold is None), err=True)
    if files.skipped:
        example = printable(str(files.skipped[0]))
        typer.echo(f"skipped {plural(len(files.skipped), 'file')} without an image suffix, such as {example}", err=True)
    unreadable = list(files.missing)

    def readable() -> Iterator[Prediction]:
        for prediction in predictions:
            if isinstance(prediction, Unreadable):
                unreadable.append(prediction)
            else:
                yield prediction

    if as_json:
        _print_json({"score": score, "threshold": limit}, readable(), files.skipped, unreadable)
    else:
        width = max((len(printable(str(path))) for path in files.images), default=0)
        label_width = max(len(printable(label)) for label in classifier.labels)
        for prediction in readable():
            typer.echo(_line(prediction, width, label_width))
    _show_unreadable(unreadable, len(files.images) + len(files.missing))


def export_command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier export in it is replaced.")],
    format: Annotated[str, typer.Option(help="safetensors or onnx.")] = "safetensors",
) -> None:
    """Export a run with its head folded into ordinary layers, for maxsep predict or, as ONNX, for other programs."""
    typer.echo(str(export(run, out, format)))


def _print_json(
    head: dict[str, Any], predictions: Iterable[Prediction], skipped: list[Path], unreadable: list[Unreadable]
) -> None:
    """Print one object as it comes, so that a million files need no more memory than one batch."""
    typer.echo(json.dumps(head).removesuffix("}") + ', "predictions": [', nl=False)
    for number, prediction in enumerate(predictions):
        typer.echo(", " * bool(number) + json.dumps(_as_dict(prediction)), nl=False)
    rest = {"skipped": list(map(str, skipped)), "unreadable": [asdict(item) for item in unreadable]}
    typer.echo("], " + json.dumps(rest).removeprefix("{"))


def _show_unreadable(unreadable: Sequence[Unreadable], total: int) -> None:
    """Print a line for each image that cannot be read, and their number; exit with 2 if these are all images."""
    for item in unreadable:
        typer.echo(f"maxsep: {printable(item.reason)}", err=True)
    if unreadable and total > 1:
        typer.echo(f"maxsep: {len(unreadable):,} of {total:,} images could not be read", err=True)
    if unreadable and len(unreadable) == total:
        raise typer.Exit(2)


def _explain(classifier: Classifier, score: str, limit: float | None, *, from_run: bool) -> str:
    if limit is None:
        return f"{classifier.source} has no threshold (train with --set calibration=0.1, or use --threshold)"
    if not from_run or classifier.unknown is None:
        return f"unknown: {score} below {limit:g}"
    kept, count = classifier.unknown["tpr"], classifier.unknown["images"]
    reached = f"set on {count}" if count < FEW_HELD else f"which {kept:.0%} reach of {count}"
    return f"unknown: {score} below {limit:.4f}, {reached} held-out training images"


def _line(prediction: Prediction, path_width: int, label_width: int) -> str:
    (label, probability), *others = prediction.top
    path, start = printable(str(prediction.path)), f"{printable(label):<{label_width}}  {probability:7.2%}"
    lines = [f"{path:<{path_width}}  {start}  {prediction.score:9.4f}" + "  unknown" * bool(prediction.unknown)]
    for other, chance in others:
        lines.append(f"{'':<{path_width}}  {printable(other):<{label_width}}  {chance:7.2%}")
    return "\n".join(lines)


def _as_dict(prediction: Prediction) -> dict[str, Any]:
    top = [{"class": label, "probability": probability} for label, probability in prediction.top]
    rest = {"score": prediction.score, "unknown": prediction.unknown, "top": top}
    return {"path": str(prediction.path), **top[0], **rest}
