"""The package as a whole: its public names, who imports whom, its size, and what importing it costs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import maxsep

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "maxsep"
FILES = sorted(SOURCE.rglob("*.py"))
NAMES = [str(path.relative_to(SOURCE)) for path in FILES]
HEAVY = {
    "torchvision", "triton", "matplotlib", "sklearn", "lightning_fabric", "scipy", "timm", "transformers", "typer",
    "rich",
}  # fmt: skip
LATE = {"torch.distributed.device_mesh", "torch.distributed.tensor", "triton", "maxsep.ops", "maxsep.__version__"}
"""What a function may import: slow parts of torch, Triton and kernels that need it, and the version, else a cycle."""


def rooms():
    """Every room of docs/architecture.md and the rooms that it may import."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.search(r"\| room \| imports \|\n\|.*\n((?:\|.*\n)+)", page)[1].splitlines()
    cells = [re.findall(r"`([\w.]+)`", cell) for row in rows for cell in row.strip("|").split("|")]
    return {room: {room, *imports} for names, imports in zip(cells[::2], cells[1::2], strict=True) for room in names}


def room_of(module, known):
    """The longest known room that a dotted name of maxsep begins with: lab.data of maxsep.lab.data.images.ImageSet."""
    parts = module.split(".")[1:]
    return next((name for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in known), None)


def imports(path):
    """Yield each imported name of a file and whether the import stands in a function."""
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    late = {node for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ((f"{node.module}.{alias.name}", node in late) for alias in node.names)


def forbidden(path, known):
    """List what a file imports although docs/architecture.md does not let it."""
    own = room_of(".".join(("maxsep", *path.relative_to(SOURCE).with_suffix("").parts)), known)
    assert own, f"{path.name}: docs/architecture.md has no row for its room"
    used = {room_of(name, known) for name, _ in imports(path) if name.startswith("maxsep.")}
    return used - known[own] - {None}  # None: a name that `import maxsep` itself defines


@pytest.mark.parametrize("name", NAMES)
def test_rooms_import_what_the_architecture_says(name):
    if not re.fullmatch(r"(lab/)?__\w+__\.py", name):
        assert not forbidden(SOURCE / name, rooms())


@pytest.mark.parametrize("name", NAMES)
def test_imports_stand_at_the_top(name):
    late = [module for module, is_late in imports(SOURCE / name) if is_late]
    assert not [module for module in late if not module.startswith(tuple(LATE))]


def test_the_architecture_allows_no_import_that_nobody_makes():
    known = rooms()
    used = {room: {room} for room in known}
    for path in FILES:
        own = room_of(".".join(("maxsep", *path.relative_to(SOURCE).with_suffix("").parts)), known)
        if own:
            used[own] |= {room_of(module, known) for module, _ in imports(path) if module.startswith("maxsep.")} - {
                None
            }
    assert {room: known[room] - used[room] for room in known if known[room] - used[room]} == {}


def test_a_forbidden_import_would_be_noticed(tmp_path, monkeypatch):
    (tmp_path / "simplex.py").write_text("from maxsep.heads import build\n")
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    assert forbidden(tmp_path / "simplex.py", {"simplex": {"simplex"}, "heads": {"heads"}}) == {"heads"}


def private_names(path):
    """List the private names of the package, in full, that a test reads or replaces."""
    nodes, modules = list(ast.walk(ast.parse(path.read_text()))), {}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            modules |= {alias.asname or alias.name: start + alias.name for alias in node.names}
    used = [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)]
    used += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    calls = [node.args for node in nodes if isinstance(node, ast.Call) and len(node.args) > 1]
    used += [
        f"{ast.unparse(a)}.{b.value}" for a, b, *_ in calls if isinstance(b, ast.Constant)
    ]  # setattr(a, "_b", ...)
    full = [".".join((modules.get(first, first), *rest)) for first, *rest in (name.split(".") for name in used)]
    return [name for name in (*modules.values(), *full) if re.fullmatch(r"maxsep(\.\w+)*\._[a-zA-Z]\w*", name)]


def test_tests_use_private_names_of_their_own_room_only():
    known, found = rooms(), []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        place = ".".join(("maxsep", *path.relative_to(ROOT / "tests").with_suffix("").parts))
        found += [(room_of(place.replace("test_", ""), known), name) for name in private_names(path)]
    assert found
    assert [name for own, name in found if room_of(name, known) != own] == []


@pytest.mark.parametrize("name", NAMES)
def test_files_and_functions_stay_small(name):
    text = (SOURCE / name).read_text()
    assert text.count("\n") <= 400, "over 400 lines: split it by topic"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{node.name} does not fit on a screen"


def test_the_house_keeps_its_size():
    def lines(folder):
        return sum(path.read_text().count("\n") for path in (ROOT / folder).rglob("*.py"))

    assert len(FILES) <= 145
    assert lines("src") <= 21_500
    assert lines("tests") <= 20_000


def test_public_names_are_frozen():
    assert sorted(maxsep.__all__) == [
        "MaxSeparation", "MaxSeparationHead", "attach", "fold", "grow", "load", "save",
        "separate", "simplex",
    ]  # fmt: skip
    for name in maxsep.__all__:
        assert getattr(maxsep, name).__doc__


def python(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("room", ["analysis", "detect", "heads", "losses", "surgery"])
def test_rooms_of_the_library_are_attributes(room):
    python(f"import maxsep; maxsep.{room}.__all__")


def test_importing_loads_torch_and_nothing_heavier():
    loaded_names = python(
        "import torch, sys; before = set(sys.modules); import maxsep; print(*(set(sys.modules) - before))"
    )
    assert "maxsep.heads" in loaded_names  # the test would notice: what maxsep brings is listed
    loaded = {name.split(".")[0] for name in loaded_names.split()}
    assert not loaded & HEAVY


def test_importing_costs_little_more_than_torch():
    """Both in one process, in CPU time, the least of several: what else the machine does is no cost of ours."""
    clock = "import time; start = time.process_time(); import torch; between = time.process_time(); import maxsep; "
    code = clock + "print((time.process_time() - between) / (between - start))"
    python(code)  # fills the disk cache and writes the bytecode
    assert min(float(python(code)) for _ in range(5)) <= 0.1


def test_a_missing_numpy_is_no_warning():
    hide = "import sys; sys.modules['numpy'] = None; import warnings; warnings.simplefilter('error'); "
    python(hide + "import maxsep, torch; maxsep.MaxSeparationHead(4, 3)(torch.ones(2, 4)).sum().backward()")
