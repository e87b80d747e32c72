"""Mean, spread and a paired test: whether a difference is more than the noise of seeds."""

from __future__ import annotations

import dataclasses
import statistics as _statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

MIN_SEEDS = 3
LEVEL = 0.05
TEST = "paired two-sided t-test over common seeds (scipy.stats.ttest_rel)"
_FLAT = 1e-9
"""Differences that vary less than this do not vary: the t statistic would divide by rounding error."""

Verdict = Literal["more than noise", "noise", "not testable", "identical"]


@dataclass(frozen=True)
class Summary:
    """A mean with its sample standard deviation (n - 1), which one value does not have."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Comparison:
    """A difference of means over common seeds and what a test says about it.

    `adjusted` is the p-value after Holm's correction for the `tests` shown, this one included; without others it is p.
    """

    difference: float
    n: int
    p: float | None
    verdict: Verdict
    reason: str = ""
    adjusted: float | None = None
    tests: int = 1

    @property
    def passes(self) -> bool:
        """Whether the test, taken alone, calls the difference more than noise."""
        return self.p is not None and self.p < LEVEL

    @property
    def holds(self) -> bool:
        """Whether it still does after correction for the number of tests."""
        corrected = self.p if self.adjusted is None else self.adjusted
        return corrected is not None and corrected < LEVEL


def summarise(values: Sequence[float]) -> Summary:
    """Mean, sample standard deviation and number of values.

    >>> summarise([1.0, 2.0, 3.0])
    Summary(mean=2.0, std=1.0, n=3)
    """
    if not values:
        raise ValueError("cannot summarise no values; give at least one.")
    std = _statistics.stdev(values) if len(values) > 1 else None
    return Summary(mean(values), std, len(values))


def highest(summaries: Iterable[Summary | None]) -> float | None:
    """The highest of several means over enough seeds; nothing if there is but one, which is the best of nothing.

    >>> three, others = summarise([0.5, 0.6, 0.7]), summarise([0.3, 0.4, 0.5])
    >>> highest([three, others, summarise([0.9])]), highest([three, None, summarise([0.9])])
    (0.6, None)
    """
    means = [summary.mean for summary in summaries if summary is not None and summary.n >= MIN_SEEDS]
    return max(means) if len(means) > 1 else None


def mean(values: Sequence[float]) -> float:
    """The mean of numbers as they are written, so that a tie of decimals stays a tie.

    The binary number nearest to 0.354 is not 0.354. Two accuracies of 0.354 and 0.3411 have the mean 0.34755.

    >>> mean([0.354, 0.3411])
    0.34755
    """
    return float(_exact_mean([_exact(value) for value in values]))


def adjust(comparisons: Sequence[Comparison | None]) -> list[Comparison | None]:
    """Correct all p-values among some comparisons for their number, by Holm's method.

    >>> found = adjust([Comparison(0.1, 3, 0.02, "more than noise"), None, Comparison(0.0, 3, 0.5, "noise")])
    >>> found[0].adjusted, found[0].holds
    (0.04, True)
    """
    corrected = holm([c.p for c in comparisons if c is not None and c.p is not None])
    left, tests = iter(corrected), len(corrected)
    return [
        c if c is None or c.p is None else dataclasses.replace(c, adjusted=next(left), tests=tests) for c in comparisons
    ]


def compare(values: Mapping[int, float], reference: Mapping[int, float]) -> Comparison | None:
    """Compare two arms seed by seed with a paired two-sided t-test.

    Fewer than three common seeds are `not testable`: no p-value is made up. Differences that are the same for every
    seed leave the t statistic undefined, which is said instead of a p-value of zero. None without a common seed.

    Args:
        values: A value for each seed.
        reference: The same for the arm to compare with.

    >>> compare({0: 0.80, 1: 0.81}, {0: 0.70, 1: 0.73}).verdict
    'not testable'
    >>> compare({0: 0.80, 1: 0.81, 2: 0.79}, {0: 0.70, 1: 0.73, 2: 0.70}).verdict
    'more than noise'
    """
    seeds = sorted(set(values) & set(reference))
    if not seeds:
        return None
    differences = [_exact(values[seed]) - _exact(reference[seed]) for seed in seeds]
    mean = float(_exact_mean(differences))
    if len(seeds) < MIN_SEEDS:
        count = f"{len(seeds)} common seed{'s' if len(seeds) > 1 else ''}"
        return Comparison(mean, len(seeds), None, "not testable", f"{count}, at least {MIN_SEEDS} needed")
    if max(differences) - min(differences) <= _FLAT:
        if abs(mean) <= _FLAT:
            return Comparison(0.0, len(seeds), None, "identical", "the same value for every seed")
        return Comparison(mean, len(seeds), None, "not testable", "the difference is the same for every seed")
    p = _paired_p([values[seed] for seed in seeds], [reference[seed] for seed in seeds])
    return Comparison(mean, len(seeds), p, "more than noise" if p < LEVEL else "noise")


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number by Holm's step-down method, in the order given.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _exact(value: float) -> Fraction:
    return Fraction(repr(float(value)))


def _exact_mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction()) / len(values)


def _paired_p(values: Sequence[float], reference: Sequence[float]) -> float:
    try:
        from scipy.stats import ttest_rel
    except ImportError as error:
        raise ImportError('the paired test needs scipy: pip install "maxsep[lab]"') from error
    return float(ttest_rel(values, reference).pvalue)
