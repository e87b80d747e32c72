import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from maxsep.lab.report.statistics import LEVEL, Comparison, adjust, compare, holm, mean, summarise

FRACTIONS = st.floats(0, 1, allow_nan=False)


@given(st.lists(st.tuples(FRACTIONS, FRACTIONS), min_size=1, max_size=8))
def test_a_p_value_is_given_only_where_a_test_exists(pairs):
    ours = {seed: a for seed, (a, _) in enumerate(pairs)}
    theirs = {seed: b for seed, (_, b) in enumerate(pairs)}
    found = compare(ours, theirs)
    assert found.n == len(pairs)
    assert math.isclose(found.difference, sum(a - b for a, b in pairs) / len(pairs), abs_tol=1e-9)
    if len(pairs) < 3:
        assert (found.p, found.verdict) == (None, "not testable")
    if found.p is not None:
        assert 0 <= found.p <= 1
        assert found.verdict == ("more than noise" if found.p < LEVEL else "noise")


def test_the_test_is_the_paired_one_over_common_seeds():
    ours, theirs = {1: 0.70, 2: 0.75, 3: 0.71, 9: 0.1}, {1: 0.60, 2: 0.66, 3: 0.60, 8: 0.9}
    found = compare(ours, theirs)
    assert found.n == 3
    assert found.p == stats.ttest_rel([0.70, 0.75, 0.71], [0.60, 0.66, 0.60]).pvalue
    assert found.verdict == "more than noise"


def test_noise_is_called_noise():
    assert compare({0: 0.5, 1: 0.6, 2: 0.7}, {0: 0.6, 1: 0.5, 2: 0.71}).verdict == "noise"


def test_degenerate_differences_get_no_p_value():
    same = {0: 0.5, 1: 0.6, 2: 0.7}
    assert compare(same, same).verdict == "identical"
    shifted = compare({seed: value + 0.1 for seed, value in same.items()}, same)
    assert (shifted.verdict, shifted.p) == ("not testable", None)
    assert shifted.reason == "the difference is the same for every seed"


def test_too_few_seeds_say_so():
    assert compare({0: 0.5}, {0: 0.4}).reason == "1 common seed, at least 3 needed"
    assert compare({0: 0.5, 1: 0.5}, {0: 0.4, 1: 0.3}).reason == "2 common seeds, at least 3 needed"
    assert compare({0: 0.5}, {1: 0.4}) is None


def test_summary_uses_the_sample_deviation():
    found = summarise([1.0, 2.0, 3.0])
    assert (found.mean, found.std, found.n) == (2.0, 1.0, 3)
    assert summarise([1.0]).std is None
    with pytest.raises(ValueError, match="cannot summarise no values"):
        summarise([])


@given(st.lists(st.floats(0, 1, allow_nan=False), max_size=12))
def test_holm_lies_between_raw_and_bonferroni(values):
    adjusted = holm(values)
    for raw, new in zip(values, adjusted, strict=True):
        assert raw <= new <= min(1.0, len(values) * raw) or math.isclose(raw, new) or new == max(adjusted)
    if values:
        assert math.isclose(min(adjusted), min(1.0, len(values) * min(values)))
    order = sorted(range(len(values)), key=lambda i: values[i])
    assert all(adjusted[a] <= adjusted[b] for a, b in itertools.pairwise(order))


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=6))
def test_means_of_whole_images_are_exact(hits):
    assert mean([hit / 10_000 for hit in hits]) == float(Fraction(sum(hits), 10_000 * len(hits)))


def test_correction_leaves_what_has_no_p_value():
    untested = Comparison(0.1, 2, None, "not testable")
    first, second, third = adjust(
        [Comparison(0.1, 3, 0.03, "more than noise"), untested, Comparison(0.1, 3, 0.04, "noise")]
    )
    assert second is untested
    assert (first.adjusted, third.adjusted) == (0.06, 0.06)
    assert (first.tests, third.tests) == (2, 2)
    assert (first.passes, first.holds, untested.passes, untested.holds) == (True, False, False, False)
    assert Comparison(0.1, 3, 0.03, "more than noise").holds, "alone, it needs no correction"
