import json
import re

import pytest

from maxsep.lab import recipes
from maxsep.lab.report import render
from maxsep.lab.report.collect import collect
from maxsep.lab.report.render import build
from maxsep.lab.spec import RunSpec


def test_three_forms_of_one_report(page):
    html = page.read_text()
    markdown = page.with_name("report.md").read_text()
    data = json.loads(page.with_name("report.json").read_text())
    assert data["finding"]["headline"] in markdown
    for text in ("95.09", "5 runs: 96.12 ± 0.19", "= plain", "Angular Fisher score", "maxsep reproduce table1"):
        assert text in html, text
        assert text in markdown, text
    (search,) = data["chosen_radii"]
    assert search["radii"].keys() == {"scaled", "maxsep"}
    assert (search["setting"]["dataset"], search["setting"]["validation"]) == ("digits", 0.0)
    assert {problem["kind"] for problem in data["problems"]} == {"unfinished", "failed", "broken"}
    assert "ttest_rel" in data["test"]
    assert len(data["runs"]) == len(set(data["runs"])) > 50


def test_every_section_is_there(page):
    found = re.findall(r'<section id="([^"]+)"', page.read_text())
    wanted = "problems accuracy shots radius frequency fixed fisher prototypes geometry curves"
    assert found == [*wanted.split(), "provenance", "definitions"]


def test_figures_are_files_too(page):
    names = {path.stem for path in (page.parent / "figures").glob("*.svg")}
    markdown = page.with_name("report.md").read_text()
    assert names == set(re.findall(r"\]\(figures/([^)]+)\.svg\)", markdown))
    assert {"plane", "space", "radius-1"} <= names


def test_figures_of_an_earlier_report_do_not_stay(tmp_path, run_folder):
    run_folder(tmp_path / "runs", RunSpec())
    out = tmp_path / "out"
    render(tmp_path / "runs", out)
    figures = out / "figures"
    written = {path.name for path in figures.iterdir()}
    data = json.loads((out / "report.json").read_text())
    assert set(data["figures"]) == written
    for name in ("old.svg", "mine.svg"):
        (figures / name).write_text("<svg/>")
    (tmp_path / "outside.svg").write_text("<svg/>")
    data["figures"] += ["old.svg", "gone.svg", "../../outside.svg"]
    (out / "report.json").write_text(json.dumps(data))
    render(tmp_path / "runs", out)
    assert {path.name for path in figures.iterdir()} == written | {"mine.svg"}, "what no report wrote stays"
    assert (tmp_path / "outside.svg").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"figures": 3}', '{"figures": [3]}'])
def test_a_damaged_earlier_report_is_replaced(tmp_path, run_folder, text):
    run_folder(tmp_path / "runs", RunSpec())
    (tmp_path / "report.json").write_text(text)
    render(tmp_path / "runs", tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["figures"]


def test_what_comes_from_outside_is_escaped(page):
    html = page.read_text()
    assert "<b>" not in html
    assert "A &lt;b&gt;bold&lt;/b&gt; &amp; fine title" in html
    assert "out of memory &lt;b&gt;here&lt;/b&gt;" in html


def test_the_page_needs_nothing_else(page):
    html = page.read_text()
    assert not re.search(r"""(?:src|href)=["'](?!#|data:,)""", html)
    assert "@import" not in html
    assert "<script" not in html


def test_angular_spread_of_prototypes_is_read_from_the_weights(page):
    data = json.loads(page.with_name("report.json").read_text())
    (table,) = (table for table in data["tables"] if table["id"] == "prototypes")
    optimised, closed = table["rows"]
    assert optimised["cells"][2]["value"] > 1
    assert closed["cells"][1]["text"] == "96.38"
    assert closed["cells"][2]["value"] == pytest.approx(0, abs=1e-9)


def test_given_commands_are_shown(tmp_path, run_folder):
    run_folder(tmp_path, RunSpec())
    report = build(collect(tmp_path), commands=["maxsep compare birds"])
    assert report.commands == ("maxsep compare birds",)


def test_a_folder_of_problems_alone_still_makes_a_report(tmp_path):
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "result.json").write_text("{}")
    html = render(tmp_path / "runs", tmp_path / "out").read_text()
    assert "Nothing to compare yet" in html
    assert "result.json has no field &#39;spec&#39;" in html


def test_no_runs_at_all(tmp_path):
    with pytest.raises(ValueError, match="there are no runs in"):
        render(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(("module", "extra"), [("jinja2", "lab"), ("matplotlib", "lab")])
def test_a_missing_package_is_named(tmp_path, run_folder, monkeypatch, module, extra):
    run_folder(tmp_path, RunSpec())
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ImportError, match=rf'pip install "maxsep\[{extra}\]"'):
        render(tmp_path, tmp_path / "out")


def test_a_search_with_missing_runs_chooses_nothing(tmp_path, run_folders):
    specs = recipes.get("demo").specs()
    searched = next(s for s in specs if s.validation and s.head == "maxsep")
    run_folders(tmp_path / "runs", [spec for spec in specs if spec != searched])
    report = build(collect(tmp_path / "runs"))
    assert report.extra["chosen_radii"] == []
    (radius,) = (section for section in report.sections if section.id == "radius")
    assert any("the search for the radius is not complete" in text for text in radius.text)
    assert not any("held-out training data chose" in sentence for sentence in report.finding.sentences)
