import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from maxsep.lab.report.statistics import Difference

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
        (None, None, False, "too few seeds"),
    ],
)
def test_the_word_follows_from_the_interval_alone(low, high, lower, word):
    estimate = 0.01 if low is None else (low + high) / 2
    assert Difference(estimate, low, high, 3, lower_is_better=lower).word == word


def test_differences_without_spread():
    same = {0: 0.5, 1: 0.6, 2: 0.7}
    for shift in (0.0, 0.1):
        found = Difference.paired({seed: value + shift for seed, value in same.items()}, same)
        assert (found.low, found.p, found.word) == (None, None, "too few seeds")
        assert found.repetitions_needed is None, "without a spread nothing can be said of more seeds"


def test_as_many_repetitions_as_it_asks_for_would_show_a_point_and_there_are_too_few_now():
    found = Difference(0.0, -0.02, 0.02, 3, std=0.01)
    n = found.repetitions_needed
    half = [stats.t.ppf(0.975, k - 1) * 0.01 / math.sqrt(k) for k in (n - 1, n)]
    assert half[1] <= 0.01 < half[0]
    assert Difference(-0.0035, -0.012, 0.005, 3, std=0.0034).to_dict()["repetitions_needed"] == 4
    assert Difference(0.02, 0.01, 0.03, 3, std=0.004).repetitions_needed is None
    coarse = Difference(0.0, -0.009, 0.009, 30, std=0.01, step=1 / 30)
    assert (coarse.word, coarse.repetitions_needed) == ("too few test images", None)


def test_reached_takes_welchs_interval_where_the_paper_has_five_runs():
    ours, mean, std = [0.70, 0.72, 0.71], 0.69, 0.01
    found = Difference.to_printed(ours, mean, std, 5)
    theirs = mean + std * stats.zscore(np.arange(5), ddof=1)
    interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert (found.estimate, found.low, found.high) == pytest.approx((0.02, *interval))
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
