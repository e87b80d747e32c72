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
    sizes = {"batch": 2048, "features": 1024, "classes": 100_000, "bias": False, "weights": "bfloat16"}
    return sizes | {"ms": ms, "peak_mb": peak_mb, "float32_sums": False, "failed": {}} | changes


def judged(modules, record, *rows):
    record.grid = list(rows)
    modules["fused_gpu"].judge(record)
    return [(round(target["value"], 3), target["met"]) for target in record.targets]


def test_the_shapes_are_those_that_were_asked_for(modules):
    fused = modules["fused_gpu"]
    assert len(fused.ROWS) == 49
    assert len(fused.FEW) == 12
    assert sum(row["bias"] for row in fused.ROWS) == sum(row["weights"] == "float32" for row in fused.ROWS) == 6


TIMES = {"maxsep": 10.8, "maxsep, compiled": 11.0, "plain": 9.0, "eager": 12.0, "torch.compile": 10.5, "liger": 10.0}
MANY = {"batch": 4096, "features": 512}


@pytest.mark.parametrize(
    ("changes", "time"),
    [
        ({}, (1.08, True)),
        (MANY | {"classes": 99_999}, (1.08, True)),
        (MANY | {"classes": 100_000}, (1.029, True)),
        (MANY | {"classes": 1_000_000}, (1.029, False)),
    ],
)
def test_time_is_judged_by_the_fastest_rival_or_by_the_compiled_loss(changes, time, modules, record):
    found, _, worst = judged(modules, record, row(TIMES, {"maxsep": 1.0}, **changes))
    assert (found, worst) == (time, (1.08, True))


def test_the_worst_row_has_a_limit_of_its_own(modules, record):
    slow = row({"maxsep": 13.0, "torch.compile": 13.0, "liger": 10.0}, {"maxsep": 1.0}, **MANY)
    *_, worst = judged(modules, record, slow, row(TIMES, {"maxsep": 1.0}))
    assert worst == (1.3, False)


WEIGHT = 100_000 * 1024 * 2 / 1e6


@pytest.mark.parametrize(
    ("changes", "compiled", "limit"),
    [
        ({}, 9e9, 3.5 * WEIGHT + 2048 * 1024 * 2 / 1e6 + 300),
        ({"weights": "float32"}, 9e9, 7 * WEIGHT + 2048 * 1024 * 2 / 1e6 + 300),
        ({"float32_sums": True}, 9e9, 5 * WEIGHT + 2048 * 1024 * 2 / 1e6 + 300),
        ({"batch": 8192, "float32_sums": True}, 501, 250.5),
        ({"batch": 8191}, 501, 3.5 * WEIGHT + 8191 * 1024 * 2 / 1e6 + 300),
        ({"batch": 8192}, 500, 3.5 * WEIGHT + 8192 * 1024 * 2 / 1e6 + 300),
        (MANY | {"classes": 1_000_000}, 501, 1.6 * (2 * 1024 + 4096 * 1024 / 1e6)),
    ],
)
def test_memory_is_judged_by_weights_or_by_the_compiled_loss(changes, compiled, limit, modules, record):
    for factor, met in ((0.999, True), (1.001, False)):
        record.targets.clear()
        case = row(TIMES, {"maxsep": limit * factor, "torch.compile": compiled}, **changes)
        assert judged(modules, record, case)[1] == (factor, met)


def test_misses_make_the_exit_code_1(modules, record):
    judged(modules, record, row({"maxsep": 12, "eager": 10}, {"maxsep": 900}))
    assert record.end() == 1
    assert [target["met"] for target in json.loads(record.out.read_text())["targets"]] == [False, True, True]


@pytest.mark.parametrize(
    ("ms", "changes"),
    [({"eager": 10.0}, {}), ({"maxsep": 10.0, "plain": 9.0}, {}), ({"maxsep": 10.0, "eager": 99.0}, MANY)],
)
def test_a_row_without_ours_or_rivals_is_a_failure(ms, changes, modules, record):
    assert judged(modules, record, row(ms, {"maxsep": 1.0}, failed={"maxsep": "out of memory"}, **changes)) == []
    assert record.end() == 1


def test_head_and_loss_are_judged_from_python_and_in_graphs(modules, record):
    times = {"plain": (1.0, 0.1), "head": (1.6, 0.104), "fused": (1.3, 0.12)}
    found = {name: dict(zip(("python", "graph"), pair, strict=True)) for name, pair in times.items()}
    record.results["head"] = {"float32": found}
    modules["head_gpu"].judge(record)
    assert [target["met"] for target in record.targets] == [True, True]
