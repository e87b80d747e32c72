"""What a comparison on one's own data says, in words that claim no more than its tests allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from maxsep.lab.report.comparison import Method
from maxsep.lab.report.statistics import MIN_SEEDS, Comparison
from maxsep.lab.report.tables import rounded, signed

Effect = tuple[float, Comparison | None]
"""A radius, and what a test there says; None where no seed has both runs."""

_UNTESTED = "not testable: "
_LEARNED = 0.05


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
        """Against the plain head times the same radius."""

    @property
    def over_loss(self) -> Comparison | None:
        """Of a plain head with another loss, against its rival."""

    @property
    def rival(self) -> str:
        """The name of plain with cross-entropy, and by what it is compared; nothing if there is no such comparison."""


def verdict(comparison: Comparison | None) -> str:
    """Say what a test found; only what holds after correction for the number of tests is a difference.

    >>> verdict(Comparison(0.021, 3, 0.001, "more than noise", adjusted=0.004))
    'better by 2.10 points, more than seed noise'
    >>> verdict(Comparison(0.021, 2, None, "not testable"))
    'not testable: fewer than 3 seeds'
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
    told = f"no difference that {comparison.n} seeds can show"
    return f"{told} after correction for the number of tests" if comparison.passes else told


def conclude(judged: Sequence[Judged]) -> list[str]:
    """Sum up for each loss: what the matrix adds, what its radius does without it, and what the loss itself brings.

    The matrix is what differs between `maxsep` and the control at the same radius, the radius what differs between
    that control and the plain head.
    """
    losses = list(dict.fromkeys(item.method.loss for item in judged))
    sentences = []
    for loss in losses:
        where = "On this data" if len(losses) == 1 else f"On this data, with the loss {loss},"
        shown = [item for item in judged if item.method.loss == loss]
        sentences.append(f"{where} {_sum_up(shown)}{_of_loss(shown)}.")
    return sentences


def is_guessing(accuracy: float, num_classes: int) -> bool:
    """Whether a mean over classes is next to that of guessing: less than a twentieth of the way to 1.

    >>> is_guessing(0.12, 10), is_guessing(0.2, 10)
    (True, False)
    """
    return accuracy < 1 / num_classes + _LEARNED * (1 - 1 / num_classes)


def caution(label: str, accuracy: float, num_classes: int) -> str:
    """Say that a head has learned next to nothing, so that a comparison with it says nothing."""
    return (
        f"But {label} has learned next to nothing: its mean over classes is {rounded(accuracy, scale=100)} %, guessing "
        f"gives {rounded(1 / num_classes, scale=100)} %. Train longer, or at another learning rate, before you compare."
    )


def _sum_up(judged: Sequence[Judged]) -> str:
    matrix: list[Effect] = []
    radius: list[Effect] = []
    both: list[Effect] = []
    for item in judged:
        at = item.method.radius
        if item.method.head == "maxsep":
            matrix.append((at, item.over_plain if at == 1 else item.over_control))
            both += [] if at == 1 else [(at, item.over_plain)]
        elif item.method.head == "scaled":
            radius.append((at, item.over_plain))
    if not any(map(_tested, [*matrix, *radius])):
        return f"nothing can be told yet: {verdict(matrix[0][1]).removeprefix(_UNTESTED)}"
    explained = {at for at, _ in filter(_holds, [*matrix, *radius]) if at != 1}
    parts = [*_of_matrix(matrix), *_of_radius(radius, after_nothing=all(map(_quiet, matrix)))]
    parts += [_of_both(at, found) for at, found in both if found is not None and found.holds and at not in explained]
    return "".join(f"{', ' if part.startswith('nor ') else '; '}{part}" for part in parts).removeprefix("; ")


def _of_loss(judged: Sequence[Judged]) -> str:
    """Say what the loss itself brings the plain head, where cross-entropy was trained beside it."""
    told = (f". Plain with this loss against {item.rival}: {verdict(item.over_loss)}" for item in judged if item.rival)
    return next(told, "")


def _of_matrix(effects: Sequence[Effect]) -> list[str]:
    told: dict[str, list[str]] = {"helps": [], "hurts": []}
    for at, found in effects:
        if found is not None and found.holds:
            place = f"at radius {at:g} ({_points(found)} over {'plain' if at == 1 else 'scaled'})"
            told["helps" if found.difference > 0 else "hurts"].append(place)
    parts = [f"the matrix {verb} {' and '.join(places)}" for verb, places in told.items() if places]
    tested = [found for _, found in filter(_tested, effects) if found is not None]
    if tested and not parts:
        adds = "changes" if all(found.verdict == "identical" for found in tested) else "adds"
        parts.append(f"the matrix {adds} nothing {_seen(tested)}")
    if untested := [effect for effect in effects if not _tested(effect)]:
        parts.append(f"at {_radii(untested)} {'it' if parts else 'the matrix'} is {verdict(untested[0][1])}")
    return parts


def _of_radius(effects: Sequence[Effect], after_nothing: bool) -> list[str]:
    """Go on after what was said of the matrix; where it adds nothing, its verb is not repeated."""
    parts = []
    for at, found in effects:
        if found is not None and found.holds and found.difference > 0:
            does = "does" if after_nothing else "alone helps"
            parts.append(f"the radius {at:g} {does} ({_points(found)} over plain)")
        elif found is not None and found.holds:
            parts.append(f"the radius {at:g} alone costs {rounded(-found.difference, scale=100)} points")
    quiet = [effect for effect in effects if _tested(effect) and not _holds(effect)]
    if quiet and after_nothing and not parts:
        parts.append(f"nor {'does' if len(quiet) == 1 else 'do'} the {_radii(quiet)} alone")
    elif quiet:
        makes = "makes" if len(quiet) == 1 else "make"
        seen = _seen([found for _, found in quiet if found is not None])
        parts.append(f"the {_radii(quiet)} alone {makes} no difference {seen}")
    if untested := [effect for effect in effects if not _tested(effect)]:
        parts.append(f"the {_radii(untested)} alone {'is' if len(untested) == 1 else 'are'} {verdict(untested[0][1])}")
    return parts


def _of_both(radius: float, found: Comparison) -> str:
    points = rounded(abs(found.difference), scale=100)
    gained = f"gain {points} points over plain" if found.difference > 0 else f"lose {points} points to plain"
    return f"matrix and radius {radius:g} together {gained}, and {found.n} seeds cannot tell which of the two does it"


def _tested(effect: Effect) -> bool:
    """Whether seeds could show a difference; equal numbers in every seed show that there is none."""
    return effect[1] is not None and (effect[1].p is not None or effect[1].verdict == "identical")


def _holds(effect: Effect) -> bool:
    return effect[1] is not None and effect[1].holds


def _quiet(effect: Effect) -> bool:
    return effect[1] is not None and effect[1].p is not None and not effect[1].holds


def _seen(found: Sequence[Comparison]) -> str:
    return f"that {min(comparison.n for comparison in found)} seeds can show"


def _points(comparison: Comparison) -> str:
    return f"{signed(comparison.difference, scale=100)} points"


def _radii(effects: Sequence[Effect]) -> str:
    return f"radi{'us' if len(effects) == 1 else 'i'} {' and '.join(f'{at:g}' for at, _ in effects)}"
