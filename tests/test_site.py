"""The documentation site, the notebooks and the version: what `make docs` and a release rely on."""

import inspect
import json
import re
import runpy
import tomllib
from pathlib import Path

import pytest
import yaml

import maxsep

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture
def site(tmp_path):
    """The script, with its folders in tmp_path."""
    script = runpy.run_path(str(ROOT / "docs" / "build_site.py"))
    names = script["point_links_at_site"].__globals__
    names |= {"PAGES": tmp_path / "pages", "SITE": tmp_path / "site", "REPOSITORY": ""}
    return names


def test_every_page_is_in_one_section(site):
    listed = [name for names in site["sections"]().values() for name in names]
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert len(listed) == len(set(listed))
    assert {*pages, "README.md", "CHANGELOG.md", *(f"docs/notebooks/{path.name}" for path in NOTEBOOKS)} <= set(listed)


def test_a_new_page_appears_without_being_named(site, tmp_path):
    site |= {"ROOT": tmp_path, "NAVIGATION": {"How to": ["howto/b.md", "howto/*.md"]}}
    (tmp_path / "howto").mkdir()
    for name in "abc":
        (tmp_path / "howto" / f"{name}.md").write_text("# A page\n")
    assert site["sections"]() == {"How to": ["howto/b.md", "howto/a.md", "howto/c.md"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](../results.md#findings)", "[a](../results.md#findings)"),
        ("[a](../../README.md)", "[a](../index.md)"),
        ("[a](../../CHANGELOG.md)", "[a](../changes.md)"),
        ("![a](../images/growth.svg)", "![a](../images/growth.svg)"),
        ("[a](../../benchmarks/adam_order.py)", "[a](../benchmarks/adam_order.py)"),
        ("[a](../../results/runs)", "a"),
        ("[a](https://example.org/x)", "[a](https://example.org/x)"),
        ("`[a](../../README.md)`", "`[a](../../README.md)`"),
    ],
)
def test_links_of_a_page_lead_to_the_same_place_in_the_site(site, text, expected):
    pages = {"README.md", "CHANGELOG.md", "docs/results.md"}
    assert site["point_links_at_site"](text, "docs/guide/library.md", pages) == expected


def test_links_to_folders_lead_to_the_host_if_it_is_known(site):
    site["REPOSITORY"] = "someone/maxsep"
    link = site["point_links_at_site"]("[a](../results/runs)", "docs/speed.md", set())
    assert link == "[a](https://github.com/someone/maxsep/tree/main/results/runs)"


def test_files_that_pages_link_are_copied(site):
    site["point_links_at_site"]("[a](CITATION.cff)", "README.md", set())
    assert (site["PAGES"] / "citation.cff").read_bytes() == (ROOT / "CITATION.cff").read_bytes()


def test_broken_links_of_the_site_are_listed(site):
    site["SITE"].mkdir()
    (site["SITE"] / "a.html").write_text('<a href="b.html#there"></a><a href="b.html#no"></a><img src="c.png">')
    (site["SITE"] / "b.html").write_text('<h1 id="there"></h1><a href="a.html"></a><a href="https://example.org"></a>')
    assert list(site["broken_links"]()) == ["a.html: b.html#no", "a.html: c.png"]


def test_the_reference_names_every_public_object_where_it_is_defined(site):
    paths = site["api_paths"]("maxsep", "")
    assert {"maxsep.surgery.attach.attach", "maxsep.simplex.simplex"} <= set(paths)
    for path in (path for module, members in site["API"].items() for path in site["api_paths"](module, members)):
        module, _, name = path.rpartition(".")
        assert not inspect.ismodule(getattr(site["importlib"].import_module(module), name))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_without_outputs(path):
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_notebooks_lead_to_files(path):
    text = "".join("".join(c["source"]) for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "markdown")
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert targets
    assert not [target for target in targets if not (path.parent / target).exists()]


def test_all_files_name_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)[1]
    changes = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]
    assert maxsep.__version__ == project["version"] == citation == changes


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.stem)
def test_workflows_and_forms_are_yaml_and_make_what_exists(path):
    text = path.read_text()
    assert yaml.safe_load(text)
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"run: make (\w+)", text)) <= targets


def test_every_extra_is_tried():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"", *extras} - {"docs", "dev"} == set(runpy.run_path(str(ROOT / ".ci" / "try_dist.py"))["TRIES"])
