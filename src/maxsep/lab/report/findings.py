"""What the numbers say, in sentences that claim no more than the tests allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from maxsep.lab.report.comparison import MATRIX_HEADS, Method, Setting
from maxsep.lab.report.model import Finding
from maxsep.lab.report.statistics import LEVEL, MIN_SEEDS, Comparison, holm
from maxsep.lab.report.tables import signed, verdict_text

_FEW = 4
_NO_CONTROL = "the control is still missing or has too few seeds"


@dataclass(frozen=True)
class _Pair:
    """A head with the matrix against one without, in one setting."""

    setting: Setting
    method: Method
    comparison: Comparison

    @property
    def won(self) -> bool:
        return self.comparison.verdict == "more than noise" and self.comparison.difference > 0

    @property
    def lost(self) -> bool:
        return self.comparison.verdict == "more than noise" and self.comparison.difference < 0

    @property
    def testable(self) -> bool:
        return self.comparison.verdict != "not testable"

    @property
    def where(self) -> str:
        if self.method.head == "maxsep" and self.method.loss == "cross_entropy":
            return f"{self.setting.label}, radius {self.method.radius:g}"
        return f"{self.setting.label}, {self.method.full_label}"


def find(settings: Sequence[Setting], chosen: Mapping[str, float] | None = None) -> Finding:
    """Compute the headline and its sentences.

    Args:
        settings: Settings evaluated on test data.
        chosen: The radius that held-out data chose for each head, if there was a search.
    """
    plain, control = _pairs(settings, "plain"), _pairs(settings, "control")
    if not plain:
        return Finding(
            "Nothing to compare yet", ("No setting has finished runs of both the matrix and the plain head.",)
        )
    sentences = [_count("the plain head", plain)]
    if control:
        sentences.append(_count("the control, a plain head with the same radius,", control))
    else:
        sentences.append("The control (scaled, at the same radius) has no finished runs beside the matrix yet.")
    sentences += _details(plain, control)
    if chosen:
        sentences.append(_chosen(settings, chosen))
    sentences += [_interpretation(plain, control), *_multiplicity([*plain, *control])]
    headline = _chosen_headline(plain, control, chosen or {}) or _headline(plain, control)
    return Finding(headline, tuple(filter(None, sentences)))


def _pairs(settings: Sequence[Setting], against: str) -> list[_Pair]:
    pairs = []
    for setting in settings:
        for method in setting.entries:
            if method.head not in MATRIX_HEADS:
                continue
            plain, control = setting.plain(method), setting.control(method)
            if against == "control" and (control is plain or (method.head == "maxsep" and method.radius == 1)):
                continue
            other = plain if against == "plain" else control
            comparison = setting.against(method, other)
            if comparison is not None:
                pairs.append(_Pair(setting, method, comparison))
    return pairs


def _chosen_headline(plain: Sequence[_Pair], control: Sequence[_Pair], chosen: Mapping[str, float]) -> str:
    """After a search, the comparison that counts is the one at the radius that was chosen."""
    radius = chosen.get("maxsep")
    pairs = [pair for pair in (plain if radius == 1 else control) if pair.method.radius == radius]
    if len(pairs) != 1:
        return ""
    difference, verdict = pairs[0].comparison.difference, pairs[0].comparison.verdict
    other = "the plain head" if radius == 1 else "a plain head scaled alike"
    start = f"At its chosen radius of {radius:g} the matrix is {abs(100 * difference):.2f} points "
    start += f"{'ahead of' if difference > 0 else 'behind'} {other}"
    ends = {"noise": "no more than seed noise", "more than noise": "more than seed noise"}
    if verdict == "identical":
        return f"At its chosen radius of {radius:g} the matrix equals {other}"
    return f"{start}: {ends.get(verdict, verdict)}"


def _headline(plain: Sequence[_Pair], control: Sequence[_Pair]) -> str:
    if not any(pair.testable for pair in [*plain, *control]):
        return "Too few seeds to tell a gain from noise"
    beyond = sum(pair.won for pair in control)
    below = sum(pair.lost for pair in control)
    won, lost = sum(pair.won for pair in plain), sum(pair.lost for pair in plain)
    if beyond and not below:
        return _beyond(beyond, control)
    if beyond and below:
        return f"Against its control the matrix wins {beyond} and loses {below} of {len(control)} comparisons"
    if won and not lost:
        tested = any(pair.testable for pair in control)
        tail = "none beyond the control at the same radius" if tested else _NO_CONTROL
        return f"Gains over the plain head in {won} of {len(plain)} comparisons, {tail}"
    if lost and not won:
        return f"The matrix lost to the plain head in {lost} of {len(plain)} comparisons"
    if won and lost:
        return f"Mixed: {won} of {len(plain)} comparisons gain over the plain head, {lost} lose to it"
    return "No difference beyond seed noise"


def _beyond(beyond: int, control: Sequence[_Pair]) -> str:
    """A headline for gains over the control, no larger than a correction for their number allows."""
    if len(control) == 1:
        return "The matrix gains beyond its radius in the one comparison made"
    kept = sum(p < LEVEL for p in holm([pair.comparison.p for pair in control if pair.comparison.p is not None]))
    if kept == 0:
        return f"{beyond} of {len(control)} comparisons gain beyond the radius, none after correction for their number"
    return f"The matrix gains beyond its radius in {beyond} of {len(control)} comparisons ({kept} after correction)"


def _count(name: str, pairs: Sequence[_Pair]) -> str:
    testable = [pair for pair in pairs if pair.testable]
    missing = len(pairs) - len(testable)
    if not testable:
        return (
            f"Against {name} {len(pairs)} comparison{_s(pairs)} cannot be tested: "
            f"fewer than {MIN_SEEDS} common seeds, or differences that do not vary."
        )
    won, lost = sum(pair.won for pair in testable), sum(pair.lost for pair in testable)
    text = (
        f"Against {name} the matrix was better by more than seed noise in {won}, worse in {lost}, and not told apart "
        f"in {len(testable) - won - lost} of {len(testable)} tested comparison{_s(testable)}."
    )
    return text + (f" {missing} more cannot be tested." if missing else "")


def _details(plain: Sequence[_Pair], control: Sequence[_Pair]) -> list[str]:
    if len(plain) > _FEW:
        return [_range(plain, "plain"), *([_range(control, "scaled at the same radius")] if control else [])]
    controls = {(pair.setting.spec, pair.method): pair for pair in control}
    lines = []
    for pair in plain:
        line = f"{pair.where}: {_points(pair)} over plain"
        if other := controls.get((pair.setting.spec, pair.method)):
            line += f"; {_points(other)} over scaled at the same radius"
        lines.append(line + ".")
    return lines


def _points(pair: _Pair) -> str:
    return f"{signed(100 * pair.comparison.difference)} points ({verdict_text(pair.comparison)})"


def _range(pairs: Sequence[_Pair], name: str) -> str:
    ordered = sorted(pairs, key=lambda pair: pair.comparison.difference)
    low, high = ordered[0], ordered[-1]
    return (
        f"Over {name} the differences range from {signed(100 * low.comparison.difference)} points ({low.where}) to "
        f"{signed(100 * high.comparison.difference)} ({high.where})."
    )


def _interpretation(plain: Sequence[_Pair], control: Sequence[_Pair]) -> str:
    won = {(pair.setting.spec, pair.method) for pair in plain if pair.won}
    tested = {(p.setting.spec, p.method): p for p in control if p.testable}
    both = [tested[key] for key in won if key in tested]
    if not both:
        return ""
    beyond = sum(pair.won for pair in both)
    if beyond == 0:
        return (
            f"Where the matrix beat the plain head ({len(both)} comparison{_s(both)} with a control), the control at "
            "the same radius was not beaten beyond noise: these runs give the credit to the radius. They do not "
            "prove that the matrix adds nothing."
        )
    if len(both) == beyond == 1:
        return "The gain over the plain head is also a gain over its control: the radius alone does not explain it."
    return (
        f"The matrix beat the plain head in {len(both)} comparisons that have a control, and in {beyond} of them the "
        "control too: there the radius alone does not explain the difference."
    )


def _multiplicity(pairs: Sequence[_Pair]) -> list[str]:
    p_values = [pair.comparison.p for pair in pairs if pair.comparison.p is not None]
    if not p_values:
        return []
    passed = sum(p < LEVEL for p in p_values)
    kept = sum(p < LEVEL for p in holm(p_values))
    if len(p_values) == 1:
        return [f"One paired two-sided t-test was made, at the level {LEVEL:g}."]
    return [
        f"{len(p_values)} paired two-sided t-tests were made here at the level {LEVEL:g}; if nothing differed, about "
        f"{LEVEL * len(p_values):.1f} would pass by chance. {passed} passed; {kept} still do after Holm's correction. "
        "With few seeds the test sees large differences only."
    ]


def _chosen(settings: Sequence[Setting], chosen: Mapping[str, float]) -> str:
    words = " and ".join(f"{radius:g} for {head}" for head, radius in chosen.items())
    text = f"Held-out training data chose a radius of {words}; the test set played no part in the choice."
    reached = []
    for head, radius in chosen.items():
        method = Method("plain", 1.0) if head == "scaled" and radius == 1 else Method(head, radius)
        for setting in settings:
            if method in setting.entries and (summary := setting.entries[method].summary()):
                reached.append(f"{head} {100 * summary.mean:.2f} %")
                break
    return text + (f" At the chosen radius the test accuracy is {', '.join(reached)}." if reached else "")


def _s(items: Sequence[object]) -> str:
    return "" if len(items) == 1 else "s"
