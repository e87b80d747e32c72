"""Training images of every class: whether some are rare, and the accuracy of frequent and of rare ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from maxsep.analysis import accuracy_by_shot, shot_groups

_UNEQUAL = 1.5
"""Classes are unequal if the largest has more than this many times the training images of the smallest."""
MANY, FEW = 100, 20
GROUPS = {"many": f"more than {MANY}", "medium": f"{FEW} to {MANY}", "few": f"fewer than {FEW}"}
"""The groups of classes of Liu et al., Large-Scale Long-Tailed Recognition in an Open World, CVPR 2019."""


def class_counts(metrics: Mapping[str, Any]) -> list[int]:
    """The training images of every class that a run has recorded; empty if it has not."""
    counts = metrics.get("class_counts") or []
    return list(counts) if all(isinstance(count, int) and count >= 0 for count in counts) else []


def is_unequal(counts: Sequence[int]) -> bool:
    """Whether classes differ by more than rounding or a random draw explains.

    >>> is_unequal([122, 116, 119]), is_unequal([150, 105, 6]), is_unequal([])
    (False, True, False)
    """
    return bool(counts) and max(counts) > _UNEQUAL * min(counts)


def accuracy_by_group(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The mean accuracy of the classes with many, a medium number of, and few training images.

    >>> accuracy_by_group({"per_class": [1.0, 0.5, None], "class_counts": [500, 400, 3]})
    {'many': 0.75}
    """
    per_class, counts = metrics.get("per_class") or [], class_counts(metrics)
    if not counts or len(per_class) != len(counts):
        return {}
    known = [math.nan if accuracy is None else accuracy for accuracy in per_class]
    found = accuracy_by_shot(known, counts, many=MANY, few=FEW)
    return {group: value for group in GROUPS if (value := found[group]) is not None}


def group_sizes(counts: Sequence[int]) -> str:
    """Say how many classes are in each group; groups without a class are left out.

    >>> group_sizes([150, 105, 6])
    'many: 2 classes with more than 100 training images; few: 1 class with fewer than 20'
    """
    told: list[str] = []
    for group, members in shot_groups(counts, many=MANY, few=FEW).items():
        if members:
            images = "" if told else " training images"
            told.append(f"{group}: {len(members)} class{'es' * (len(members) > 1)} with {GROUPS[group]}{images}")
    return "; ".join(told)
