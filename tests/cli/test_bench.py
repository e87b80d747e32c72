import json

import pytest

from maxsep.lab import benchmark

SMALL = ["bench", "--quick", "--device", "cpu", "--classes", "20,5", "--batch", "4", "--features", "8"]


def test_a_table_and_a_record(invoke, tmp_path):
    result = invoke(*SMALL, "--out", tmp_path / "bench.json")
    assert result.exit_code == 0, result.exception
    assert len([line for line in result.stdout.splitlines() if line.startswith("head")]) == 8
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["settings"] == {"batch": 4, "features": 8, "dtype": "float32", "classes": [5, 20]}
    assert len(record["rows"]) == 20
    assert json.loads(invoke(*SMALL, "--json").stdout)["settings"] == record["settings"]


def test_a_form_that_breaks_is_no_success(invoke, monkeypatch):
    def broken(head, x, target):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(benchmark, "fused_cross_entropy", broken)
    result = invoke(*SMALL)
    assert result.exit_code == 1
    assert "no kernel" in result.stdout


@pytest.mark.parametrize("classes", ["", "ten", "1,10", "10,"])
def test_numbers_of_classes_are_checked(invoke, classes):
    assert "--classes" in str(invoke("bench", "--classes", classes or ",").exception)
