"""Several processes that share the runs of one command."""

import json

from typer.testing import CliRunner

from maxsep.cli.app import app
from maxsep.lab.recipes import get


def test_two_processes_share_the_runs_and_one_report_comes_of_it(tmp_path):
    arguments = ["reproduce", "demo", "--seeds", "1", "--epochs", "1", "--device", "cpu", "--runs", str(tmp_path)]
    result = CliRunner().invoke(app, [*arguments, "--only", "radius=1", "--jobs", "2", "--json"])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.output)
    assert len(summary["finished"]) == len(get("demo").specs(1, 1, "radius=1")) > 1
    assert (tmp_path / "report" / "report.html").is_file()
