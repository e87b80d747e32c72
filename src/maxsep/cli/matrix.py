"""`maxsep matrix C`: the matrix for people without PyTorch, and its certificate."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from maxsep.files import replace_file
from maxsep.simplex import certify, simplex

FORMATS: dict[str, Any] = {".npy": np.save, ".pt": lambda file, p: torch.save(torch.from_numpy(p), file),
                           ".csv": lambda file, p: np.savetxt(file, p, delimiter=",", fmt="%.17g")}  # fmt: skip
DENSE_LIMIT = 20_000


def matrix_command(
    classes: Annotated[int, typer.Argument(min=2, max=10_000_000, help="Number of classes C.")],
    out: Annotated[Path | None, typer.Option(help="Write P, (C - 1) x C in float64, as .npy, .pt or .csv.")] = None,
) -> None:
    """Write P, whose columns are the class vectors, and print how exact it is. The certificate needs no P: any C."""
    if out is not None and out.suffix not in FORMATS:
        raise ValueError(f"--out must end in {', '.join(FORMATS)}, got {out}.")
    if out is not None and classes > DENSE_LIMIT:
        raise ValueError(f"--out takes at most {DENSE_LIMIT} classes, got {classes}: P has C x C numbers.")
    certificate = certify(classes)
    if out is not None:
        FORMATS[out.suffix](content := io.BytesIO(), simplex(classes, dtype=torch.float64).numpy())
        replace_file(out, content.getvalue())
        typer.echo(f"wrote {out}")
    angle = math.degrees(math.acos(-1 / (classes - 1)))
    typer.echo(f"{classes} classes: {angle:.4f} degrees between any two class vectors")
    norm, mean, cosine = certificate.norm, certificate.mean, certificate.cosine
    typer.echo(f"largest errors: squared norm {norm:.0e}, mean {mean:.0e}, cosine {cosine:.0e} / (C - 1)")
