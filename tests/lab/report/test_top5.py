"""The section on top-5 accuracy, `maxsep.lab.report.top5`."""

import pytest

from maxsep.lab import recipes
from maxsep.lab.report.collect import Record
from maxsep.lab.report.comparison import settings_of
from maxsep.lab.report.top5 import top5_section
from maxsep.lab.spec import RunSpec


def record(spec, top5, classes=1000):
    counts = [10] * classes
    return Record(folder=None, spec=spec, metrics={"top1": top5 / 2, "top5": top5, "class_counts": counts})


@pytest.fixture
def rows():
    """Three seeds of every arm on ImageNet, with noise that is not the same for all."""
    arms = recipes.get("imagenet").specs(3, only="dataset=imagenet,network=resnet50")
    bonus = {("plain", 1.0): 0.0, ("maxsep", 1.0): 0.004, ("scaled", 0.1): 0.02, ("maxsep", 0.1): 0.05}
    noise = {123: 0.0, 124: 0.003, 125: -0.002}
    records = [
        record(spec, 0.9 + bonus[spec.head, spec.radius] + noise[spec.seed] * (1 + bonus[spec.head, spec.radius]))
        for spec in arms
    ]
    section = top5_section(settings_of(records))
    (table,) = section.tables
    return {(row.cells[0].text, row.cells[1].text): row.cells for row in table.rows}


def test_the_papers_numbers_stand_beside_radius_1(rows):
    assert rows["plain", "1"][2].text == "92.40"
    assert rows["maxsep", "1"][2].text == "94.90"
    assert "does not say epochs" in rows["maxsep", "1"][2].notes[0]
    assert rows["maxsep", "0.1"][2].value is None


def test_every_gain_is_shown_over_plain_and_over_the_control(rows):
    assert rows["maxsep", "1"][5].text == "= plain"
    assert rows["maxsep", "0.1"][4].text == "+5.00"
    assert rows["maxsep", "0.1"][5].text == "+3.00"
    assert rows["scaled", "0.1"][4].text == "+2.00"
    assert rows["scaled", "0.1"][5].value is None  # it needs no control
    assert rows["plain", "1"][3].text.startswith("90.0")


@pytest.mark.parametrize(("classes", "shown"), [(199, False), (200, True)])
def test_other_data_have_it_where_classes_are_many(classes, shown):
    runs = [record(RunSpec(dataset="folder:birds", head="plain", seed=seed), 0.8, classes) for seed in range(3)]
    assert (top5_section(settings_of(runs)) is not None) == shown
