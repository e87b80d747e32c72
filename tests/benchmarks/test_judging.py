"""A benchmark says what missed its target, and fails when a rival did not run."""

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    names = ("record", "gpu_timing", "fused_gpu", "head_gpu")
    loaded = {name: importlib.import_module(name) for name in names}
    monkeypatch.setattr(loaded["record"], "hardware", lambda device: {"device": "none"})
    yield loaded
    for name in names:
        sys.modules.pop(name)


@pytest.fixture
def record(modules, tmp_path):
    return modules["record"].Record(tmp_path / "record.json")


def row(ms, peak_mb, **changes):
    sizes = {"batch": 4096, "features": 512, "classes": 100_000, "bias": False, "weights": "bfloat16"}
    return sizes | {"ms": ms, "peak_mb": peak_mb, "failed": {}} | changes


def judged(modules, record, *rows):
    record.results["grid"] = list(rows)
    modules["fused_gpu"].judge(record)
    return [(round(target["value"], 3), target["met"]) for target in record.targets]


def test_the_shapes_are_those_that_were_asked_for(modules):
    fused = modules["fused_gpu"]
    assert len(fused.ROWS) == 49
    assert len(fused.FEW) == 12
    assert sum(row["bias"] for row in fused.ROWS) == sum(row["weights"] == "float32" for row in fused.ROWS) == 6


def test_ours_is_judged_by_the_fastest_rival_and_by_half_of_the_compiled_memory(modules, record):
    ms = {"maxsep": 10.8, "plain": 9.0, "eager": 12.0, "torch.compile": 10.0, "liger": 99.0}
    peak = {"maxsep": 500, "torch.compile": 1033}
    assert judged(modules, record, row(ms, peak)) == [(1.08, True), (0.968, True)]


def test_misses_make_the_exit_code_1(modules, record):
    assert judged(modules, record, row({"maxsep": 12, "eager": 10}, {"maxsep": 900})) == [(1.2, False), (1.103, False)]
    assert record.end() == 1
    assert json.loads(record.out.read_text())["targets"][0]["met"] is False


def test_a_row_without_ours_or_rivals_is_a_failure(modules, record):
    judged(modules, record, row({"eager": 10.0}, {}, failed={"maxsep": "out of memory"}))
    assert record.end() == 1


def test_head_and_loss_are_judged_from_python_and_in_graphs(modules, record):
    times = {"plain": (1.0, 0.1), "head": (1.6, 0.104), "fused": (1.3, 0.12)}
    found = {name: dict(zip(("python", "graph"), pair, strict=True)) for name, pair in times.items()}
    record.results["head"] = {"float32": found}
    modules["head_gpu"].judge(record)
    assert [target["met"] for target in record.targets] == [True, True]
