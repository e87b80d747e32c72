"""The program and its verbs."""

from __future__ import annotations

from typing import Annotated

import typer

from maxsep import __version__
from maxsep.cli import bench, compare, demo, evaluate, matrix, predict, report, reproduce, train

app = typer.Typer(
    name="maxsep",
    help="Maximum class separation for any classifier: train it, compare it honestly, see the paper's tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes leave so little room that names to type are cut
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


VERBS = {  # in the order of the help, with what it has room for
    demo: "Train long-tailed digits with the matrix and without.",
    train: "Train one network with one head.",
    compare: "Compare heads on your data, and tell what is noise.",
    reproduce: "Reproduce a table or figure of the paper.",
    evaluate: "Evaluate weights: accuracy, calibration, outliers.",
    predict: "Classify images, and say which are unknown.",
    report: "Write the report of finished runs.",
    matrix: "Show the matrix and the angle between classes.",
    bench: "Measure this machine: product, head, fused loss.",
}
for module, told in VERBS.items():
    name = module.__name__.rsplit(".", 1)[1]
    app.command(name=name, epilog=module.EPILOG, short_help=told)(module.command)
app.command(name="export", epilog=predict.EXPORT_EPILOG, short_help="Write a run as a plain model, its head folded.")(
    predict.export_command
)
