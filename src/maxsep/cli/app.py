"""The program `maxsep`: its verbs, which are imported when they are called, and what the verbs share."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from typer.core import TyperGroup

import maxsep
from maxsep.packages import load_package, printable

Value = TypeVar("Value")


class Verb(NamedTuple):
    """A verb: the module with its function `VERB_command`, its line in the help, and an example."""

    module: str
    help: str
    example: str


VERBS = {
    "demo": Verb("reproduce", "Train on long-tailed digits and write a report.", "maxsep demo"),
    "train": Verb("train", "Train one network with one head.", "maxsep train --dataset digits --epochs 20"),
    "compare": Verb("compare", "Compare heads on your data.", "maxsep compare my/pictures --epochs 30 --seeds 3"),
    "reproduce": Verb(
        "reproduce",
        "Reproduce a table or figure of the paper.",
        "maxsep reproduce table1 --data data --only imbalance=0.01,dataset=cifar10 --seeds 3 --budget 25m",
    ),
    "evaluate": Verb("evaluate", "Evaluate a run, also on outliers.", "maxsep evaluate runs/NAME --ood my/pictures"),
    "predict": Verb("predict", "Classify images, and flag unknown ones.", "maxsep predict runs/NAME photos --top 3"),
    "export": Verb("predict", "Export a run for deployment.", "maxsep export runs/NAME --out model --format onnx"),
    "report": Verb("reproduce", "Write the report of finished runs.", "maxsep report runs --out report"),
    "matrix": Verb("matrix", "Write the matrix of C classes.", "maxsep matrix 10 --out P.npy"),
    "bench": Verb("bench", "Time the head on this machine.", "maxsep bench --classes 100,1000,10000 --batch 128"),
}
SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # boxes leave too little room for names on 80 columns
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
UsageError = typer.BadParameter.__mro__[1]
"""The error that typer raises for options that it cannot parse."""


class Group(TyperGroup):
    """A group that imports a verb's module when the verb is called, so that the help is fast."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        names: Any = dict.fromkeys(VERBS)  # for suggestions after a typing error
        self.commands = names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and build a verb."""
        if cmd_name not in VERBS:
            return None
        verb = VERBS[cmd_name]
        function = getattr(importlib.import_module(f"maxsep.cli.{verb.module}"), f"{cmd_name}_command")
        program = typer.Typer(**SETTINGS)
        program.command(name=cmd_name, epilog=f"Example: {verb.example}")(function)
        return typer.main.get_command(program)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


app = typer.Typer(name="maxsep", cls=Group, **SETTINGS)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"maxsep {maxsep.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Maximum class separation for any classifier: train, compare, reproduce the paper, deploy."""


Data = Annotated[
    Path | None, typer.Option("--data", envvar="MAXSEP_DATA", help="Folder of the datasets in their official formats.")
]
Download = Annotated[bool, typer.Option("--download", help="Download missing datasets into the data folder.")]
Runs = Annotated[Path, typer.Option("--runs", help="Folder of run folders.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Budget = Annotated[str | None, typer.Option(help="Time limit: 90s, 30m, 1h30m; the same command continues.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs with their estimated times.")]
Jobs = Annotated[int, typer.Option(min=1, help="Number of processes that share the runs.")]
On = Annotated[
    str | None, typer.Option(help="`ray` starts a cluster on this machine; `ray://HOST:PORT` uses a running one.")
]
Gpus = Annotated[float, typer.Option(min=0.01, max=1, help="With --on, the part of a GPU for each run, such as 0.25.")]
SkipBroken = Annotated[
    bool, typer.Option("--skip-broken", help="Leave out pictures of your own data that cannot be used.")
]
Epochs = Annotated[int, typer.Option(min=1, help="Number of epochs.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds; intervals need two or more.")]
Imbalance = Annotated[float, typer.Option(help="Smallest over largest class; 1 leaves the data as it is.")]
Weights = Annotated[
    Path | None,
    typer.Option(envvar="MAXSEP_WEIGHTS", help="Pretrained weights of the network: safetensors or a state dict."),
]
ImageSize = Annotated[
    int | None,
    typer.Option(min=8, help="Scale images to this side; with pretrained weights by default the network's own."),
]
Optimiser = Annotated[str | None, typer.Option(help="sgd or adamw; by default adamw for a folder, else sgd.")]
LearningRate = Annotated[
    float | None,
    typer.Option(help="By default chosen on held-out training images of a folder; else 0.1 for sgd, 0.001 for adamw."),
]


def split(option: str, values: Sequence[str] | None, default: str, kind: Callable[[str], Value]) -> list[Value]:
    """Split the values of an option that is repeated or joined by commas.

    >>> split("--radius", ["1,0.5", "2"], "1", float)
    [1.0, 0.5, 2.0]
    """
    words = [word.strip() for text in values or [default] for word in text.split(",")]
    try:
        if all(words):
            return [kind(word) for word in words]
    except ValueError:
        pass
    raise ValueError(f"{option} takes values joined by commas, such as {default}, got {','.join(words)!r}.")


def console() -> Any:
    """The console of rich, 160 columns wide off a terminal."""
    width = None if sys.stdout.isatty() else 160
    return load_package("rich.console", "lab").Console(width=width, markup=False, highlight=False, emoji=False)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: the first column left-aligned, the others right-aligned."""
    table = load_package("rich.table", "lab").Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    console().print(table)


def quiet_libraries() -> None:
    """Silence Lightning's information on every run, and print this package's warnings as one line each."""
    logging.getLogger("lightning_fabric.utilities.rank_zero").setLevel(logging.WARNING)
    default, package = warnings.formatwarning, Path(maxsep.__file__).parent

    def format_warning(message: Any, category: Any, filename: str, lineno: int, line: str | None = None) -> str:
        if Path(filename).is_relative_to(package):
            return f"maxsep: warning: {printable(' '.join(str(message).split()))}\n"
        return default(message, category, filename, lineno, line)

    warnings.formatwarning = format_warning
