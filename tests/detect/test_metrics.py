import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from maxsep.detect import auroc, average_precision, fpr_at_tpr, ood_metrics, oscr, threshold_at_tpr

METRICS = [auroc, average_precision, fpr_at_tpr]
ties = st.lists(st.integers(-4, 4), min_size=1, max_size=40)
spread = st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=40)
scores = (ties | spread).map(lambda values: torch.tensor(values, dtype=torch.float64))
rates = st.sampled_from([0.5, 0.55, 0.8, 0.95, 1.0])


def labels_and_scores(positive, negative):
    return np.r_[np.ones(len(positive)), np.zeros(len(negative))], torch.cat([positive, negative]).numpy()


@given(scores, scores)
def test_areas_equal_scikit_learn(positive, negative):
    labels, values = labels_and_scores(positive, negative)
    assert auroc(positive, negative) == pytest.approx(roc_auc_score(labels, values), abs=1e-12)
    assert average_precision(positive, negative) == pytest.approx(average_precision_score(labels, values), abs=1e-12)


@given(scores, scores, rates)
def test_fpr_at_least_equals_the_roc_curve_of_scikit_learn(positive, negative, tpr):
    false, true, _ = roc_curve(*labels_and_scores(positive, negative), drop_intermediate=False)
    assert fpr_at_tpr(positive, negative, tpr, rule="at_least") == pytest.approx(false[np.argmax(true >= tpr)])


def closest_by_definition(positive, negative, tpr):
    values = sorted({*positive.tolist(), *negative.tolist()})
    recall = {t: sum(p >= t for p in positive.tolist()) / len(positive) for t in values}
    first_full = max(t for t in values if recall[t] == 1)
    chosen = min((t for t in values if t >= first_full), key=lambda t: (abs(recall[t] - tpr), t))
    return sum(n >= chosen for n in negative.tolist()) / len(negative)


@given(scores, scores, rates)
def test_fpr_closest_equals_its_definition(positive, negative, tpr):
    assert fpr_at_tpr(positive, negative, tpr) == closest_by_definition(positive, negative, tpr)


def test_constant_single_and_infinite_scores():
    assert [metric(torch.ones(5), torch.ones(3)) for metric in METRICS] == [0.5, 5 / 8, 1]
    low, high = torch.tensor([-math.inf]), torch.tensor([math.inf])
    assert [metric(high, low) for metric in METRICS] == [1, 1, 0]
    assert [metric(low, high) for metric in METRICS] == [0, 0.5, 1]
    assert auroc(high, high) == 0.5
    assert auroc(torch.tensor([0.5], dtype=torch.bfloat16), torch.tensor([0.25], requires_grad=True)) == 1


KNOWN, UNKNOWN = torch.arange(1.0, 17.0), torch.tensor([1.0, 1.0, 9.5, 0.0])


def test_ood_metrics_in_both_conventions():
    assert ood_metrics(KNOWN.numpy()[::-1], UNKNOWN.tolist()) == ood_metrics(KNOWN, UNKNOWN)
    assert auroc([1 + 1e-12], np.ones(1)) == 1  # in float64
    assert ood_metrics(KNOWN, UNKNOWN) == {
        "auroc": auroc(KNOWN, UNKNOWN),
        "aupr": average_precision(KNOWN, UNKNOWN),
        "fpr95": 0.25,
        "fpr95_at_least": 0.75,
    }
    other = ood_metrics(KNOWN, UNKNOWN, positive="ood")
    assert other == ood_metrics(-UNKNOWN, -KNOWN)
    assert other["auroc"] == ood_metrics(KNOWN, UNKNOWN)["auroc"]
    # all four unknown samples must be rejected, and with the one at 9.5 the known samples 1 to 9 of 16
    assert other["fpr95"] == 9 / 16
    assert other["aupr"] == pytest.approx(0.25 * 1 + 0.5 * 3 / 4 + 0.25 * 4 / 13)


STEPS = torch.arange(40, dtype=torch.float64)
SETS = {
    "overlapping": (STEPS * 7 % 23 / 4 + 1.5, STEPS[:30] * 11 % 29 / 4 - 1),
    "ties": (STEPS * 3 % 5, STEPS[:25] * 2 % 4 - 1),
    "constant": (torch.zeros(6), torch.zeros(4)),
}
OTHERS = {"overlapping": (0.741667, 0.775), "ties": (0.856, 0.4), "constant": (0.5, 1.0)}
"""AUROC and FPR95 of `OODMetrics` (pytorch-ood 0.4.0) and `compute_all_metrics` (OpenOOD 1.5, 3c35632), which agree."""


@pytest.mark.parametrize("name", SETS)
def test_numbers_of_pytorch_ood_and_openood(name):
    known, unknown = SETS[name]
    ours = ood_metrics(known, unknown, positive="ood")
    assert (ours["auroc"], ours["fpr95_at_least"]) == pytest.approx(OTHERS[name], abs=1e-6)


@given(scores, rates | st.floats(0.001, 1))
def test_a_threshold_accepts_enough_and_the_next_higher_does_not(values, tpr):
    threshold = threshold_at_tpr(values, tpr)
    assert int((values >= threshold).sum()) / len(values) >= tpr
    assert int((values > threshold).sum()) / len(values) < tpr


def test_thresholds_by_hand():
    assert threshold_at_tpr(torch.arange(100.0), 0.55) == 45.0  # 0.55 * 100 is 55.00000000000001
    assert threshold_at_tpr(torch.arange(1000.0)) == 50.0
    assert threshold_at_tpr(torch.tensor([3.0])) == 3.0
    half = torch.rand(101).bfloat16()
    assert (half >= threshold_at_tpr(half, 1.0)).all()


@given(scores, scores, st.randoms())
def test_oscr_counts_the_pairs_of_its_definition(known, unknown, random):
    correct = torch.tensor([random.random() < 0.7 for _ in known])
    pairs = (known[:, None] > unknown) & correct[:, None]
    assert oscr(known, correct, unknown) == pytest.approx(float(pairs.double().mean()), abs=1e-12)
    every = torch.ones_like(correct)
    assert oscr(known, correct, unknown) <= float(correct.double().mean()) + 1e-12
    assert oscr(known, correct, unknown) <= oscr(known, every, unknown) <= auroc(known, unknown)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("values", "error"),
    [
        (torch.zeros(0), ValueError),
        (torch.tensor([1.0, math.nan]), ValueError),
        (torch.ones(2, dtype=torch.int64), TypeError),
    ],
)
def test_invalid_scores(metric, values, error):
    with pytest.raises(error, match="positive"):
        metric(values, torch.ones(1))
    with pytest.raises(error, match="negative"):
        metric(torch.ones(1), values)


def test_invalid_arguments():
    one = torch.ones(1)
    for tpr in (0, 1.5, math.nan, True, "0.95"):
        with pytest.raises((ValueError, TypeError), match="tpr"):
            fpr_at_tpr(one, one, tpr)
        with pytest.raises((ValueError, TypeError), match="tpr"):
            threshold_at_tpr(one, tpr)
    with pytest.raises(ValueError, match="rule"):
        fpr_at_tpr(one, one, rule="nearest")
    with pytest.raises(ValueError, match="positive"):
        ood_metrics(one, one, positive="in")
    with pytest.raises(ValueError, match="ood_scores"):
        ood_metrics(one, one[:0])
    for correct, error in [(one, TypeError), ("a", TypeError), (torch.tensor([True, True]), ValueError)]:
        with pytest.raises(error, match="known_correct"):
            oscr(one, correct, one)
