"""Speeds are compared where runs were made for that, and shown without a verdict where they were not."""

from maxsep.lab import recipes
from maxsep.lab.report.collect import collect
from maxsep.lab.report.comparison import settings_of
from maxsep.lab.report.runtime import is_timing, runtime_section


def tables(run_folders, runs, recipe, only):
    run_folders(runs, recipes.get(recipe).specs(only=only))
    settings = settings_of(collect(runs).records)
    return settings, runtime_section(settings, []).tables


def test_runs_that_were_made_to_be_timed_are_compared(run_folders, tmp_path):
    settings, (table,) = tables(run_folders, tmp_path, "runtime", "dataset=cifar10")
    assert any(map(is_timing, settings))
    assert table.columns[-1] == "difference to plain, %"


def test_other_runs_have_no_difference(run_folders, tmp_path):
    settings, (table,) = tables(run_folders, tmp_path, "table1", "dataset=cifar10,imbalance=0.01,network=resnet34")
    assert not any(map(is_timing, settings))
    assert table.columns == ("head", "images per second")
    assert "say nothing about heads" in table.caption
    assert {row.cells[0].text for row in table.rows} >= {"plain", "scaled, radius 0.1", "maxsep, radius 0.1"}


def test_losses_are_named_as_in_the_tables(run_folders, tmp_path):
    specs = [spec for spec in recipes.get("runtime").specs(only="dataset=cifar10") if spec.head in ("plain", "maxsep")]
    run_folders(tmp_path, [spec.replace(loss=loss) for spec in specs for loss in ("cross_entropy", "logit_adjusted")])
    (table,) = runtime_section(settings_of(collect(tmp_path).records), []).tables
    names = [row.cells[0].text for row in table.rows]
    assert {"plain (cross-entropy)", "plain (logit adjusted)"} < set(names)
    assert all("cross-entropy" in name or "logit adjusted" in name for name in names)
