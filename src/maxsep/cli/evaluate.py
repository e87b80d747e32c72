"""`maxsep evaluate RUN`: the numbers of a trained run, computed again from its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from maxsep.cli.options import Data, Json

EPILOG = "Example: maxsep evaluate runs/digits-mlp-maxsep-s0-3f2a90c1bd"


def command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Evaluate a run's weights: accuracy, top-5, loss, calibration error, accuracy of every class."""
    from maxsep.lab.engine import evaluate, load_run

    result = load_run(run)
    if (run / "weights.safetensors").is_file():
        metrics = evaluate(run, data)
    else:
        metrics = result.metrics
        typer.echo(
            f"{run} was kept without its weights, so nothing is computed again: these are the numbers stored when "
            "it was trained.",
            err=True,
        )
    if as_json:
        typer.echo(json.dumps(metrics))
        return
    typer.echo(result.spec.name)
    _show(metrics, result.preprocessing["classes"], result.metrics["class_counts"])


def _show(metrics: dict[str, Any], names: list[str], counts: list[int]) -> None:
    typer.echo(
        f"  top-1 {metrics['top1']:.2%}   top-5 {metrics['top5']:.2%}   mean over classes {metrics['balanced']:.2%}"
    )
    typer.echo(f"  loss {metrics['loss']:.4f}   calibration error {metrics['ece']:.2%}")
    for name, count, accuracy in zip(names, counts, metrics["per_class"], strict=True):
        told = "no test images" if accuracy is None else f"{accuracy:7.2%}"
        typer.echo(f"  {name!s:>16}  {told}  ({count} training images)")
