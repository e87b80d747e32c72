"""What a verdict says about comparisons without a difference."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXCLUDE_ZERO = ("better", "worse")


def words_of(entries):
    assert len(entries) == 20
    assert {entry["n"] for entry in entries} == {3}
    return [entry["word"] for entry in entries]


@pytest.mark.nightly
def test_of_twenty_trained_comparisons_without_a_difference_at_most_three_exclude_zero(tmp_path):
    program = runpy.run_path(str(ROOT / "benchmarks" / "null_comparisons.py"))
    assert sum(word in EXCLUDE_ZERO for word in words_of(program["compare_nothing"](tmp_path))) <= 3


def test_the_record_of_twenty_trained_comparisons():
    record = json.loads((ROOT / "results" / "null_comparisons.json").read_text())
    exclude = sum(word in EXCLUDE_ZERO for word in words_of(record["comparisons"]))
    assert exclude == record["exclude_zero"] <= 3
