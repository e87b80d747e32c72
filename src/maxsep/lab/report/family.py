"""The tests that the accuracy tables show, and their correction for each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from maxsep.lab.report.comparison import BASE_HEADS, USUAL, Method, Setting
from maxsep.lab.report.statistics import Comparison, adjust
from maxsep.lab.spec import RunSpec

Against = Literal["plain", "control", "loss"]
Family = Mapping[tuple[RunSpec, Method, Against], Comparison]

BY = {"top1": "", "balanced": ", mean over classes"}
"""What is said of the measure of a comparison, if anything."""


def family(settings: Sequence[Setting]) -> Family:
    """Make every comparison that the accuracy tables show, once, with p-values corrected for their number.

    Each method meets the plain head, and each that is not a control meets its control; the plain head itself meets
    plain with cross-entropy, which is what another loss brings; that of cosines is `cosine`. At radius 1 the control is
    the plain head: a second test of the same numbers would count them twice.
    """
    found: dict[tuple[RunSpec, Method, Against], Comparison] = {}
    for setting in settings:
        for method in setting.entries:
            for against in get_args(Against):
                comparison = _compare(setting, method, against)
                if comparison is not None:
                    found[setting.spec, method, against] = comparison
    corrected = adjust(list(found.values()))
    return {key: new for key, new in zip(found, corrected, strict=True) if new is not None}


def loss_metric(setting: Setting) -> str:
    """By what losses are compared: where classes are unequal by the mean over them, which is what such losses are for.

    Test images may have the same tail, and then the accuracy hardly knows rare classes.
    """
    return "balanced" if setting.is_tailed else "top1"


def _compare(setting: Setting, method: Method, against: Against) -> Comparison | None:
    if against == "loss":
        usual = setting.entries.get(USUAL) if method.brings_loss else None
        return setting.against(method, usual, loss_metric(setting))
    if against == "plain":
        return setting.against(method, setting.plain(method))
    control = None if method.head in BASE_HEADS else setting.control(method)
    # where the control is the plain head, the first comparison was that one
    return None if control is None or control is setting.plain(method) else setting.against(method, control)
