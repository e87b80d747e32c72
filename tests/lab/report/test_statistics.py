import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from maxsep.lab.report.controls import Method
from maxsep.lab.report.statistics import Difference, Summary

FRACTIONS = st.floats(0, 1, allow_nan=False)


@given(st.lists(st.tuples(FRACTIONS, FRACTIONS), min_size=1, max_size=8))
def test_a_difference_is_the_paired_t_interval_of_scipy(pairs):
    ours, theirs = (dict(enumerate(values)) for values in zip(*pairs, strict=True))
    found = Difference.paired(ours, theirs)
    differences = [a - b for a, b in pairs]
    assert found.n == len(pairs)
    assert math.isclose(found.estimate, np.mean(differences), abs_tol=1e-9)
    if len(pairs) == 1:
        assert (found.low, found.p, found.word) == (None, None, "")
    elif np.ptp(differences) > 1e-6:
        test = stats.ttest_rel(*zip(*pairs, strict=True))
        interval = test.confidence_interval(0.95)
        assert [found.low, found.high, found.p] == pytest.approx([*interval, test.pvalue], abs=1e-9)


def test_only_common_repetitions_count():
    found = Difference.paired({1: 0.70, 2: 0.75, 3: 0.71, 9: 0.1}, {1: 0.60, 2: 0.66, 3: 0.60, 8: 0.9})
    assert (found.n, found.word) == (3, "better")
    assert Difference.paired({0: 0.5}, {1: 0.5}) is None


@pytest.mark.parametrize(
    ("low", "high", "lower", "word"),
    [
        (0.001, 0.03, False, "better"),
        (0.001, 0.03, True, "worse"),
        (-0.03, -0.001, False, "worse"),
        (-0.03, -0.001, True, "better"),
        (-0.01, 0.01, False, "no difference larger than 1 point"),
        (-0.01, 0.011, False, "too few seeds"),
        (None, None, False, ""),
    ],
)
def test_the_word_follows_from_the_interval_alone(low, high, lower, word):
    estimate = 0.01 if low is None else (low + high) / 2
    assert Difference(estimate, low, high, 3, lower_is_better=lower).word == word


def test_differences_without_spread():
    same = {0: 0.5, 1: 0.6, 2: 0.7}
    for shift in (0.0, 0.1):
        found = Difference.paired({seed: value + shift for seed, value in same.items()}, same)
        assert (found.low, found.p, found.word) == (None, None, ""), "no interval can be taken from no spread"


def test_text_and_json():
    found = Difference.paired({0: 0.80, 1: 0.83, 2: 0.79}, {0: 0.80, 1: 0.80, 2: 0.80}, unit="split")
    assert found.text.startswith("+0.7 points [")
    assert "3 splits: too few splits (about" in found.text
    assert found.to_dict()["repetitions_needed"] == found.repetitions_needed > 3
    assert Difference(0.01, None, None, 1).text == "+1.0 points, 1 seed"


def test_as_many_repetitions_as_it_asks_for_would_show_a_point():
    found = Difference(0.0, -0.02, 0.02, 3, std=0.01)
    n = found.repetitions_needed
    half = [stats.t.ppf(0.975, k - 1) * 0.01 / math.sqrt(k) for k in (n - 1, n)]
    assert half[1] <= 0.01 < half[0]


def test_the_interval_covers_the_truth_in_95_of_100_simulations():
    rng = np.random.default_rng(0)
    draws = rng.normal(0.5, 0.1, (2000, 3))
    covered = [(found := Summary.of(list(row))).low <= 0.5 <= found.high for row in draws]
    assert 0.935 < np.mean(covered) < 0.965


def test_reached_takes_welchs_interval_where_the_paper_has_five_runs():
    ours, mean, std = [0.70, 0.72, 0.71], 0.69, 0.01
    found = Difference.to_printed(ours, mean, std, 5)
    welch = stats.ttest_ind_from_stats(np.mean(ours), np.std(ours, ddof=1), 3, mean, std, 5, equal_var=False)
    freedom = welch.df if hasattr(welch, "df") else None
    half = (found.high - found.low) / 2
    assert found.estimate == pytest.approx(0.02)
    statistic = found.estimate / math.sqrt(np.var(ours, ddof=1) / 3 + std**2 / 5)
    assert welch.statistic == pytest.approx(statistic)
    if freedom is not None:
        assert half == pytest.approx(stats.t.ppf(0.975, freedom) * found.estimate / statistic)
    single = Difference.to_printed(ours, mean)
    assert (single.low, single.high) == pytest.approx([end - mean for end in stats.t.interval(
        0.95, 2, np.mean(ours), stats.sem(ours))])  # fmt: skip


@pytest.mark.parametrize(
    ("values", "lower", "word", "reached"),
    [
        ([0.75, 0.751, 0.749], False, "above", True),
        ([0.75, 0.751, 0.749], True, "above", False),
        ([0.65, 0.651, 0.649], False, "below", False),
        ([0.65, 0.651, 0.649], True, "below", True),
        ([0.69, 0.71, 0.705], False, "agrees", True),
        ([0.60, 0.75, 0.72], False, "agrees", True),
        ([0.60, 0.90, 0.72], False, "undecided", False),
        ([0.75], False, "", None),
    ],
)
def test_the_words_of_the_plan(values, lower, word, reached):
    found = Difference.to_printed(values, 0.7 if word != "agrees" or values[0] > 0.6 else 0.695, lower=lower)
    assert (found.agreement, found.is_reached) == (word, reached)


def test_of_comparisons_without_a_difference_about_one_in_twenty_excludes_zero():
    rng = random.Random(0)
    words = []
    for _ in range(1000):
        values, reference = ({seed: rng.gauss(0.7, 0.01) for seed in range(3)} for _ in range(2))
        words.append(Difference.paired(values, reference).word)
    assert 30 <= sum(word in ("better", "worse") for word in words) <= 70


def test_the_radius_is_found_on_long_tailed_cifar10_with_three_seeds(recorded):
    settings = [s for s in recorded if s.spec.dataset == "cifar10" and s.spec.imbalance == 0.01]
    found = []
    for setting in settings:
        plain, small = Method("plain"), [Method(head, 0.1) for head in ("maxsep", "control", "scaled")]
        differences = [d for method in small if (d := setting.difference(method, plain)) and d.n >= 3]
        found += [(difference.word, difference.estimate) for difference in differences]
    assert found
    assert "better" in {word for word, _ in found}
    assert not any(word == "worse" for word, _ in found)
