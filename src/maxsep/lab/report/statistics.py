"""Compute means with 95 % t-intervals, paired differences, and the words for them that docs/plan.md defines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, TypeVar

from maxsep.packages import load_package

MARGIN = 0.01
"""One point: a difference whose interval lies within it is called none, and a reached cell agrees within it."""
_FLAT = 1e-9
"""Differences that vary less than this do not vary: the t statistic would divide by rounding error."""
_MOST = 1000

Key = TypeVar("Key")


@dataclass(frozen=True)
class MeanInterval:
    """A mean over n repetitions with its sample standard deviation and 95 % t-interval; one value has neither."""

    mean: float
    std: float | None
    low: float | None
    high: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanInterval:
        """Summarise at least one value."""
        mean, n = fmean(values), len(values)
        if n == 1:
            return cls(mean, None, None, None, 1)
        half = _quantile(n - 1) * stdev(values) / math.sqrt(n)
        return cls(mean, stdev(values), mean - half, mean + half, n)


@dataclass(frozen=True)
class Difference:
    """A mean difference with its 95 % t-interval, and the one word that the interval allows.

    Every comparison of report and `compare` is one of these. Values are fractions; texts are in points (hundredths).
    """

    estimate: float
    low: float | None
    high: float | None
    n: int
    std: float | None = None
    p: float | None = None
    unit: str = "seed"
    lower_is_better: bool = False
    step: float = 0.0
    """What one test image changes: where that is more than a point, no number of repetitions shows a point."""

    @classmethod
    def paired(
        cls, values: Mapping[Key, float], reference: Mapping[Key, float], unit: str = "seed", lower: bool = False
    ) -> Difference | None:
        """Subtract a reference seed by seed, or split by split (`unit`); None without a common one."""
        common = [key for key in values if key in reference]
        if not common:
            return None
        summary = MeanInterval.of([values[key] - reference[key] for key in common])
        low, high, p = summary.low, summary.high, None
        if summary.std is not None and summary.std <= _FLAT:  # no spread to take an interval from
            low = high = None
        elif summary.std is not None:
            statistic = abs(summary.mean) / summary.std * math.sqrt(summary.n)
            p = 2 * float(load_package("scipy.special", "lab").stdtr(summary.n - 1, -statistic))
        return cls(summary.mean, low, high, summary.n, summary.std, p, unit, lower)

    @classmethod
    def to_printed(
        cls, values: Sequence[float], printed: float, std: float | None = None, runs: int = 1, lower: bool = False
    ) -> Difference:
        """Subtract a printed number from our mean; with the `std` of several `runs` the interval is Welch's."""
        ours = MeanInterval.of(values)
        estimate = ours.mean - printed
        if ours.std is None or ours.low is None:
            return cls(estimate, None, None, ours.n, lower_is_better=lower)
        half = ours.mean - ours.low
        if std is not None:
            parts = ours.std**2 / ours.n, std**2 / runs
            freedom = sum(parts) ** 2 / (parts[0] ** 2 / (ours.n - 1) + parts[1] ** 2 / (runs - 1))
            half = _quantile(freedom) * math.sqrt(sum(parts))
        return cls(estimate, estimate - half, estimate + half, ours.n, ours.std, lower_is_better=lower)

    @property
    def excludes_zero(self) -> bool:
        """Return whether the 95 % interval excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def word(self) -> str:
        """`better`, `worse`, `no difference larger than 1 point`, or `too few seeds`; empty for one repetition.

        Equal differences have no spread to take an interval from: there are too few of them too. Where one test image
        is more than a point, `too few test images` takes the place of the last two words.
        """
        few = f"too few {'test image' if self.step > MARGIN else self.unit}s"
        if self.low is None or self.high is None:
            return few if self.n > 1 else ""
        if self.excludes_zero:
            return "better" if (self.estimate < 0) == self.lower_is_better else "worse"
        within = self.low >= -MARGIN and self.high <= MARGIN and self.step <= MARGIN
        return "no difference larger than 1 point" if within else few

    @property
    def agreement(self) -> str:
        """Against a printed number: `above`, `below`, `agrees` or `undecided`; empty without an interval."""
        if self.excludes_zero:
            return "above" if self.estimate > 0 else "below"
        return "" if self.low is None else "agrees" if abs(self.estimate) <= MARGIN else "undecided"

    @property
    def is_reached(self) -> bool | None:
        """Return whether a printed number is reached: ours agrees or is better; None without an interval."""
        return None if self.low is None else self.agreement == "agrees" or self.word == "better"

    @property
    def repetitions_needed(self) -> int | None:
        """About how many repetitions would show a difference of 1 point, where there are too few.

        The half-width of the interval falls to one point.
        """
        if not self.std or self.low is None or self.word != f"too few {self.unit}s":
            return None
        enough = (n for n in range(self.n + 1, _MOST) if _quantile(n - 1) * self.std / math.sqrt(n) <= MARGIN)
        return next(enough, _MOST)

    def format(self, scale: float = 100, digits: int = 1) -> str:
        """Write the estimate with its interval, in points by default."""
        text = signed(scale * self.estimate, digits)
        if self.low is None or self.high is None:
            return text
        return f"{text} [{signed(scale * self.low, digits)}, {signed(scale * self.high, digits)}]"

    @property
    def text(self) -> str:
        """One line: estimate, interval, repetitions, word.

        >>> Difference(0.0072, -0.0069, 0.0212, 3, std=0.0057).text
        '+0.7 points [−0.7, +2.1], 3 seeds: too few seeds (about 4 would show 1 point)'
        """
        estimate, _, ends = self.format().partition(" ")
        line = f"{estimate} points{' ' + ends if ends else ''}, {plural(self.n, self.unit)}"
        advice = f" (about {needed} would show 1 point)" if (needed := self.repetitions_needed) else ""
        if self.word == "too few test images":
            advice = f" (one is {100 * self.step:.1f} points: more {self.unit}s cannot show 1 point)"
        return f"{line}: {self.word}{advice}" if self.word else line

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; fractions."""
        numbers = {"difference": self.estimate, "low": self.low, "high": self.high, "n": self.n, "p": self.p}
        return numbers | {"unit": self.unit, "word": self.word, "repetitions_needed": self.repetitions_needed}


def signed(value: float, digits: int = 1) -> str:
    """Write a number with its sign and a true minus.

    >>> signed(-1.5), signed(-0.04), signed(2, 2)
    ('−1.5', '0.0', '+2.00')
    """
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def plural(count: int, noun: str) -> str:
    """Count things: 1 seed, 3 seeds."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _quantile(freedom: float) -> float:
    """Return the t quantile of a two-sided 95 % interval."""
    return float(load_package("scipy.special", "lab").stdtrit(freedom, 0.975))
