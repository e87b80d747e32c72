"""The long tail of Imagenette is whole or not there, and its targets compare the metric that decides."""

import importlib
import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("photographs")


def test_an_interrupted_copy_is_no_tail(program, tmp_path, monkeypatch):
    for part, count in (("train", 30), ("val", 3)):
        for name in "abc":
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(count):
                (tmp_path / part / name / f"{number:02d}.JPEG").write_text("picture")
    monkeypatch.setattr(program, "LARGEST", 20)
    monkeypatch.setattr(program, "IMBALANCE", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copy", lambda path, _: Path(path).name == "05.JPEG" and 1 / 0)
        with pytest.raises(ZeroDivisionError):
            program.make_tail(tmp_path, tmp_path / "tail")
    tail = program.make_tail(tmp_path, tmp_path / "tail")
    assert {n: len(list((tail / "train" / n).iterdir())) for n in "abc"} == {"a": 20, "b": 6, "c": 2}
    assert len(list(tail.glob("test/*/*"))) == 9


def row(*balanced, **fields):
    runs = [{"title": "x", "epochs": 1, "images": 9, "top1": 0.99, "balanced": value} for value in balanced]
    return {"metric": "balanced", "reference": {"top1": 0.99, "balanced": 0.5}, "runs": runs, **fields}


@pytest.mark.parametrize("met", [True, False])
def test_targets_and_table_follow_the_rows(program, tmp_path, monkeypatch, met):
    rows = {"tail": row(0.6 if met else 0.59), "flowers": row(0.5 if met else 0.49)}
    rows |= {"compare": row(0.5, failure=[] if met else ["why"]), "rates": row(0.5 if met else 0.4, 0.3, 0.505)}
    assert list(program.judge(rows).values()) == [met] * 4
    assert len(program.judge({"tail": rows["tail"]})) == 1
    monkeypatch.syspath_prepend(ROOT / "docs")
    tables = importlib.import_module("tables")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert tables.photographs() == ""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "photographs.json").write_text(json.dumps({"rows": rows}))
    assert tables.photographs().splitlines()[2:] == [
        f"| {name}, x | {mean} | 50.0 |"
        for name, mean in (
            ("tail", "60.0" if met else "59.0"),
            ("flowers", "50.0" if met else "49.0"),
            ("compare", "50.0"),
        )
    ]
