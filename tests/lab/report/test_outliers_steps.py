"""The input step of the Mahalanobis detector: src/maxsep/lab/report/outliers_steps.py."""

import json
import shutil

import pytest

from maxsep.lab.report.collect import collect
from maxsep.lab.report.comparison import settings_of
from maxsep.lab.report.outliers import outliers_section
from maxsep.lab.report.outliers_steps import chosen_steps, steps_table
from maxsep.lab.spec import RunSpec


@pytest.fixture(scope="module")
def settings(outside):
    return settings_of(collect(outside).records)


def test_every_input_step_is_told_and_the_chosen_one_marked(settings):
    table = next(table for table in outliers_section(settings).tables if table.id == "outliers-steps-1")
    assert table.columns == ("head", "no step", "step 0.002")
    assert [row.group for row in table.rows if row.group] == [
        *("SVHN test, re-cropped", "MiniPlaces validation", "CIFAR-10 test")
    ]
    assert [[cell.tone for cell in row.cells[1:]] for row in table.rows] == [["", "strong"]] * 12
    assert all(0 < cell.value < 100 for row in table.rows for cell in row.cells[1:])


def test_a_detector_without_steps_needs_no_table_of_them(outside, tmp_path):
    folder = next(outside.glob("cifar100-wrn40_2-plain-s1-*"))
    shutil.copytree(folder, tmp_path / folder.name)
    path = tmp_path / folder.name / "detection.json"
    record = json.loads(path.read_text())
    for told in record["sets"].values():
        del told["sweep"]
    path.write_text(json.dumps(record))
    section = outliers_section(settings_of(collect(tmp_path).records))
    assert section.tables
    assert not [table.id for table in section.tables if "steps" in table.id]


def test_a_setting_without_the_detector_says_nothing(settings, tmp_path, run_folders):
    measured = next(setting for setting in settings if chosen_steps(setting, "here"))
    (sentence,) = chosen_steps(measured, "here")
    assert "chosen on outsiders made from training images. here: plain: 0.002; maxsep: 0.002" in sentence
    run_folders(tmp_path, [RunSpec(head="plain")])
    (other,) = settings_of(collect(tmp_path).records)
    assert chosen_steps(other, "here") == []
    assert steps_table("id", "title", other, {"svhn": "SVHN"}) is None
