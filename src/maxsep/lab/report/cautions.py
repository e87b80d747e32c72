"""What keeps one from believing a comparison: heads that have learned next to nothing, and too few test images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from maxsep.lab.report.comparison import Entry
from maxsep.lab.report.tables import rounded

_LEARNED = 0.05
_TRAINED = 0.75
_FEW = 100
_REMEDY = "Train longer or pass a smaller --learning-rate before you compare."


def cautions(arms: Mapping[str, tuple[str, Entry]], num_classes: int) -> list[str]:
    """Warn of heads that guess, and of heads far behind the plain head of their loss.

    Args:
        arms: For each label the label of its plain head, and its runs.
        num_classes: Of which one is guessed.
    """
    means = {label: found.mean for label, (_, entry) in arms.items() if (found := entry.summary("balanced"))}
    guessing = {label: mean for label, mean in means.items() if is_guessing(mean, num_classes)}
    told = [caution(guessing, num_classes)] if guessing else []
    runs = {label: entry.summary() for label, (_, entry) in arms.items() if label not in guessing}
    reached = {label: found.mean for label, found in runs.items() if found}
    for plain in (label for label in reached if arms[label][0] == label):
        others = {label: accuracy for label, accuracy in reached.items() if arms[label][0] == plain}
        behind = {label: accuracy for label, accuracy in others.items() if is_far_behind(accuracy, reached[plain])}
        told += [caution_behind(behind, plain, reached[plain])] if behind else []
    return told


def is_guessing(accuracy: float, num_classes: int) -> bool:
    """Whether a mean over classes is next to that of guessing: less than a twentieth of the way to 1.

    >>> is_guessing(0.12, 10), is_guessing(0.2, 10)
    (True, False)
    """
    return accuracy < 1 / num_classes + _LEARNED * (1 - 1 / num_classes)


def caution(heads: Mapping[str, float], num_classes: int) -> str:
    """Say that heads have learned next to nothing, so that a comparison with them says nothing.

    Args:
        heads: For each label the mean over classes.
        num_classes: Of which one is guessed.
    """
    have, mean = ("has", "its mean over classes is") if len(heads) == 1 else ("have", "their means over classes are")
    return (
        f"But {_listed(heads)} {have} learned next to nothing: {mean} {_percents(heads)} %, guessing gives "
        f"{rounded(1 / num_classes, scale=100)} %. {_REMEDY}"
    )


def is_far_behind(accuracy: float, plain: float) -> bool:
    """Whether a head has less than three quarters of the accuracy of the plain head: it has hardly trained.

    >>> is_far_behind(0.555, 0.854), is_far_behind(0.7, 0.854)
    (True, False)
    """
    return accuracy < _TRAINED * plain


def caution_behind(heads: Mapping[str, float], plain: str, accuracy: float) -> str:
    """Say that heads have hardly trained, so that the distance to the plain head is not that of the matrix.

    Args:
        heads: For each label the accuracy.
        plain: The label of the plain head of the same loss.
        accuracy: Its accuracy.
    """
    have = "has" if len(heads) == 1 else "have"
    whose = "its comparison says" if len(heads) == 1 else "their comparisons say"
    return (
        f"But {_listed(heads)} {have} hardly trained: {_percents(heads)} % where {plain} has "
        f"{rounded(accuracy, scale=100)} %; {whose} nothing about the matrix. {_REMEDY}"
    )


def caution_few(num_test: int) -> str | None:
    """Say that test images are so few that one of them is more than a point; None where they are enough.

    >>> caution_few(18)
    'But there are 18 test images, and one of them is 5.6 points: whatever the test says, try more.'
    """
    if num_test >= _FEW:
        return None
    points = f"{100 / num_test:.1f} points"
    return f"But there are {num_test} test images, and one of them is {points}: whatever the test says, try more."


def _listed(heads: Iterable[str]) -> str:
    """Heads in a row; their names have commas of their own.

    >>> _listed(["plain", "maxsep, radius 1", "scaled, radius 0.1"])
    'plain; maxsep, radius 1 and scaled, radius 0.1'
    """
    *first, last = heads
    return f"{'; '.join(first)} and {last}" if first else last


def _percents(heads: Mapping[str, float]) -> str:
    *first, last = (rounded(accuracy, scale=100) for accuracy in heads.values())
    return f"{', '.join(first)} and {last}" if first else last
