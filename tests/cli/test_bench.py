import json

from maxsep.lab import benchmark

SMALL = ["bench", "--quick", "--device", "cpu", "--classes", "20,5", "--batch", "4", "--features", "8"]


def test_a_table_and_a_record(invoke):
    result = invoke(*SMALL)
    assert result.exit_code == 0, result.exception
    assert len([line for line in result.stdout.splitlines() if line.startswith("head")]) == 8
    record = json.loads(invoke(*SMALL, "--json").stdout)
    assert record["settings"] == {"batch": 4, "features": 8, "dtype": "float32", "classes": [5, 20]}
    assert len(record["rows"]) == 14


def test_a_form_that_breaks_is_no_success(invoke, monkeypatch):
    def broken(head, x, target):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(benchmark, "fused_cross_entropy", broken)
    result = invoke(*SMALL)
    assert result.exit_code == 1
    assert "no kernel" in result.stdout
