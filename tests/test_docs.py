"""What the pages say is true: their code runs, their numbers are those of the records, their rooms exist."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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


def test_the_results_table_is_that_of_the_records():
    script = runpy.run_path(str(ROOT / "docs" / "write_results.py"))
    text = (ROOT / "README.md").read_text()
    assert script["rewritten"](text) == text, "run: python docs/write_results.py"


def test_a_run_that_is_its_own_control_is_told_once():
    lines = (ROOT / "README.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| MiSLAS")]
    assert len(rows) == 4
    for _, _, without, _, matrix, control in rows:
        assert control == 'same run as "without"'
        assert float(without) != float(matrix)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ((3, 3), "3"),
        ((0, 3), "3 (CIFAR-100 only)"),
        ((2, 0), "2 (CIFAR-10 only)"),
        ((1, 3), "CIFAR-10: 1, CIFAR-100: 3"),
    ],
)
def test_seeds_are_told_for_the_columns_that_have_runs(counts, told):
    seeds = runpy.run_path(str(ROOT / "docs" / "write_results.py"))["_seeds"]
    assert seeds(dict(zip(("CIFAR-10", "CIFAR-100"), counts, strict=True))) == told


def test_pages_that_name_networks_of_torchvision_say_where_it_must_come_from():
    for page in (ROOT / "README.md", ROOT / "docs" / "using.md"):
        text = " ".join(page.read_text().split())
        assert "torchvision" in text
        assert "Take torchvision from the index that torch came from" in text, page


def test_the_speed_page_is_that_of_the_records():
    script = runpy.run_path(str(ROOT / "docs" / "write_speed.py"))
    text = (ROOT / "docs" / "speed.md").read_text()
    assert script["rewritten"](text) == text, "run: python docs/write_speed.py"
    assert "slope from 100,000 on" in script["growth_figure"]()


def test_architecture_knows_every_room():
    text = (ROOT / "docs" / "architecture.md").read_text()
    source = ROOT / "src" / "maxsep"
    rooms = [path.name for path in (*source.iterdir(), *(source / "lab").iterdir()) if not path.name.startswith("_")]
    for room in rooms:
        assert room in ("py.typed",) or room in text, f"docs/architecture.md does not know {room}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)|src=\"([^\"]+)\"", page.read_text()):
        link = target[0] or target[1]
        assert link.startswith("http") or (page.parent / link).exists(), link


def test_readme_names_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


def test_the_verdict_in_the_readme_is_that_of_the_records():
    from scipy.stats import ttest_rel

    accuracies = runpy.run_path(str(ROOT / "docs" / "write_results.py"))["accuracies"]
    p = ttest_rel(accuracies("cifar10", "maxsep", 0.1), accuracies("cifar10", "scaled", 0.1)).pvalue
    assert f"p = {p:.2f}" in (ROOT / "README.md").read_text()
