"""Files beside a run's result: whether they hold all that tables and figures will touch."""

from __future__ import annotations

import math
from typing import Any

_MEASURES = ("auroc", "aupr", "fpr95", "fpr95_at_least", "aupr_ood_positive", "fpr95_ood_positive")


def check_detection(record: dict[str, Any]) -> None:
    """Raise if a `detection.json` lacks something."""
    _fraction(record["in_distribution"]["top1"], "top1")
    for name, found in record["sets"].items():
        if not isinstance(found["origin"], str) or not isinstance(found["count"], int):
            raise ValueError(f"the set {name} does not say what it is")
        for score, told in found["scores"].items():
            for measure in (*_MEASURES, "oscr"):
                _fraction(told["full"][measure], f"{measure} of {score}")
            for measure in _MEASURES if "draws" in told else ():
                _fraction(told["draws"][measure]["mean"], f"{measure} of {score} in draws")
        for step, told in found.get("sweep", {}).items():
            float(step)
            _fraction(told["auroc"], f"auroc at step {step}")
        for shape in found["histograms"].values():
            _numbers([*shape["edges"], *shape["known"], *shape["outside"], shape["gap"]])
            if not len(shape["edges"]) - 1 == len(shape["known"]) == len(shape["outside"]):
                raise ValueError(f"a histogram of {name} has other bins than edges")


def check_features(record: dict[str, Any]) -> None:
    """Raise if a `features.json` lacks something, or its points do not lie in the plane."""
    for epoch, found in record["epochs"].items():
        int(epoch)
        if len(found["known"]) != len(found["labels"]) or not found["known"] or not found["unknown"]:
            raise ValueError(f"epoch {epoch} lacks points or labels")
        for point in (*found["known"], *found["unknown"]):
            _numbers(point)
        if not all(0 <= label < len(record["classes"]) for label in found["labels"]):
            raise ValueError(f"epoch {epoch} has a label without a class")


def _fraction(value: Any, name: str) -> None:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a fraction in [0, 1], got {value!r}")


def _numbers(values: list[Any]) -> None:
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise ValueError("there is something other than finite numbers")
