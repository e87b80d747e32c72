"""What the pages say is true: their code runs, their numbers are those of the records, their rooms exist."""

import importlib
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from maxsep.cli.app import VERBS

ROOT = Path(__file__).parent.parent
SPEED = ("product", "head", "fused", "cpu")
"""Tables of docs/speed_tables.py."""
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def snippets(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.S)


def test_the_readme_runs_in_a_process_of_its_own():
    """Without what the tests set up: as somebody would paste it."""
    code = "\n".join(snippets(ROOT / "README.md"))
    assert code
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=lambda page: page.name)
def test_code_runs_from_top_to_bottom(page, capsys):
    namespace = {}
    for code in snippets(page):
        exec(compile(code, str(page), "exec"), namespace)
        promised = re.findall(r"print\(.*\)\s+# (.*)", code)
        printed = capsys.readouterr().out.splitlines()
        assert printed == promised


def test_the_tables_of_all_pages_are_those_of_the_records():
    script = runpy.run_path(str(ROOT / "docs" / "tables.py"))
    known = {*script["TABLES"], *script["_report_tables"](), *SPEED}
    for page in PAGES:
        text = page.read_text()
        assert script["rewritten"](text) == text, f"{page.name}: run python docs/tables.py"
        assert set(re.findall(r"<!-- table: (\S+) -->", text)) <= known
        assert text.count("<!-- table: ") == text.count("<!-- /table -->")


def test_every_printed_command_says_its_epochs():
    """On pages, in notebooks and in the help: code lines, and what names its data inside a line."""
    cells = [cell for path in NOTEBOOKS for cell in json.loads(path.read_text())["cells"]]
    texts = [page.read_text() for page in PAGES] + ["".join(cell["source"]) for cell in cells]
    text = "\n".join([*texts, *(verb.example for verb in VERBS.values())]).replace("\\\n", " ")
    command = r"^ *maxsep (?:train|compare) .*|maxsep (?:train --d|compare \w)[^`\n]*"
    commands = re.findall(command, text, re.MULTILINE)
    assert len(commands) >= 16
    assert [command for command in commands if "--epochs" not in command] == []


@pytest.mark.parametrize(
    ("name", "lines"), [("table1", 2 + 8), ("baseline", 2 + 4), ("recipe_cells", 2 + 8), ("long_tail_methods", 2 + 10)]
)
def test_a_table_has_a_row_for_every_cell(name, lines):
    table = runpy.run_path(str(ROOT / "docs" / "tables.py"))["TABLES"][name]()
    assert len(table.splitlines()) == lines


def test_architecture_names_every_file_of_the_library():
    text = (ROOT / "docs" / "architecture.md").read_text()
    source = ROOT / "src" / "maxsep"
    lab = [path.name for path in (source / "lab").iterdir() if not path.name.startswith("_")]
    library = [path for path in source.rglob("*.py") if path.relative_to(source).parts[0] not in ("lab", "cli")]
    for name in [*lab, *(path.name for path in library if not path.name.startswith("_"))]:
        assert name in text, f"docs/architecture.md does not name {name}"


def test_architecture_names_files_and_functions_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    for path in re.findall(r"`((?:ops|heads|surgery|losses|detect|analysis|sklearn|lab)/[\w/]+\.py)`", text):
        assert (ROOT / "src" / "maxsep" / path).exists(), path
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "maxsep").rglob("*.py"))
    for name in re.findall(
        r"`(?:\w+\.)?(_?[a-zA-Z]\w+)`", text.partition("## Decisions")[0].partition("## Five paths")[2]
    ):
        assert re.search(rf"\b{name}\b", source), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)|src=\"([^\"]+)\"", page.read_text()):
        link = target[0] or target[1]
        assert link.startswith("http") or (page.parent / link).exists(), link


def test_the_classifier_is_not_worse_than_a_scaled_mlp():
    rows = json.loads((ROOT / "results" / "sklearn.json").read_text())["rows"]
    ours = [row for row in rows if row["classifier"] == "adam"]
    assert len(ours) == 5
    assert all(row["log_loss_minus_mlp"][1] <= 0 <= row["accuracy_minus_mlp"][2] for row in ours)


def test_the_long_tail_command_reaches_its_accuracy_on_photographs():
    record = json.loads((ROOT / "results" / "photographs.json").read_text())
    assert record["targets"]
    assert all(record["targets"].values())
    assert record["rows"]["tail"]["runs"][0]["balanced"] >= 0.6


def test_the_page_of_speed_equals_the_records():
    script = runpy.run_path(str(ROOT / "docs" / "speed_tables.py"))
    text = (ROOT / "docs" / "speed.md").read_text()
    assert script["rewritten"](text) == text, "run: python docs/speed_tables.py"
    assert script["rewritten"](text.replace("| 10,000 |", "| 20,000 |")) == text
    assert "slope from 100,000 on" in script["growth_figure"]()


def test_a_grid_in_the_record_fills_the_table_of_the_loss(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    importlib.import_module("record")
    module = sys.modules.pop("record")
    monkeypatch.setattr(module, "hardware", lambda device: {"device": "none"})
    (tmp_path / "results").mkdir()
    record = module.Record(tmp_path / "results" / "fused_gpu.json")
    script = runpy.run_path(str(ROOT / "docs" / "speed_tables.py"))
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
