"""The tables of docs/speed.md are those of the records."""

import importlib
import runpy
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_equals_the_records():
    script = runpy.run_path(str(DOCS / "speed_tables.py"))
    text = (DOCS / "speed.md").read_text()
    assert script["rewritten"](text) == text, "run: python docs/speed_tables.py"
    assert script["rewritten"](text.replace("| 10,000 |", "| 20,000 |")) == text
    assert "slope from 100,000 on" in script["growth_figure"]()


def test_a_grid_in_the_record_fills_the_table_of_the_loss(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(DOCS.parent / "benchmarks"))
    importlib.import_module("record")
    module = sys.modules.pop("record")
    monkeypatch.setattr(module, "hardware", lambda device: {"device": "none"})
    (tmp_path / "results").mkdir()
    record = module.Record(tmp_path / "results" / "fused_gpu.json")
    script = runpy.run_path(str(DOCS / "speed_tables.py"))
    monkeypatch.setitem(script["fused"].__globals__, "ROOT", tmp_path)
    record.write()
    assert script["fused"]() == ""
    shape = {"batch": 2048, "features": 256, "classes": 10_000, "bias": True, "weights": "float32", "graph": True}
    ms = {"maxsep": 1.5, "maxsep, compiled": 1.4, "eager": 2.0, "quack": None}
    record.grid.append(shape | {"ms": ms, "peak_mb": {"maxsep": 100.0, "maxsep, compiled": 90.0, "eager": 2000.0}})
    record.write()
    header, _, row, *_ = script["fused"]().splitlines()
    assert header == "| batch, features, classes | maxsep | maxsep, compiled | eager |"
    assert row == "| 2,048, 256, 10,000, bias, float32 weights, CUDA graph | 1.50, 100 | 1.40, 90 | 2.00, 2,000 |"
