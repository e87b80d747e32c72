import json
import re

import pytest

from maxsep.lab import recipes
from maxsep.lab.report import write_report
from maxsep.lab.report.controls import Method
from maxsep.lab.report.tables import ACCURACY, FISHER, Cell, Row, SettingRows, Table, comparison_table
from maxsep.lab.spec import RunSpec


def test_four_forms_of_one_report(page):
    data = json.loads(page.with_name("report.json").read_text())
    assert data["headline"] in page.with_name("report.md").read_text()
    found = {problem["folder"].rpartition("/")[2]: problem["kind"] for problem in data["problems"]}
    assert found == {"started": "unfinished", "failed": "failed", "broken": "broken"}
    assert len(data["runs"]) == len(set(data["runs"])) > 50
    assert len(data["coverage"]) == 156
    rows = page.with_name("runs.csv").read_text().splitlines()
    assert len({row.split(",")[0] for row in rows[1:]}) == len(data["runs"])


def test_no_p_value_is_on_a_page_and_all_are_in_the_json(page):
    for name in ("report.html", "report.md"):
        assert not re.search(r"\bp [<=] 0|correct(ed|ion)|noise,", page.with_name(name).read_text())
    results = json.loads(page.with_name("report.json").read_text())["results"]
    differences = [entry["to_baseline"] for entry in results if entry["to_baseline"]]
    assert all((d["p"] is None) == (d["low"] in (None, d["high"])) for d in differences)


def test_every_section_is_there(page):
    found = re.findall(r'<section id="([^"]+)"', page.read_text())
    wanted = "coverage table1 long-tail other start held-out ood open-set features classes curves problems"
    assert found == [*wanted.split(), "provenance", "definitions"]


def test_only_words_of_the_page_are_defined(page, tmp_path, run_folder):
    run_folder(tmp_path / "runs", RunSpec(head="plain", imbalance=0.02))
    small = write_report(tmp_path / "runs", tmp_path / "out")
    for name in ("report.html", "report.md"):
        full, mine = (path.with_name(name).read_text().partition("Definitions")[2] for path in (page, small))
        for word, count in {"imbalance": 1, "earlier draw": 0, "±": 0}.items():
            assert (full.count(word), mine.count(word)) == (1, count), word


def test_figures_are_files_and_those_of_an_earlier_report_go(page, tmp_path, run_folder):
    names = {path.stem for path in (page.parent / "figures").glob("*.svg")}
    assert names == set(re.findall(r"\]\(figures/([^)]+)\.svg\)", page.with_name("report.md").read_text()))
    assert {"forest", "energy-1", "features-plane", "features-norms"} <= names
    run_folder(tmp_path / "runs", RunSpec())
    out = write_report(tmp_path / "runs", tmp_path / "out").parent
    data = json.loads((out / "report.json").read_text())
    for name in ("old.svg", "mine.svg"):
        (out / "figures" / name).write_text("<svg/>")
    (tmp_path / "outside.svg").write_text("<svg/>")
    (out / "report.json").write_text(json.dumps(data | {"figures": [*data["figures"], "old.svg", "../../outside.svg"]}))
    write_report(tmp_path / "runs", out)
    assert {path.name for path in (out / "figures").iterdir()} == {*data["figures"], "mine.svg"}
    assert (tmp_path / "outside.svg").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"figures": 3}', '{"figures": [3]}'])
def test_a_damaged_earlier_report_is_replaced(tmp_path, run_folder, text):
    run_folder(tmp_path / "runs", RunSpec())
    (tmp_path / "report.json").write_text(text)
    write_report(tmp_path / "runs", tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["figures"]


def test_what_comes_from_outside_is_escaped_and_the_page_needs_nothing_else(page):
    html = page.read_text()
    assert "<b>" not in html
    assert "A &lt;b&gt;bold&lt;/b&gt; &amp; fine title" in html
    assert "out of memory &lt;b&gt;here&lt;/b&gt;" in html
    assert set(re.findall(r"""(?:src|href)=["'](?!#|data:)([^"']*)""", html)) == {"runs.csv", "report.json"}
    assert "@import" not in html
    assert "<script" not in html


def test_a_folder_of_problems_alone_still_makes_a_report(tmp_path):
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "result.json").write_text("{}")
    assert "No run is finished" in write_report(tmp_path / "runs", tmp_path / "out").read_text()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty"):
        write_report(tmp_path / "empty", tmp_path / "out")


def test_every_recorded_command_is_listed_once(tmp_path, run_folder):
    for seed, command in enumerate(("maxsep train", "maxsep compare digits", "maxsep train", "")):
        run_folder(tmp_path / "runs", RunSpec(seed=seed), command=command)
    page = write_report(tmp_path / "runs", tmp_path / "out")
    commands = json.loads(page.with_name("report.json").read_text())["commands"]
    assert sorted(commands) == ["maxsep compare digits", "maxsep train"]


@pytest.mark.parametrize("module", ["jinja2", "matplotlib"])
def test_a_missing_package_is_named(tmp_path, run_folder, monkeypatch, module):
    run_folder(tmp_path, RunSpec())
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ImportError, match=r'pip install "\.\[lab\]"'):
        write_report(tmp_path, tmp_path / "out")


def test_one_row_of_the_comparison_table(tmp_path, run_folder, settings):
    for spec in recipes.get("table1").specs(3, only="dataset=cifar10,imbalance=0.01,network=resnet34"):
        run_folder(tmp_path, spec, top1=0.6 + 0.1 * (spec.head == "maxsep") + 0.001 * (spec.seed - 124))
    (setting,) = settings(tmp_path)
    table = comparison_table("t", "T", [SettingRows("cell", setting, (ACCURACY,))])
    assert table.columns == ("method", "accuracy, %", "to the paper", "to linear", "to the control")
    row = next(row for row in table.rows if row.cells[0].text == setting.name(Method("maxsep", 0.1)))
    _, ours, to_paper, to_linear, to_control = row.cells
    assert [cell.value for cell in (ours, to_paper, to_linear, to_control)] == pytest.approx([70, 1.2, 10, 10])
    assert "[" not in to_linear.text, "no spread, no interval"


def test_a_table_says_how_many_seeds_are_needed(tmp_path, run_folder, settings):
    for seed in range(3):
        run_folder(tmp_path, RunSpec(head="plain", seed=seed), top1=0.5)
        run_folder(tmp_path, RunSpec(head="maxsep", seed=seed), top1=0.5 + 0.02 * (seed - 1))
    (setting,) = settings(tmp_path)
    table = comparison_table("t", "T", [SettingRows("cell", setting, (ACCURACY, FISHER))])
    difference = setting.difference(Method("maxsep"), Method("plain"))
    assert f"about {difference.repetitions_needed} " in table.rows[1].cells[2].detail
    assert not re.search(r"\d", FISHER.difference(difference).detail), "a Fisher score has no points"


def test_intervals_of_fractions_end_at_0_and_100_percent(tmp_path, run_folder, settings):
    for seed, top1 in enumerate((1.0, 0.97, 1.0)):
        run_folder(tmp_path, RunSpec(head="plain", seed=seed), top1=top1)
        run_folder(tmp_path, RunSpec(head="maxsep", seed=seed), top1=1 - top1)
    table = comparison_table("t", "T", [SettingRows("cell", settings(tmp_path)[0], (ACCURACY,))])
    assert [row.cells[1].text for row in table.rows] == ["99.00 [94.7, 100.0]", "1.00 [0.0, 5.3]"]


def test_other_lengths_and_limits_are_another_experiment(tmp_path, run_folder, settings):
    spec = recipes.get("table1").specs(1, only="dataset=cifar10,imbalance=0.01,network=resnet34")[0]
    run_folder(tmp_path, spec.replace(epochs=5, max_test=100))
    table = comparison_table("t", "T", [SettingRows("", settings(tmp_path)[0], (ACCURACY,))])
    assert len(table.notes) == 2
    assert table.rows[0].cells[2].detail.startswith("not counted")


def test_tables_refuse_rows_that_do_not_fit_and_escape_markdown():
    with pytest.raises(ValueError, match="'t'"):
        Table("t", "T", ("a", "b"), (Row((Cell("1"),)),))
    table = Table("t", "T", ("a",), (Row((Cell("x|y", notes=("why",)),), "block"),))
    assert table.to_markdown().splitlines()[2:4] == ["| **block** |", "| x\\|y [1] |"]
