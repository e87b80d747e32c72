"""Options that several verbs share, so that they read the same everywhere."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from maxsep.lab.spec import Execution
from maxsep.packages import load_package

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


def execution(device: str, fast: bool | None, networks: Collection[str] = ()) -> Execution:
    """Choose how runs are computed: everything that makes them fast where there is a GPU.

    >>> execution("cpu", False).compile, execution("cpu", None).device
    (False, 'cpu')
    """
    import torch

    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    return Execution(
        device=device, compile=fast, channels_last=fast, cuda_graph=None if fast is None else fast and on_gpu
    )


def precision(device: str) -> str:
    """Choose the numbers to compute with: bfloat16 on a GPU, float32 on a CPU.

    >>> precision("cpu")
    '32-true'
    """
    import torch

    return "bf16-mixed" if device == "cuda" or (device == "auto" and torch.cuda.is_available()) else "32-true"


def words(option: str, given: Sequence[str] | None, default: str) -> list[str]:
    """Read an option that takes several values, joined by commas or given again.

    >>> words("--loss", ["a,b", "c"], "a"), words("--loss", None, "a")
    (['a', 'b', 'c'], ['a'])
    """
    found = [word.strip() for text in given or [default] for word in text.split(",")]
    if not all(found):
        raise ValueError(
            f"{option} must name values with commas between them, such as {default}, got {','.join(given or [])!r}."
        )
    return found


def numbers(option: str, given: Sequence[str] | None, default: str) -> list[float]:
    """Likewise for numbers.

    >>> numbers("--radius", ["1,0.1"], "1")
    [1.0, 0.1]
    """
    try:
        return [float(word) for word in words(option, given, default)]
    except ValueError as error:
        told = ",".join(given or [])
        raise ValueError(f"{option} must be numbers with commas, such as {default}, got {told!r}.") from error


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: the first column left-aligned, the others right-aligned; 160 columns wide off a terminal."""
    table = load_package("rich.table", "lab").Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 160
    load_package("rich.console", "lab").Console(width=width, markup=False, highlight=False, emoji=False).print(table)
