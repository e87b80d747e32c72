"""Whether data have a long tail, by the training images of every class, and how frequent and rare classes do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from maxsep.analysis import accuracy_by_shot, shot_groups

UNEQUAL = 1.5
"""Classes are unequal if the largest has more than so many times the training images of the smallest."""
MANY, FEW = 100, 20
"""A class has many images above the first number and few below the second; between them, both included, is medium."""
GROUPS = {"many": f"more than {MANY}", "medium": f"{FEW} to {MANY}", "few": f"fewer than {FEW}"}
"""The groups of classes, and how many training images a class of each has."""


def class_counts(metrics: Mapping[str, Any]) -> list[int]:
    """The training images of every class that a run has recorded; empty if it has not.

    >>> class_counts({"class_counts": [150, 6]}), class_counts({"top1": 0.5})
    ([150, 6], [])
    """
    counts = metrics.get("class_counts") or []
    return list(counts) if all(isinstance(count, int) and count >= 0 for count in counts) else []


def is_unequal(counts: Sequence[int]) -> bool:
    """Whether classes differ by more than rounding or a random draw explains, so that some are rare.

    >>> is_unequal([122, 116, 119]), is_unequal([150, 105, 6]), is_unequal([])
    (False, True, False)
    """
    return bool(counts) and max(counts) > UNEQUAL * min(counts)


def in_words(counts: Sequence[int]) -> str:
    """Say how unequal classes are; empty if they are not.

    >>> in_words([150, 105, 6]), in_words([13861, 4659])
    ('unequal, 150 to 6 images a class', 'unequal, 13,861 to 4,659 images a class')
    >>> in_words([5000, 5000])
    ''
    """
    return f"unequal, {max(counts):,} to {min(counts):,} images a class" if is_unequal(counts) else ""


def by_group(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The mean accuracy of the classes with many, a medium number of, and few training images.

    Groups without a class that was tested are left out, and so is everything that a run has not recorded.

    >>> by_group({"per_class": [1.0, 0.5, None], "class_counts": [500, 400, 3]})
    {'many': 0.75}
    """
    per_class, counts = metrics.get("per_class") or [], class_counts(metrics)
    if not counts or len(per_class) != len(counts):
        return {}
    known = [math.nan if accuracy is None else accuracy for accuracy in per_class]
    found = accuracy_by_shot(known, counts, many=MANY, few=FEW)
    return {group: value for group in GROUPS if (value := found[group]) is not None}


def sizes(counts: Sequence[int]) -> str:
    """Say how many classes are in each group, and what makes them so; groups without a class are left out.

    >>> sizes([150, 105, 6])
    'many: 2 classes with more than 100 training images; few: 1 with fewer than 20'
    """
    told: list[str] = []
    for group, members in shot_groups(counts, many=MANY, few=FEW).items():
        if members:
            kind = "" if told else f" class{'' if len(members) == 1 else 'es'}"
            images = "" if told else " training images"
            told.append(f"{group}: {len(members)}{kind} with {GROUPS[group]}{images}")
    return "; ".join(told)
