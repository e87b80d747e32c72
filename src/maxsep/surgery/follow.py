"""Numbers that models keep about their classifier, and that must follow when it changes."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from torch import nn

from maxsep.surgery.tree import submodule

__all__ = ["follow_num_classes", "refuse_other_problems"]


def refuse_other_problems(model: nn.Module) -> None:
    """Raise for multi-label and regression models, as a transformers config names them.

    Softmax ignores a common shift of the logits; a sigmoid per label or a squared error does not, and logits that sum
    to zero would take that freedom away.

    >>> refuse_other_problems(nn.Linear(2, 3))
    """
    config = getattr(model, "config", None)
    problem = getattr(config, "problem_type", None)
    if problem in ("multi_label_classification", "regression"):
        raise ValueError(
            f"config.problem_type is {problem!r}: there a common shift of the logits means something, and maximum "
            "separation would take it away. It is for one label out of C ('single_label_classification')."
        )
    if getattr(config, "id2label", None) is not None and getattr(config, "num_labels", None) == 1:
        raise ValueError(
            "config.num_labels is 1, which is a regression. Maximum separation needs at least 2 classes: "
            "load the model with num_labels set to their number first."
        )


def follow_num_classes(model: nn.Module, path: str, old: int, new: int, *, keep_labels: bool = False) -> None:
    """Update `num_classes` and `num_labels` on the way to a classifier, and the labels of a transformers config.

    Only numbers that agreed with the old classifier are touched. With `keep_labels` the old classes keep their names,
    as they do when others are added; otherwise a new number of classes means new names, LABEL_0 and so on.

    >>> model = nn.Sequential(nn.Linear(2, 3))
    >>> model.num_classes = 3
    >>> follow_num_classes(model, "0", 3, 5)
    >>> model.num_classes
    5
    """
    if old == new:
        return
    above = accumulate(path.split(".")[:-1], lambda prefix, name: f"{prefix}.{name}")
    for owner in (model, *(submodule(model, prefix) for prefix in above)):
        for name in ("num_classes", "num_labels"):
            if vars(owner).get(name) == old:
                setattr(owner, name, new)
    config = getattr(model, "config", None)
    if hasattr(config, "id2label") and getattr(config, "num_labels", old) in (None, old):
        _follow_labels(config, new, keep_labels)


def _follow_labels(config: Any, new: int, keep_labels: bool) -> None:
    kept = dict(config.id2label or {}) if keep_labels else {}
    config.num_labels = new
    config.id2label = {index: kept.get(index, f"LABEL_{index}") for index in range(new)}
    config.label2id = {name: index for index, name in config.id2label.items()}
