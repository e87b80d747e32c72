"""Options that several verbs share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maxsep.lab.spec import Execution

Data = Annotated[
    Path | None,
    typer.Option("--data", envvar="MAXSEP_DATA", help="Folder that holds the datasets in their official formats."),
]
Runs = Annotated[Path, typer.Option("--runs", help="Folder of run folders.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Fast = Annotated[
    bool | None,
    typer.Option("--fast/--no-fast", help="Compile, channels-last and CUDA graphs; by default where there is a GPU."),
]
Download = Annotated[
    bool,
    typer.Option(
        "--download/--no-download", help="Fetch missing datasets into the data folder; by default nothing is."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def execution(device: str, fast: bool | None) -> Execution:
    """Choose how runs are computed: everything that makes them fast where there is a GPU.

    >>> execution("cpu", None).compile
    False
    """
    import torch

    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    quick = on_gpu if fast is None else fast
    return Execution(device=device, compile=quick, channels_last=quick, cuda_graph=quick and on_gpu)


def precision(device: str) -> str:
    """Choose the numbers to compute with: bfloat16 on a GPU, float32 on a CPU.

    >>> precision("cpu")
    '32-true'
    """
    import torch

    return "bf16-mixed" if device == "cuda" or (device == "auto" and torch.cuda.is_available()) else "32-true"
