import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import auc, precision_recall_curve

from maxsep.detect import auroc, average_precision, fpr_at_tpr, ood_metrics, threshold_at_tpr

KNOWN = torch.arange(1.0, 17.0)
OTHERS = torch.tensor([1.0, 1.0, 9.5, 0.0])


def test_in_distribution_is_positive_by_default():
    assert ood_metrics(KNOWN, OTHERS) == {
        "auroc": auroc(KNOWN, OTHERS),
        "aupr": average_precision(KNOWN, OTHERS),
        "fpr95": 0.25,
        "fpr95_at_least": 0.75,
    }


def test_the_other_convention_is_the_same_measure_with_roles_and_signs_exchanged():
    others = ood_metrics(KNOWN, OTHERS, positive="ood")
    assert others == ood_metrics(-OTHERS, -KNOWN)
    assert others["auroc"] == ood_metrics(KNOWN, OTHERS)["auroc"]
    # of four outsiders all must be caught, and the last one hides among the known: 1 to 9 of 16 are turned away
    assert others["fpr95"] == fpr_at_tpr(-OTHERS, -KNOWN) == 9 / 16
    assert others["aupr"] == pytest.approx(0.25 * 1 + 0.5 * 3 / 4 + 0.25 * 4 / 13)


def test_chance_is_the_base_rate_of_the_paper_s_draw():
    told = ood_metrics(torch.zeros(10_000), torch.zeros(2_000))
    assert told == {"auroc": 0.5, "aupr": pytest.approx(0.8333, abs=1e-4), "fpr95": 1.0, "fpr95_at_least": 1.0}
    assert ood_metrics(torch.zeros(10_000), torch.zeros(2_000), positive="ood")["aupr"] == pytest.approx(1 / 6)


def test_perfect_and_reversed_detectors():
    perfect = {"auroc": 1.0, "aupr": 1.0, "fpr95": 0.0, "fpr95_at_least": 0.0}
    assert ood_metrics(KNOWN + 100, OTHERS) == perfect
    assert ood_metrics(KNOWN + 100, OTHERS, positive="ood") == perfect
    assert ood_metrics(torch.ones(1), torch.zeros(1)) == perfect
    wrong = ood_metrics(KNOWN - 100, OTHERS)
    assert (wrong["auroc"], wrong["fpr95"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("known", "others", "message"),
    [
        (torch.zeros(0), OTHERS, "id_scores is empty"),
        (KNOWN, torch.zeros(0), "ood_scores is empty"),
        (KNOWN, torch.full((2,), math.nan), "ood_scores holds 2 NaN among 2"),
        (KNOWN[:, None], OTHERS, r"id_scores must be one-dimensional.*got shape \(16, 1\)"),
    ],
)
def test_bad_sets_are_named(known, others, message):
    with pytest.raises(ValueError, match=message):
        ood_metrics(known, others)


def test_an_unknown_positive_class_is_explained():
    with pytest.raises(ValueError, match="positive must be 'id' or 'ood', got 'in'"):
        ood_metrics(KNOWN, OTHERS, positive="in")


@given(
    st.lists(st.integers(-5, 5) | st.floats(-9, 9), min_size=1, max_size=60),
    st.sampled_from([0.05, 0.5, 0.55, 0.9, 0.95, 1.0]) | st.floats(0.001, 1),
)
def test_a_threshold_keeps_enough_and_the_next_higher_would_not(values, tpr):
    scores = torch.tensor(values, dtype=torch.float64)
    threshold = threshold_at_tpr(scores, tpr)
    assert int((scores >= threshold).sum()) / len(values) >= tpr
    assert int((scores > threshold).sum()) / len(values) < tpr


def test_a_share_that_is_no_binary_fraction_is_met_exactly():
    assert threshold_at_tpr(torch.arange(100.0), 0.55) == 45.0  # 0.55 * 100 is 55.00000000000001
    assert threshold_at_tpr(torch.arange(1000.0)) == 50.0


def test_a_threshold_survives_the_number_format_of_the_scores():
    scores = torch.rand(101).bfloat16()
    assert (scores >= threshold_at_tpr(scores, 1.0)).all()


def test_thresholds_of_odd_sets():
    assert threshold_at_tpr(torch.tensor([3.0])) == 3.0
    assert threshold_at_tpr(torch.full((7,), 2.0)) == 2.0
    with pytest.raises(ValueError, match="id_scores is empty"):
        threshold_at_tpr(torch.zeros(0))
    with pytest.raises(ValueError, match=r"tpr must be a number in \(0, 1\], got 95"):
        threshold_at_tpr(torch.zeros(3), 95)


_STEPS = torch.arange(40, dtype=torch.float64)
MADE = {
    "overlapping": (_STEPS * 7 % 23 / 4 + 1.5, _STEPS[:30] * 11 % 29 / 4 - 1),
    "ties": (_STEPS * 3 % 5, _STEPS[:25] * 2 % 4 - 1),
    "constant": (torch.zeros(6), torch.zeros(4)),
}
PYTORCH_OOD = {
    "overlapping": {"AUROC": 0.741667, "AUPR-IN": 0.789793, "AUPR-OUT": 0.747719, "FPR95TPR": 0.775},
    "ties": {"AUROC": 0.856, "AUPR-IN": 0.922378, "AUPR-OUT": 0.814913, "FPR95TPR": 0.4},
    "constant": {"AUROC": 0.5, "AUPR-IN": 0.8, "AUPR-OUT": 0.7, "FPR95TPR": 1.0},
}
"""What `OODMetrics` of pytorch-ood (commit d047673) answers for the made scores, negated, as outlier scores."""


@pytest.mark.parametrize("name", MADE)
def test_numbers_of_pytorch_ood(name):
    """Its FPR95 is ours by the name of that convention; its AUPR joins the points of the curve by straight lines."""
    known, others = MADE[name]
    theirs, ours = PYTORCH_OOD[name], ood_metrics(known, others, positive="ood")
    assert ours["auroc"] == pytest.approx(theirs["AUROC"], abs=1e-6)
    assert ours["fpr95_at_least"] == pytest.approx(theirs["FPR95TPR"], abs=1e-6)
    is_known = np.arange(len(known) + len(others)) < len(known)
    values = torch.cat([known, others]).numpy()
    for wanted, scores, key in ((is_known, values, "AUPR-IN"), (~is_known, -values, "AUPR-OUT")):
        precision, recall, _ = precision_recall_curve(wanted, scores)
        assert auc(recall, precision) == pytest.approx(theirs[key], abs=1e-6)
        triangles = (-np.diff(recall) * np.diff(precision) / 2).sum()  # between the straight lines and our steps
        positive = "id" if key == "AUPR-IN" else "ood"
        found = ood_metrics(known, others, positive=positive)["aupr"]
        assert found == pytest.approx(theirs[key] - triangles, abs=1e-6)
