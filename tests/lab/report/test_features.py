"""Features in the plane: the section of lab/report/features.py."""

import json
import shutil

import pytest

from maxsep.lab.report import outliers_figures
from maxsep.lab.report.collect import collect
from maxsep.lab.report.comparison import settings_of
from maxsep.lab.report.features import features_section


@pytest.fixture(scope="module")
def settings(outside):
    return settings_of(collect(outside).records)


def test_features_have_four_panels_and_two_curves_for_each_head(settings):
    plane, norms = features_section(settings).figures
    for title in ("plain, epoch 15", "plain, epoch 200", "maxsep, epoch 15", "maxsep, epoch 200"):
        assert title in plane.svg
    assert plane.svg.count(">unknown<") == 1, "one legend for all panels"
    assert "maxsep ends at" in norms.caption
    assert "plain, unknown" in norms.svg


def test_heads_and_epochs_have_one_scale(settings, monkeypatch):
    limits, keep = [], outliers_figures._scatter
    monkeypatch.setattr(outliers_figures, "_scatter", lambda *given: limits.append(given[-1]) or keep(*given))
    features_section(settings)
    assert len(limits) == 4
    assert len(set(limits)) == 1


def test_losses_are_named_as_in_the_tables(outside, tmp_path):
    """Two runs that differ in the loss alone are two rows, neither of which goes without its loss."""
    for folder in outside.glob("osr_*"):
        if (folder / "features.json").is_file() and "-plain-" in folder.name:
            spec = json.loads((folder / "result.json").read_text())
            for loss in ("cross_entropy", "logit_adjusted"):
                copy = shutil.copytree(folder, tmp_path / f"{folder.name}-{loss}")
                told = spec | {"spec": spec["spec"] | {"loss": loss}}
                (copy / "result.json").write_text(json.dumps(told))
    plane, norms = features_section(settings_of(collect(tmp_path).records)).figures
    for name in ("plain (cross-entropy)", "plain (logit adjusted)"):
        assert f"{name}, epoch 15" in plane.svg
        assert f"{name} ends at" in norms.caption
