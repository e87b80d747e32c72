"""`maxsep export RUN`: the plain model of a run, with labels, preprocessing and threshold, to give away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = "Example: maxsep export runs/digits-mlp-maxsep-s0-3f2a90c1bd --out model --format onnx"


def command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier export in it is replaced.")],
    format: Annotated[str, typer.Option(help="safetensors or onnx.")] = "safetensors",
) -> None:
    """Fold a run's head and write the plain model: maxsep predict reads it, and of ONNX any other program."""
    from maxsep.lab.serving import export

    typer.echo(str(export(run, out, format)))
