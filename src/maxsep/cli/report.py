"""`maxsep report RUNS`: finished runs as one page, with the paper's numbers and the controls beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = "Example: maxsep report runs --out report"


def command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold run folders.")],
    out: Annotated[Path, typer.Option(help="Folder to write report.html, report.md and report.json to.")] = Path(
        "report"
    ),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Write the report of finished runs: HTML that needs nothing else, Markdown and JSON."""
    from maxsep.lab.report import write_report

    page = write_report(runs, out, **({} if title is None else {"title": title}))
    typer.echo(str(page))
