"""Recorded runs keep their names and bytes; report and `compare` say the same about them, in numbers and words."""

import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from maxsep.lab.report.own_data import verdict
from maxsep.lab.run import find_runs
from maxsep.lab.spec import RunSpec

RESULTS = Path(__file__).parents[2] / "results"
RUNS, REPORT = RESULTS / "runs", RESULTS / "report"


def test_recorded_runs_keep_names_and_bytes(golden):
    names = golden.read("runs")
    if golden.regenerates:
        names = [path.name for path in RUNS.iterdir() if path.is_dir()]
    assert len(names) >= 204
    for name in names:
        records = {path.name: path.read_bytes() for path in sorted((RUNS / name).glob("*.json*"))}
        spec = RunSpec.from_dict(json.loads(records["spec.json"]))
        assert spec.name == name
        assert spec == RunSpec.from_dict(json.loads(records["result.json"])["spec"])
        parts = (name.encode(), *(part for key, value in records.items() for part in (key.encode(), value)))
        golden("runs", name, hashlib.sha256(b"\0".join(parts)).hexdigest())


@pytest.mark.slow
def test_the_report_says_the_same_and_is_the_committed_one(golden, tmp_path):
    out = REPORT if golden.regenerates else tmp_path
    subprocess.run([sys.executable, "-m", "maxsep", "report", RUNS, "--out", out], check=True, capture_output=True)
    committed, page = ((folder / "report.md").read_text().partition("\n## ")[2] for folder in (REPORT, out))
    assert page == committed  # but for the title and the time
    report = json.loads((out / "report.json").read_text())
    assert report["problems"] == []
    assert sorted(report["runs"]) == sorted(path.name for path in RUNS.iterdir() if path.is_dir())
    assert {path.name for path in (REPORT / "figures").iterdir()} == set(report["figures"])
    results = {method_name(entry): numbers_of(entry) for entry in report["results"]}
    assert len(results) == len(report["results"])
    tables = {f"{table['id']}: {table['title']}": cells_of(table) for table in report["tables"]}
    coverage = {number_name(number): numbers_of(number) for number in report["coverage"]}
    forest = {f"{row['table']}: {row['cell']}": numbers_of(row) for row in report["forest"]}
    topics = {"report_results": results, "report_tables": tables, "report_coverage": coverage, "report_forest": forest}
    for topic, entries in topics.items():
        for key, numbers in entries.items():
            golden(topic, key, numbers, tolerance=1e-9)
        assert golden.read(topic).keys() == entries.keys()


def test_the_verdict_on_recorded_runs_of_cifar10_on_a_terminal(golden):
    chosen = {"dataset": "cifar10", "imbalance": 0.01, "network": "resnet34", "loss": "cross_entropy"}
    chosen |= {"schedule_options": (), "clip_norm": 0.0, "head_start": 1.0}  # runs of the plan's question 2 differ
    runs = [run for run in find_runs(RUNS) if all(getattr(run.spec, name) == value for name, value in chosen.items())]
    assert len(runs) == 9
    text = io.StringIO()
    verdict([run.spec for run in runs], runs).show(Console(file=text, width=100))
    golden("terminal", "compare", [line.rstrip() for line in text.getvalue().splitlines()])


def method_name(entry):
    """The name that a run of this method with seed 0 has."""
    chosen = {key: entry[key] for key in ("head", "radius", "loss", "head_options", "loss_options")}
    return RunSpec.from_dict(entry["setting"]).replace(**chosen).name


def number_name(number):
    """The name of a number of the paper."""
    return " ".join(
        str(number[key]) for key in ("table", "dataset", "network", "method", "head", "imbalance", "metric")
    )


def numbers_of(entry):
    """Accuracies by seed, mean, spread, intervals, p-values and the paper's numbers; no text."""
    if not isinstance(entry, dict):
        return entry if isinstance(entry, int | float) else None
    left_out = ("setting", "radius", "head_options", "loss_options", "imbalance")
    parts = {key: numbers_of(value) for key, value in entry.items() if key not in left_out}
    return {key: value for key, value in parts.items() if value not in (None, {})}


def cells_of(table):
    """Numbers by group, row (all cells without a number) and column."""
    rows = {}
    for row in table["rows"]:
        label = " | ".join([row["group"], *(cell["text"] for cell in row["cells"] if cell["value"] is None)])
        cells = zip(table["columns"], row["cells"], strict=True)
        numbers = {column: cell["value"] for column, cell in cells if cell["value"] is not None}
        rows.setdefault(label, []).append(numbers)
    return {f"{label} #{n}" if n else label: cells for label, found in rows.items() for n, cells in enumerate(found)}
