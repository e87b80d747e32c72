"""`maxsep predict RUN IMAGES`: the class of each image, or "unknown"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maxsep.cli.options import Device, Json

if TYPE_CHECKING:
    from maxsep.lab.serving import Classifier, Prediction

EPILOG = "Example: maxsep predict runs/digits-mlp-maxsep-s0-3f2a90c1bd photos more/*.png --top 3"


def command(
    model: Annotated[Path, typer.Argument(help="A run folder, or a folder that maxsep export wrote.")],
    images: Annotated[list[str], typer.Argument(help="Image files, folders of them, or patterns.")],
    score: Annotated[
        str | None, typer.Option(help="max_logit, max_softmax or energy; by default the run's: max_logit.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Scores below it are unknown; by default the run's own threshold.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to name.")] = 1,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Classify images: path, class, probability, score, and `unknown` where the score is below the threshold."""
    from maxsep.lab.serving import Prediction, find_images, open_classifier, predictions

    classifier = open_classifier(model, device)
    score = classifier.score if score is None else score
    limit = classifier.threshold(score) if threshold is None else threshold
    paths, missing, skipped = find_images(images)
    answers = predictions(classifier, paths, score=score, threshold=limit, top=top)
    typer.echo(_explain(classifier, score, limit, given=threshold is not None), err=True)
    if skipped:
        typer.echo(_passed_over(skipped), err=True)
    width = max((len(str(path)) for path in paths), default=0)
    told: list[dict[str, Any]] = []
    for answer in answers:
        if not isinstance(answer, Prediction):
            missing.append(answer)
        elif as_json:
            told.append(_as_dict(answer))
        else:
            typer.echo(_line(answer, width, max(map(len, classifier.labels))))
    if as_json:
        problems = [{"path": item.path, "reason": item.reason} for item in missing]
        found = {"score": score, "threshold": limit, "predictions": told, "unreadable": problems}
        typer.echo(json.dumps(found | {"skipped": [str(path) for path in skipped]}))
    for item in missing:
        typer.echo(f"maxsep: {item.reason}", err=True)
    if missing:
        raise typer.Exit(2)


def _explain(classifier: Classifier, score: str, limit: float | None, *, given: bool) -> str:
    if limit is None:
        return (
            f"{classifier.source} has no threshold, because no data was held out for one: nothing is called unknown. "
            "--threshold gives one; maxsep train --calibration 0.1 sets one."
        )
    if given or classifier.unknown is None:
        return f"unknown: {score} below {limit:g}, as given"
    kept, count = classifier.unknown["tpr"], classifier.unknown["images"]
    return f"unknown: {score} below {limit:.4f}, which {kept:.0%} of {count} held-out training images reach"


def _passed_over(skipped: list[Path]) -> str:
    """Count the files of folders that were not read, because their names are no images'."""
    files = f"1 file, {skipped[0]}, was" if len(skipped) == 1 else f"{len(skipped)} files, {skipped[0]} the first, were"
    return f"{files} skipped: no suffix of an image. A file that is named itself is read whatever its suffix."


def _line(answer: Prediction, path_width: int, label_width: int) -> str:
    (label, probability), *others = answer.top
    told = f"{answer.path!s:<{path_width}}  {label:<{label_width}}  {probability:7.2%}  {answer.score:9.4f}"
    lines = [told + ("  unknown" if answer.unknown else "")]
    lines += [f"{'':<{path_width}}  {label:<{label_width}}  {probability:7.2%}" for label, probability in others]
    return "\n".join(lines)


def _as_dict(answer: Prediction) -> dict[str, Any]:
    (label, probability), *_ = answer.top
    top = [{"class": name, "probability": share} for name, share in answer.top]
    told = {"path": str(answer.path), "class": label, "probability": probability, "score": answer.score}
    return told | {"unknown": answer.unknown, "top": top}
