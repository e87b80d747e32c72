import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from maxsep.detect import auroc, average_precision, fpr_at_tpr

MEASURES = [auroc, average_precision, fpr_at_tpr]
few_values = st.lists(st.integers(-4, 4), min_size=1, max_size=40)  # heavy ties
spread_values = st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=40)
scores = (few_values | spread_values).map(lambda values: torch.tensor(values, dtype=torch.float64))


def told_to_sklearn(positive, negative):
    labels = np.r_[np.ones(len(positive)), np.zeros(len(negative))]
    return labels, torch.cat([positive, negative]).numpy()


@given(scores, scores)
def test_areas_are_those_of_scikit_learn(positive, negative):
    labels, values = told_to_sklearn(positive, negative)
    assert auroc(positive, negative) == pytest.approx(roc_auc_score(labels, values), abs=1e-12)
    assert average_precision(positive, negative) == pytest.approx(average_precision_score(labels, values), abs=1e-12)


def test_areas_are_those_of_scikit_learn_on_many_rounded_scores():
    generator = torch.Generator().manual_seed(0)
    positive = (torch.randn(5000, generator=generator) * 3 + 2).round(decimals=1)
    negative = (torch.randn(1000, generator=generator) * 3).round(decimals=1)
    labels, values = told_to_sklearn(positive, negative)
    assert auroc(positive, negative) == pytest.approx(roc_auc_score(labels, values), abs=1e-13)
    assert average_precision(positive, negative) == pytest.approx(average_precision_score(labels, values), abs=1e-13)


@given(scores, scores, st.sampled_from([0.5, 0.8, 0.95, 1.0]))
def test_the_first_sufficient_recall_is_that_of_the_roc_curve(positive, negative, tpr):
    false, true, _ = roc_curve(*told_to_sklearn(positive, negative), drop_intermediate=False)
    assert fpr_at_tpr(positive, negative, tpr, rule="at_least") == pytest.approx(false[np.argmax(true >= tpr)])


def closest_by_the_book(positive, negative, tpr):
    values = sorted({*positive.tolist(), *negative.tolist()})
    recall = {t: sum(p >= t for p in positive.tolist()) / len(positive) for t in values}
    first_full = max(t for t in values if recall[t] == 1)
    chosen = min((t for t in values if t >= first_full), key=lambda t: (abs(recall[t] - tpr), t))
    return sum(n >= chosen for n in negative.tolist()) / len(negative)


@given(scores, scores, st.sampled_from([0.5, 0.8, 0.95, 1.0]))
def test_the_closest_recall_is_chosen(positive, negative, tpr):
    assert fpr_at_tpr(positive, negative, tpr) == closest_by_the_book(positive, negative, tpr)


def test_the_closest_recall_may_lie_below_the_wanted_one():
    positive = torch.arange(1.0, 17.0)  # 16 scores: recall 15/16 = 0.9375 is closer to 0.95 than 1
    negative = torch.tensor([1.5, 1.5, 0.5, 0.5, 9.5])
    # 2 and 1.5 both have that recall, and the lower of them lets two more in
    assert fpr_at_tpr(positive, negative) == pytest.approx(3 / 5)
    assert fpr_at_tpr(positive, torch.tensor([1.0, 1.0, 9.5, 0.0])) == pytest.approx(1 / 4)
    assert fpr_at_tpr(positive, torch.tensor([1.0, 1.0, 9.5, 0.0]), rule="at_least") == pytest.approx(3 / 4)


@settings(max_examples=50)
@given(few_values, few_values, st.randoms())
def test_only_the_order_of_scores_matters_and_not_that_of_samples(positive, negative, random):
    a, b = torch.tensor(positive, dtype=torch.float64), torch.tensor(negative, dtype=torch.float64)
    random.shuffle(positive)
    random.shuffle(negative)
    c, d = torch.tensor(positive, dtype=torch.float64), torch.tensor(negative, dtype=torch.float64)
    for measure in MEASURES:
        value = measure(a, b)
        assert measure(a.exp(), b.exp()) == value
        assert measure(a**3 * 1e5 + 7, b**3 * 1e5 + 7) == value
        assert measure(c, d) == value


@given(scores, scores)
def test_auroc_is_symmetric(positive, negative):
    area = auroc(positive, negative)
    assert auroc(-negative, -positive) == area
    assert auroc(negative, positive) == pytest.approx(1 - area, abs=1e-15)


def test_constant_scores_are_chance():
    same, more = torch.ones(5), torch.ones(3)
    assert auroc(same, more) == 0.5
    assert average_precision(same, more) == pytest.approx(5 / 8)
    assert fpr_at_tpr(same, more) == fpr_at_tpr(same, more, rule="at_least") == 1


def test_single_samples_and_infinite_scores_have_an_answer():
    low, high = torch.tensor([-math.inf]), torch.tensor([math.inf])
    assert [measure(high, low) for measure in MEASURES] == [1, 1, 0]
    assert [measure(low, high) for measure in MEASURES] == [0, 0.5, 1]
    assert auroc(high, high) == 0.5


def test_types_may_differ_and_gradients_do_not_matter():
    assert auroc(torch.tensor([0.5], dtype=torch.bfloat16), torch.tensor([0.25], requires_grad=True)) == 1


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (torch.zeros(0), ValueError, "is empty, and no rate of no samples is defined"),
        (torch.tensor([1.0, math.nan]), ValueError, "holds 1 NaN among 2 scores, and NaN has no rank"),
        (torch.zeros(2, 2), ValueError, r"must be one-dimensional, one score per sample, got shape \(2, 2\)"),
        (torch.tensor(1.0), ValueError, r"must be one-dimensional, one score per sample, got shape \(\)"),
        (torch.ones(2, dtype=torch.int64), TypeError, "must be a real floating-point tensor, got dtype torch.int64"),
        ([1.0], TypeError, "must be a tensor, got list"),
    ],
)
def test_sets_that_cannot_be_ranked_are_explained(measure, values, kind, message):
    with pytest.raises(kind, match="positive " + message):
        measure(values, torch.ones(1))
    with pytest.raises(kind, match="negative " + message):
        measure(torch.ones(1), values)


@pytest.mark.parametrize("tpr", [0, 1.5, -0.1, math.nan, True, "0.95"])
def test_a_rate_outside_its_range_is_explained(tpr):
    with pytest.raises(ValueError, match=r"tpr must be a number in \(0, 1\], got"):
        fpr_at_tpr(torch.ones(1), torch.ones(1), tpr)


def test_an_unknown_rule_is_explained():
    with pytest.raises(ValueError, match="rule must be 'closest' or 'at_least', got 'nearest'"):
        fpr_at_tpr(torch.ones(1), torch.ones(1), rule="nearest")
