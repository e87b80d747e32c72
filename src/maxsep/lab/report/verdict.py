"""What a comparison on one's own data says, in words that claim no more than its tests allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from maxsep.lab.report.comparison import BASE_HEADS, MATRIX_HEADS, Method
from maxsep.lab.report.statistics import MIN_SEEDS, Comparison
from maxsep.lab.report.tables import p_text, rounded, seeds_text, signed


class Effect(NamedTuple):
    """A method, and what a test says about it; None where no seed has both runs."""

    method: Method
    found: Comparison | None


_UNTESTED = "not testable: "


class Judged(Protocol):
    """A method, and how it did against the plain head and against its control."""

    @property
    def method(self) -> Method:
        """The head with its radius and loss."""

    @property
    def over_plain(self) -> Comparison | None:
        """Against the plain head."""

    @property
    def over_control(self) -> Comparison | None:
        """Against the control, where that is not the plain head."""

    @property
    def over_loss(self) -> Comparison | None:
        """Of a plain head with another loss, against its rival."""

    @property
    def rival(self) -> str:
        """The name of plain with cross-entropy, and by what it is compared; nothing if there is no such comparison."""


def verdict(comparison: Comparison | None) -> str:
    """Say what a test found; what holds before correction for the number of tests alone is told as such.

    >>> verdict(Comparison(0.021, 3, 0.001, "more than noise", adjusted=0.004))
    'better by 2.10 points, more than seed noise'
    >>> verdict(Comparison(0.021, 2, None, "not testable"))
    'not testable: fewer than 3 seeds'
    >>> verdict(Comparison(-0.362, 3, 0.011, "more than noise", adjusted=0.06, tests=4))
    '−36.20 points, p = 0.011, not after correction for 4 tests'
    """
    if comparison is None:
        return f"{_UNTESTED}no seed has both runs"
    if comparison.n < MIN_SEEDS:
        return f"{_UNTESTED}fewer than {MIN_SEEDS} seeds"
    if comparison.verdict == "identical":
        return f"the same in all {comparison.n} seeds"
    if comparison.p is None:
        return f"{_UNTESTED}{comparison.reason}"
    if comparison.holds:
        word = "better" if comparison.difference > 0 else "worse"
        return f"{word} by {rounded(abs(comparison.difference), scale=100)} points, more than seed noise"
    if comparison.passes:
        return f"{_points(comparison)}, {_evidence(comparison)}"
    return f"no difference that {comparison.n} seeds can show"


def conclude(judged: Sequence[Judged], num_classes: int | None = None) -> list[str]:
    """Sum up for each loss: what the matrix adds, what its control does without it, and what the loss itself brings.

    The matrix is what differs between `maxsep` and the control at the same radius, the radius what differs between
    that control and the plain head. Heads that compare directions are named instead of radii: `cosine_maxsep` over
    `cosine`, `maxsep_cosine` over its control `centred_cosine`, and that one over `cosine`.

    Args:
        judged: All arms.
        num_classes: Of runs under SGD, for which it is known what else but the matrix differs at radius 1.
    """
    losses = list(dict.fromkeys(item.method.loss for item in judged))
    sentences = []
    for loss in losses:
        where = "On this data" if len(losses) == 1 else f"On this data, with the loss {loss},"
        shown = [item for item in judged if item.method.loss == loss]
        sentences.append(f"{where} {_sum_up(shown)}{_of_loss(shown)}.")
    at_1 = (Effect(x.method, x.over_plain) for x in judged if (x.method.head, x.method.radius) == ("maxsep", 1))
    return [*sentences, _theorem(num_classes)] if num_classes and any(map(_passes, at_1)) else sentences


def _sum_up(judged: Sequence[Judged]) -> str:
    matrix: list[Effect] = []
    alone: list[Effect] = []
    both: list[Effect] = []
    for item in judged:
        method = item.method
        if method.head in MATRIX_HEADS:
            same = method.control == method.plain
            matrix.append(Effect(method, item.over_plain if same else item.over_control))
            both += [] if same else [Effect(method, item.over_plain)]
        elif method != method.plain:
            alone.append(Effect(method, item.over_plain))
    if not any(map(_tested, [*matrix, *alone])):
        return f"nothing can be told yet: {verdict(matrix[0].found).removeprefix(_UNTESTED)}"
    parts = [*_of_matrix(matrix), *_of_control(alone, after_nothing=all(map(_quiet, matrix)))]
    for effect in filter(_passes, both):
        parts += _of_both(effect, _explained(effect, [*matrix, *alone]))
    return "".join(f"{', ' if part.startswith('nor ') else '; '}{part}" for part in parts).removeprefix("; ")


def _theorem(num_classes: int) -> str:
    """Say what a difference at radius 1 comes from."""
    rate = rounded(num_classes / (num_classes - 1))
    return (
        "At radius 1, under SGD, the matrix differs from plain in its start and in a learning rate of the last layer "
        f"that is C/(C\N{MINUS SIGN}1) = {rate} times as large, in nothing else (docs/theory.md)."
    )


def _of_loss(judged: Sequence[Judged]) -> str:
    """Say what the loss itself brings the plain head, where cross-entropy was trained beside it."""
    told = (
        f". {item.method.head.capitalize()} with this loss against {item.rival}: {verdict(item.over_loss)}"
        for item in judged
        if item.rival
    )
    return next(told, "")


def _of_matrix(effects: Sequence[Effect]) -> list[str]:
    told: dict[str, list[str]] = {"gains": [], "loses": []}
    for effect in filter(_passes, effects):
        method, found = effect
        assert found is not None
        place = f"{_places([effect])} ({_points(found)} over {method.control.head}, {_evidence(found)})"
        told["gains" if found.difference > 0 else "loses"].append(place)
    parts = [f"the matrix {verb} {' and '.join(places)}" for verb, places in told.items() if places]
    tested = [found for _, found in filter(_tested, effects) if found is not None]
    if tested and not parts:
        adds = "changes" if all(found.verdict == "identical" for found in tested) else "adds"
        parts.append(f"the matrix {adds} nothing {_seen(tested)}")
    if untested := [effect for effect in effects if not _tested(effect)]:
        parts.append(f"{_places(untested)} {'it' if parts else 'the matrix'} is {verdict(untested[0].found)}")
    return parts


def _of_control(effects: Sequence[Effect], after_nothing: bool) -> list[str]:
    """Go on after what was said of the matrix; where it adds nothing, its verb is not repeated."""
    parts = []
    for effect in filter(_passes, effects):
        method, found = effect
        assert found is not None
        doubt = "" if found.holds else _evidence(found)
        if found.difference > 0:
            does = "does" if after_nothing else "alone helps"
            over = f"{_points(found)} over {method.plain.head}"
            parts.append(f"{_controls([effect])} {does} ({', '.join(filter(None, [over, doubt]))})")
        else:
            costs = f"alone costs {rounded(-found.difference, scale=100)} points"
            parts.append(f"{_controls([effect])} {costs}{doubt and f' ({doubt})'}")
    quiet = [effect for effect in effects if _tested(effect) and not _passes(effect)]
    if quiet and after_nothing and not parts:
        parts.append(f"nor {'does' if len(quiet) == 1 else 'do'} {_controls(quiet)} alone")
    elif quiet:
        makes = "makes" if len(quiet) == 1 else "make"
        seen = _seen([found for _, found in quiet if found is not None])
        parts.append(f"{_controls(quiet)} alone {makes} no difference {seen}")
    if untested := [effect for effect in effects if not _tested(effect)]:
        are = "is" if len(untested) == 1 else "are"
        parts.append(f"{_controls(untested)} alone {are} {verdict(untested[0].found)}")
    return parts


def _of_both(effect: Effect, explained: bool) -> list[str]:
    """Tell matrix and control together; where one of them explains it, only if correction takes the difference away."""
    method, found = effect
    assert found is not None
    if explained and found.holds:
        return []
    points, alike = rounded(abs(found.difference), scale=100), method.head == "maxsep"
    who, s = (f"matrix and radius {method.radius:g} together", "") if alike else (method.head, "s")
    does = f"gain{s} {points} points over" if found.difference > 0 else f"lose{s} {points} points to"
    told = f"{who} {does} {method.plain.head}{'' if found.holds else f' ({_evidence(found)})'}"
    which = f"whether by the matrix or by what {method.control.head} has of it"
    doubt = f", and {found.n} seeds cannot tell {'which of the two does it' if alike else which}"
    return [told if explained else f"{told}{doubt}"]


def _without_matrix(method: Method) -> Method:
    """What is left of a method without the matrix: its control, or itself."""
    return method if method.head in BASE_HEADS else method.control


def _places(effects: Sequence[Effect]) -> str:
    """Where the matrix was tried: at which radii, or as which heads."""
    if all(method.head == "maxsep" for method, _ in effects):
        return f"at {_radii(effects)}"
    return f"as {' and '.join(method.head for method, _ in effects)}"


def _controls(effects: Sequence[Effect]) -> str:
    """What controls have without the matrix: the radii, or their names."""
    if all(method.head == "scaled" for method, _ in effects):
        return f"the {_radii(effects)}"
    return " and ".join(method.head for method, _ in effects)


def _tested(effect: Effect) -> bool:
    """Whether seeds could show a difference; equal numbers in every seed show that there is none."""
    return effect.found is not None and (effect.found.p is not None or effect.found.verdict == "identical")


def _passes(effect: Effect) -> bool:
    """Whether its test, taken alone, calls it more than noise; `_evidence` says if it does among the others."""
    return effect.found is not None and effect.found.passes


def _explained(both: Effect, parts: Sequence[Effect]) -> bool:
    """Whether matrix or control show an effect of their own, as certain as that of the two together."""
    assert both.found is not None
    certain = [part for part in parts if part.found is not None and part.found.holds]
    found = certain if both.found.holds else list(filter(_passes, parts))
    return both.method.control in {_without_matrix(part.method) for part in found}


def _quiet(effect: Effect) -> bool:
    return effect.found is not None and effect.found.p is not None and not effect.found.passes


def _seen(found: Sequence[Comparison]) -> str:
    return f"that {min(comparison.n for comparison in found)} seeds can show"


def _points(comparison: Comparison) -> str:
    return f"{signed(comparison.difference, scale=100)} points"


def _evidence(comparison: Comparison) -> str:
    """What there is for a difference that passes its test: p and the seeds, or that correction leaves nothing of it."""
    assert comparison.p is not None
    if not comparison.holds:
        return f"{p_text(comparison.p)}, not after correction for {comparison.tests} tests"
    if comparison.adjusted in (None, comparison.p):
        return f"{p_text(comparison.p)}, {seeds_text(comparison.n)}"
    return f"{p_text(comparison.adjusted)} after correction for {comparison.tests} tests, {seeds_text(comparison.n)}"


def _radii(effects: Sequence[Effect]) -> str:
    return f"radi{'us' if len(effects) == 1 else 'i'} {' and '.join(f'{method.radius:g}' for method, _ in effects)}"
