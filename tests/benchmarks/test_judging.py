"""A benchmark says what missed its target, and fails when a rival did not run."""

import functools
import importlib
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    found = [importlib.import_module(name) for name in ("record", "fused_gpu")]
    monkeypatch.setattr(found[0], "hardware", lambda device: {"device": "none"})
    yield found
    for module in found:
        sys.modules.pop(module.__name__)


@pytest.fixture
def record(modules, tmp_path):
    return modules[0].Record(tmp_path / "record.json")


def row(ms, graph=None, memory=1.02):
    found = {"ms": ms, "peak_of_weights_inputs_and_their_gradients": memory}
    found["peak_of_weights_gradient_and_inputs"] = memory + 0.02
    return found | ({} if graph is None else {"in_a_cuda_graph": {"ms": graph}})


def rows(modules, **changed):
    fused = modules[1]
    found = {
        fused.OURS: row(10.8, 10.5),
        fused.HOUSEHOLDER: row(9.0, 8.0),
        "torch eager": row(12.0, 12.0),
        "torch.compile": row(10.0, 9.0),
        "Liger-Kernel": row(99.0),
        "cut-cross-entropy": row(30.0),
        fused.INEXACT: row(9.5),
    }
    return found | changed


def judged(modules, record, found):
    for name, values in found.items():
        record.run("C=50", name, functools.partial(dict, values))
    modules[1].judge(50, record)
    return {target["name"]: (round(target["value"], 3), target["met"]) for target in record.targets}


def test_both_bases_are_judged_against_the_fastest_rival(modules, record):
    found = judged(modules, record, rows(modules))
    assert found["maxsep, fused: time over torch.compile, C=50"] == (1.08, True)
    assert found["maxsep, fused: time in CUDA graphs over torch.compile, C=50"] == (1.167, False)
    assert found["maxsep, Householder, fused: time in CUDA graphs over torch.compile, C=50"] == (0.889, True)
    assert found[f"maxsep, fused: time over {modules[1].INEXACT}, C=50"] == (1.137, False)
    assert len(found) == 10
    assert record.failed == {}
    assert record.end() == 1  # for what was missed


def test_memory_is_judged_in_both_measures(modules, record):
    found = judged(modules, record, rows(modules, **{modules[1].OURS: row(9.0, 8.0, memory=1.04)}))
    assert found["maxsep, fused: peak memory over weights, inputs and their gradients, C=50"] == (1.04, True)
    assert found["maxsep, fused: peak memory over weights, their gradient and inputs, C=50"] == (1.06, False)


def test_all_met_ends_well(modules, record):
    best = {name: row(1.0, 1.0) for name in (modules[1].OURS, modules[1].HOUSEHOLDER)}
    judged(modules, record, rows(modules, **best))
    assert record.end() == 0


@pytest.mark.parametrize("missing", ["Liger-Kernel", "cut-cross-entropy", "torch.compile", "maxsep, fused"])
def test_a_row_that_did_not_run_fails_the_benchmark(modules, record, missing):
    found = {name: values for name, values in rows(modules).items() if name != missing}
    judged(modules, record, found)
    assert record.failed == {f"C=50: {missing}": "did not run"}
    assert record.end() == 1


def test_a_rival_that_fails_is_named_and_the_others_still_count(modules, record):
    def broken():
        raise ArithmeticError("WRONG: off by 0.5")

    record.run("C=50", "Liger-Kernel", broken)
    found = judged(modules, record, {name: v for name, v in rows(modules).items() if name != "Liger-Kernel"})
    assert record.failed == {"C=50: Liger-Kernel": "ArithmeticError: WRONG: off by 0.5"}
    assert len(found) == 10
    assert record.end() == 1
    assert json.loads(record.out.read_text())["failed"] == record.failed


def test_a_rival_without_enough_memory_is_no_rival_and_no_failure(modules, record):
    changed = {"torch.compile": {"ms": None, "problem": "out of memory"}}
    found = judged(modules, record, rows(modules, **changed))
    assert "maxsep, fused: time over torch eager, C=50" in found
    assert record.failed == {}
