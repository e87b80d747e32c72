"""Recorded runs keep their names and bytes, and the report says the same numbers about them."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from maxsep.lab.spec import RunSpec

RUNS = Path(__file__).parents[2] / "results" / "runs"


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
def test_the_report_says_the_same_numbers(golden, tmp_path):
    runs = sorted(golden.read("runs"))
    command = [sys.executable, "-m", "maxsep", "report", *(str(RUNS / name) for name in runs), "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["problems"] == []
    assert sorted(report["runs"]) == runs
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
