from pathlib import Path

import pytest

from maxsep.lab import recipes
from maxsep.lab.engine.evaluate import known_ece
from maxsep.lab.report.accuracy import accuracy_tables, results
from maxsep.lab.report.collect import collect
from maxsep.lab.report.comparison import Method, settings_of
from maxsep.lab.report.findings import find
from maxsep.lab.report.sections import frequency_section
from maxsep.lab.report.shots import shots_of, shots_section
from maxsep.lab.spec import RunSpec, options

RESULTS = Path(__file__).parents[3] / "results" / "runs"


def settings(folder):
    return settings_of(collect(folder).records)


def test_every_long_tailed_setting_has_its_rows(tmp_path, run_folders):
    run_folders(tmp_path, recipes.get("table1").specs(only="dataset=cifar10,imbalance=1|0.01,network=resnet34"))
    section = shots_section(settings(tmp_path))
    (table,) = section.tables
    assert [row.group for row in table.rows] == ["imbalance 0.01", "", ""]
    assert {row.cells[0].text for row in table.rows} == {"plain", "control", "maxsep"}
    assert all(cell.value is not None for row in table.rows for cell in row.cells[2:])
    assert not any("LDAM" in text for text in section.text)


def test_balanced_data_have_no_such_section(tmp_path, run_folders):
    run_folders(tmp_path, recipes.get("table1").specs(1, only="dataset=cifar10,imbalance=1,network=resnet34"))
    assert shots_section(settings(tmp_path)) is None


def test_a_run_that_recorded_no_classes_is_shown_without_them(tmp_path, run_folder):
    spec = RunSpec(imbalance=0.1, head="plain")
    run_folder(tmp_path, spec, metrics={"top1": 0.5})
    (setting,) = settings(tmp_path)
    assert shots_of(setting.entries[Method("plain", 1.0)]) == {"many": {}, "medium": {}, "few": {}}
    (row,) = shots_section([setting]).tables[0].rows
    assert [cell.text for cell in row.cells[2:]] == ["50.00", *["\N{EN DASH}"] * 5]


@pytest.mark.parametrize(("told", "shown"), [({}, "\N{EN DASH}"), ({"softmax_scale": 30.0}, "4.00")])
def test_the_calibration_error_of_bare_cosines_is_not_shown(tmp_path, run_folder, told, shown):
    run_folder(tmp_path, RunSpec(imbalance=0.1, head="cosine", loss="ldam"), metrics={"top1": 0.5, "ece": 0.04, **told})
    (row,) = shots_section(settings(tmp_path)).tables[0].rows
    assert row.cells[-1].text == shown


def test_the_committed_runs_with_ldam_do_not_say_their_scale():
    """They were made before it was recorded: their calibration errors stay in the records and out of the tables."""
    found = [r for r in collect(RESULTS).records if r.spec.loss == "ldam"]
    assert found
    for record in found:
        expected = record.metrics["ece"] if "softmax_scale" in record.metrics else None
        assert known_ece(record.spec, record.metrics) == expected


@pytest.fixture
def longtail(tmp_path, run_folders):
    run_folders(tmp_path, recipes.get("longtail").specs(only="imbalance=0.01"))
    return settings(tmp_path)


def test_last_and_best_epoch_stand_beside_the_papers_number(longtail):
    section = shots_section(longtail)
    (table,) = section.tables
    assert len(table.rows) == 16 + 4 + 4
    details = [row.cells[3].detail for row in table.rows]
    assert {"paper: 39.87", "paper: 42.02", "paper: 43.19", "paper: 40.29", "paper: 48.42"} <= set(details)
    assert any("best epoch on test data" in text for text in section.text)


def test_heads_by_direction_have_their_own_baseline_and_control(longtail):
    ldam = next(s for s in longtail if s.spec.mixup == 0 and s.spec.start_from is None)
    given = {"loss": "ldam", "loss_options": options(max_margin=0.4)}
    true, behind = Method("maxsep_cosine", 1.0, **given), Method("cosine_maxsep", 1.0, **given)
    assert ldam.plain(true).method == ldam.plain(behind).method == Method("cosine", 1.0, **given)
    assert ldam.control(true).method == Method("centred_cosine", 1.0, **given)
    assert ldam.control(behind).method == Method("cosine", 1.0, **given)
    (table,) = accuracy_tables([ldam])
    cells = {row.cells[0].text: row.cells for row in table.rows}
    assert cells["cosine (LDAM, margin 0.4)"][5].text == "\N{EN DASH}"
    assert cells["cosine_maxsep (LDAM, margin 0.4)"][5].text == "= cosine"
    assert "centred_cosine" in cells["maxsep_cosine (LDAM, margin 0.4)"][5].notes[0]
    assert cells["maxsep_cosine (LDAM, margin 0.4)"][2].text == "42.02"
    assert any("2.20" in note for note in table.notes)


def test_the_second_stage_is_compared_with_the_plain_second_stage(longtail):
    second = next(s for s in longtail if s.spec.start_from is not None)
    matrix = next(method for method in second.entries if method.head == "maxsep" and method.radius == 0.1)
    assert second.plain(matrix).method.head == "plain"
    assert second.control(matrix).method.head == "scaled"
    assert len(second.entries) == 4


def test_findings_count_both_readings(longtail):
    finding = find(longtail)
    assert "comparison" in finding.headline
    assert "Nothing to compare" not in finding.headline
    told = [r for r in results(longtail) if r["head"] == "maxsep_cosine"]
    assert len(told) == 4
    assert all(r["gain_over_plain"]["seeds"] == 3 and len(r["best_top1"]) == 3 for r in told)
    assert sorted(r["paper"].get("long_tailed", 0) for r in told) == [0, 0, 42.02, 43.19]


TAIL = {"class_counts": [150, 105, 70, 28, 10, 6], "per_class": [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]}


def write_tail(folder, run_folder, **metrics):
    for head, radius in (("plain", 1.0), ("scaled", 0.5), ("maxsep", 0.5)):
        for seed in (0, 1):
            told = {"top1": 0.8, "balanced": 0.5, "best_top1": 0.82, **TAIL, **metrics}
            run_folder(folder, RunSpec(dataset="folder:birds", head=head, radius=radius, seed=seed), metrics=told)
    return settings(folder)


def test_a_tail_that_was_not_cut_is_shown_too(tmp_path, run_folder):
    found = write_tail(tmp_path, run_folder)
    (table,) = shots_section(found).tables
    assert [row.group for row in table.rows] == ["unequal, 150 to 6 images a class", "", ""]
    assert table.columns[4:] == ("mean over classes, %", "many, %", "medium, %", "few, %", "ECE, %")
    assert [cell.text for cell in table.rows[0].cells[2:8]] == [
        "80.00 ± 0.00",
        "82.00 ± 0.00",
        "50.00",
        "90.00",
        "50.00",
        "10.00",
    ]
    assert table.rows[0].cells[5].detail == "± 0.00"
    figures = frequency_section(found).figures
    assert [figure.title for figure in figures] == ["birds, MLP, unequal, 150 to 6 images a class, radius 0.5"]


def test_a_balanced_test_set_needs_no_mean_over_classes(tmp_path, run_folder):
    (table,) = shots_section(write_tail(tmp_path, run_folder, balanced=0.8)).tables
    assert "mean over classes, %" not in table.columns


def test_classes_that_differ_by_rounding_have_neither(tmp_path, run_folder):
    found = write_tail(tmp_path, run_folder, class_counts=[122, 116, 119, 120, 117, 121])
    assert shots_section(found) is None
    assert frequency_section(found) is None


def test_a_class_without_images_has_no_place_on_a_logarithmic_axis(tmp_path, run_folder):
    found = write_tail(tmp_path, run_folder, class_counts=[150, 105, 70, 28, 10, 0])
    assert shots_section(found) is not None
    assert frequency_section(found) is None
