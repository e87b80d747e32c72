"""Replace the classifier of a model by a head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from maxsep.heads import MaxSeparationHead
from maxsep.surgery.locate import locate


def attach(
    model: nn.Module,
    num_classes: int | None = None,
    radius: float = 1.0,
    *,
    class_order: Sequence[int] | Tensor | None = None,
    classifier: str | None = None,
    keep_weights: bool = False,
) -> nn.Module:
    """Replace the classifier of a model by a MaxSeparationHead, in place, and return the model.

    Works on torchvision, timm and transformers classifiers and on plain modules; auxiliary and distillation heads are
    replaced too. Device, dtype, bias, train mode and requires_grad are kept; `num_classes` of a timm model and the
    labels in a transformers config are updated. A bare nn.Linear is not changed: its head is returned.

    Args:
        model: The network; multi-label and regression models are refused.
        num_classes: C, at least 2; None keeps the number of classes.
        radius: Length of the class vectors.
        class_order: A permutation; class `class_order[i]` takes column i of P. None is the identity.
        classifier: Path of the layer (`"head.fc"`), if it is ambiguous.
        keep_weights: Take the trained layer over without changing a probability; the number of classes must stay.

    Pitfall: build the optimiser and wrap the model (DDP, compile) afterwards. Code that looks for nn.Linear (fusing,
    quantising) and `save_pretrained` need `maxsep.fold(model)`. Hooks on the old layer stay with the old layer.

    >>> import torch
    >>> model = attach(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), num_classes=5)
    >>> model[2], model(torch.randn(2, 4)).shape
    (MaxSeparationHead(in_features=8, num_classes=5, radius=1), torch.Size([2, 5]))
    """

    def build(linear: nn.Linear) -> nn.Module:
        if keep_weights:
            if num_classes not in (None, linear.out_features):
                raise ValueError(f"num_classes must be {linear.out_features} to keep weights, got {num_classes}")
            return MaxSeparationHead.from_linear(linear, radius, class_order=class_order)
        classes = linear.out_features if num_classes is None else num_classes
        return MaxSeparationHead.like(linear, classes, radius, class_order=class_order)

    return replace_classifier(model, build, classifier)


def replace_classifier(
    model: nn.Module, build: Callable[[nn.Linear], nn.Module], classifier: str | None = None
) -> nn.Module:
    """Replace the classifier of a model, and its auxiliary ones, by the results of `build`, in place.

    `build` is called with each nn.Linear and returns a module that maps (..., in_features) to (..., num_classes). The
    new layer gets the device, dtype and train mode of the old one; its weight or bias is frozen if the old one was. If
    the model is a bare nn.Linear, the new layer is returned. `classifier` is the path of the layer, if it is ambiguous.

    >>> from maxsep.heads import build
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
    >>> replace_classifier(model, lambda old: build("scaled", old.in_features, old.out_features, radius=0.1))[1]
    ScaledHead(in_features=8, num_classes=3, radius=0.1)
    """
    layers = locate(model, classifier)
    _check_problem_type(model)
    heads = [_like(build(linear), linear) for _, linear in layers]  # an error in build leaves the model unchanged
    if isinstance(model, nn.Linear):
        return heads[0]
    for (path, linear), head in zip(layers, heads, strict=True):
        model.set_submodule(path, head)
        update_num_classes(model, path, linear.out_features, getattr(head, "out_features", linear.out_features))
    return model


def update_num_classes(model: nn.Module, path: str, old: int, new: int, *, keep_labels: bool = False) -> None:
    """Update `num_classes` and `num_labels` of the modules above a classifier, and the labels in model.config.

    Numbers that differed from the old number of classes are left alone. Labels get new names unless `keep_labels`.
    """
    if old == new:
        return
    parents = accumulate(path.split(".")[:-1], lambda prefix, name: f"{prefix}.{name}")
    for module in (model, *map(model.get_submodule, parents)):
        for name in ("num_classes", "num_labels"):
            if vars(module).get(name) == old:
                setattr(module, name, new)
    config: Any = getattr(model, "config", None)
    if hasattr(config, "id2label") and getattr(config, "num_labels", old) in (None, old):
        labels = dict(config.id2label or {}) if keep_labels else {}
        config.num_labels = new
        config.id2label = {index: labels.get(index, f"LABEL_{index}") for index in range(new)}
        config.label2id = {name: index for index, name in config.id2label.items()}


def _check_problem_type(model: nn.Module) -> None:
    """Raise for multi-label and regression models: their losses depend on a common shift of the logits."""
    config = getattr(model, "config", None)
    problem = getattr(config, "problem_type", None)
    if problem in ("multi_label_classification", "regression"):
        raise ValueError(f"config.problem_type must be 'single_label_classification', got {problem!r}")
    if getattr(config, "id2label", None) is not None and getattr(config, "num_labels", None) == 1:
        raise ValueError("config.num_labels must be at least 2, got 1: a regression")


def _like(new: nn.Module, linear: nn.Linear) -> nn.Module:
    new.to(linear.weight).train(linear.training)
    for name, parameter in new.named_parameters():
        old = linear.bias if name == "bias" and linear.bias is not None else linear.weight
        if not old.requires_grad:
            parameter.requires_grad_(False)
    return new
