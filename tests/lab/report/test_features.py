"""Features in the plane: the section of lab/report/features.py."""

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
