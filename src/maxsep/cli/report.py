"""`maxsep report RUNS`: finished runs as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maxsep.lab.report import write_report


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    out: Annotated[Path, typer.Option(help="Folder to write report.html, report.md and report.json to.")] = Path(
        "report"
    ),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Write the report of finished runs: one HTML page that needs nothing else, Markdown and JSON."""
    typer.echo(str(write_report(runs, out, **({} if title is None else {"title": title}))))
