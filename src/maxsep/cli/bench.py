"""`maxsep bench`: what the head costs on one's own machine, beside the dense matrix and a plain nn.Linear."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maxsep.cli.memory import available_memory
from maxsep.cli.options import Device, Json

if TYPE_CHECKING:
    import torch

    from maxsep.lab.bench import Row, Spread

EPILOG = "Example: maxsep bench --classes 100,1000,10000 --batch 128"
CLASSES, QUICK = "100,1000,10000,100000", "100,1000"


def command(
    device: Device = "auto",
    classes: Annotated[
        str | None, typer.Option(help=f"Numbers of classes, with commas; {CLASSES}, or {QUICK} with --quick.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 128,
    features: Annotated[int, typer.Option(min=1, help="Width of the features before the head.")] = 512,
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads; one is measured in CPU time, more in time on the wall.")
    ] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds: small sizes, three rounds.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for bench.json, bench.svg and bench.png.")] = Path("bench"),
    as_json: Json = False,
) -> None:
    """Measure construction, product, head and fused loss; print a table, write a figure."""
    import torch

    from maxsep.lab.bench import OPERATIONS, measure, write_figure
    from maxsep.lab.environment import hardware, pick_device, versions

    sizes, place = _sizes(classes or (QUICK if quick else CLASSES)), pick_device(device)
    torch.set_num_threads(threads)
    settings = {"batch": batch, "features": features, "dtype": "float32", "classes": sizes}
    with _progress(len(sizes) * len(OPERATIONS)) as tell:
        options = {"seconds": 0.0} if quick else {}
        rows = measure(
            sizes, batch=batch, features=features, device=place, free_memory=_free(place), on_start=tell, **options
        )
    about = {"settings": settings, "hardware": hardware(place), "versions": versions()}
    record = about | {"rows": [asdict(row) for row in rows]}
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1)
    (out / "bench.json").write_text(text + "\n", encoding="utf-8")
    where = _where(place, batch, features, threads)
    files = [out / "bench.json", *write_figure(rows, where, out)]
    typer.echo(text if as_json else "\n".join([*_table(rows), "", where, *map(str, files)]))
    if any(row.failed for row in rows):
        raise typer.Exit(1)  # a table with a hole that nobody expected is no success


def _where(device: torch.device, batch: int, features: int, threads: int) -> str:
    import torch

    from maxsep.lab.environment import hardware

    found = hardware(device)
    clock = found["device"] if device.type == "cuda" else f"{found['cpu']}, {threads} thread{'s' * (threads > 1)}"
    clock = f"{clock}, {'CPU time' if device.type == 'cpu' and threads == 1 else 'time on the wall'}"
    return f"{clock}; float32, batch {batch}, {features} features, torch {torch.__version__}; medians and quartiles"


def _sizes(text: str) -> list[int]:
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 2:
        raise ValueError(f"--classes must be whole numbers of at least 2 with commas, such as {QUICK}, got {text!r}.")
    return sizes


def _free(device: torch.device) -> Callable[[], int]:
    """Return what says how many bytes may be taken: nine tenths of what is free, so that the machine stays usable."""
    import torch

    if device.type == "cuda":
        return lambda: int(0.9 * torch.cuda.mem_get_info(device)[0])
    return lambda: int(0.9 * available_memory())


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str, int], None]]:
    """Show a bar on the error stream, so that the table or the JSON is all that is printed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns: list[Any] = [TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=total)
        begun = 0

        def tell(operation: str, classes: int) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=f"{operation}, {classes:,} classes")
            begun += 1

        yield tell


def _table(rows: list[Row]) -> list[str]:
    lines = [f"{'':<14}{'classes':>9}  {'form':<8}{'ms':>9}  {'quartiles':<20}{'times nn.Linear':<16}{'quartiles'}"]
    before = None
    for row in rows:
        here = (row.operation, row.classes)
        start = f"{row.operation:<14}{row.classes:>9,}" if here != before else " " * 23
        before = here
        if row.milliseconds is None:
            lines.append(f"{start}  {row.form:<8}  not run: {row.problem}")
            continue
        told = f"{_number(row.milliseconds.median):>9}  {_quartiles(row.milliseconds):<20}"
        ratio = row.problem if row.ratio is None else f"{_number(row.ratio.median):<16}{_quartiles(row.ratio)}"
        lines.append(f"{start}  {row.form:<8}{told}{ratio}")
    return lines


def _quartiles(spread: Spread) -> str:
    return f"{_number(spread.low)} to {_number(spread.high)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
