"""The package as a whole: its public names, its layers, its size, and what importing it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import maxsep

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "maxsep"
FILES = sorted(SOURCE.rglob("*.py"))

LAYERS = {  # a room may import from rooms with a smaller number, and from itself
    "checks": 0, "files": 0, "packages": 0, "simplex": 1, "ops": 2, "heads": 3, "surgery": 4, "losses": 4, "detect": 4,
    "analysis": 4, "sklearn": 5, "lab": 6, "cli": 7, "__init__": 8, "__main__": 8,
}  # fmt: skip
LAB = {
    "__init__": 0, "spec": 0, "run": 1, "data": 1, "networks": 1, "engine": 2, "ood": 3, "predict": 3, "export": 3,
    "recipes": 4, "environment": 1, "durations": 0, "estimate": 5, "outcome": 5, "grid": 6, "report": 7, "benchmark": 8,
}  # fmt: skip
HEAVY = [
    "torchvision", "triton", "matplotlib", "sklearn", "lightning_fabric", "scipy", "timm", "transformers", "typer",
    "rich",
]  # fmt: skip


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(parts, table):
    return next((table[part] for part in parts[:1] if part in table), None)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_calls_go_one_way(path):
    own = path.relative_to(SOURCE).with_suffix("").parts
    for name in imported(path):
        parts = tuple(name.split("."))
        if parts[0] != "maxsep" or len(parts) == 1:
            continue
        other = room(parts[1:], LAYERS)
        if other is None:
            continue  # a name that `import maxsep` itself defines
        assert own[0] in LAYERS, f"{path}: give this room a layer"
        assert other <= LAYERS[own[0]], f"{'/'.join(own)} imports {name}, which is above it"
        if own[0] == "lab" and parts[1] == "lab" and len(own) > 1 and len(parts) > 2 and parts[2] in LAB:
            assert LAB[parts[2]] <= LAB[own[1]], f"{'/'.join(own)} imports {name}, which is above it"


def test_the_layering_test_would_notice(tmp_path, monkeypatch):
    bad = tmp_path / "simplex.py"
    bad.write_text("from maxsep.heads import build\n")
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    with pytest.raises(AssertionError, match=r"simplex imports maxsep.heads, which is above it"):
        test_calls_go_one_way(bad)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert text.count("\n") <= 500, "over 500 lines: split it by topic"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno <= 60, f"{node.name} does not fit on a screen"


def test_public_names_are_frozen():
    assert sorted(maxsep.__all__) == [
        "MaxSeparation", "MaxSeparationHead", "attach", "fold", "grow", "load", "save",
        "separate", "simplex",
    ]  # fmt: skip
    for name in maxsep.__all__:
        assert getattr(maxsep, name).__doc__


def python(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_importing_loads_torch_and_nothing_heavier():
    told = python("import torch, sys; before = set(sys.modules); import maxsep; print(*(set(sys.modules) - before))")
    assert "maxsep.heads" in told  # the test would notice: what maxsep brings is listed
    loaded = {name.split(".")[0] for name in told.split()}
    assert not loaded & set(HEAVY)


def test_importing_costs_little_more_than_torch():
    """Both in one process, in CPU time, the least of several: what else the machine does is no cost of ours."""
    clock = "import time; start = time.process_time(); import torch; between = time.process_time(); import maxsep; "
    code = clock + "print((time.process_time() - between) / (between - start))"
    python(code)  # fills the disk cache and writes the bytecode
    assert min(float(python(code)) for _ in range(5)) <= 0.1
