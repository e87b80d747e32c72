"""The program and its verbs."""

from __future__ import annotations

from typing import Annotated

import typer

from maxsep import __version__
from maxsep.cli import bench, compare, demo, evaluate, export, matrix, predict, report, reproduce, train

app = typer.Typer(
    name="maxsep",
    help="Maximum class separation for any classifier: train it, compare it honestly, see the paper's tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"maxsep {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None: ...


for module in (demo, train, compare, reproduce, evaluate, predict, export, report, matrix, bench):
    app.command(name=module.__name__.rsplit(".", 1)[1], epilog=module.EPILOG)(module.command)
