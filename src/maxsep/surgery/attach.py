"""Put a head where the classifier was; the rest of the model does not notice."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from maxsep.checks import check_num_classes, check_radius
from maxsep.heads import MaxSeparationHead
from maxsep.surgery.follow import follow_num_classes, refuse_other_problems
from maxsep.surgery.locate import locate
from maxsep.surgery.tree import swap

__all__ = ["attach", "replace_classifier"]


def attach(
    model: nn.Module,
    num_classes: int | None = None,
    radius: float = 1.0,
    *,
    classifier: str | None = None,
    keep_weights: bool = False,
) -> nn.Module:
    """Swap the classifier of a model for a MaxSeparationHead, in place, and return the model.

    Works on torchvision, timm and transformers classifiers and on plain modules; auxiliary and distilled heads are all
    swapped. Device, dtype, bias, train mode and requires_grad are kept; `num_classes` of a timm model and the labels in
    a transformers config follow. A bare nn.Linear is not changed: its head is returned.

    Args:
        model: The network; multi-label and regression models are refused.
        num_classes: C, at least 2; None keeps the old number.
        radius: Length of the class vectors.
        classifier: Path of the layer (`"head.fc"`), where the model does not make it plain which one is meant.
        keep_weights: Take the trained layer over without changing a probability; the number of classes must stay.

    Pitfall: build the optimiser afterwards, and wrap (DDP, compile) afterwards. Fusing or quantising code that looks
    for nn.Linear must see `maxsep.fold(model)`. Hooks on the old layer stay with the old layer. A transformers model
    goes to others as `maxsep.fold(model).save_pretrained(folder)`, which `from_pretrained` reads as usual and
    `attach(..., keep_weights=True)` trains on; what save_pretrained writes of the unfolded model, from_pretrained
    refuses because of its size.

    >>> model = attach(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), num_classes=5)
    >>> model[2], model(torch.randn(2, 4)).shape
    (MaxSeparationHead(in_features=8, num_classes=5, radius=1), torch.Size([2, 5]))
    """
    if num_classes is not None:
        check_num_classes(num_classes)
    check_radius(radius)

    def head_for(linear: nn.Linear) -> nn.Module:
        if not keep_weights:
            return _fresh_head(linear, num_classes or linear.out_features, radius)
        if num_classes not in (None, linear.out_features):
            raise ValueError(
                f"keep_weights=True takes over a layer of {linear.out_features} classes, got num_classes={num_classes}."
                " Leave num_classes out, and add classes afterwards with maxsep.grow(model, new_classes)."
            )
        return MaxSeparationHead.from_linear(linear, radius)

    return replace_classifier(model, head_for, classifier)


def replace_classifier(
    model: nn.Module, build: Callable[[nn.Linear], nn.Module], classifier: str | None = None
) -> nn.Module:
    """Swap the classifier of a model, and its auxiliary ones, for what `build` makes of them, in place.

    The new layer is moved to the old one's device and dtype and takes its train mode; where the old weight or bias was
    frozen, so is the new one. Given a bare nn.Linear, the new layer is returned.

    Args:
        model: The network.
        build: Called with each nn.Linear; returns a module that maps (..., in_features) to (..., num_classes).
        classifier: Path of the layer, where it is named by hand.

    >>> from maxsep.heads import build
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
    >>> replace_classifier(model, lambda old: build("scaled", old.in_features, old.out_features, radius=0.1))[1]
    ScaledHead(in_features=8, num_classes=3, radius=0.1)
    """
    found = locate(model, classifier)
    refuse_other_problems(model)
    new = [_like(build(linear), linear) for _, linear in found]  # all built before any is put in place
    if isinstance(model, nn.Linear):
        return new[0]
    for (path, linear), head in zip(found, new, strict=True):
        swap(model, path, head)
        follow_num_classes(model, path, linear.out_features, getattr(head, "out_features", linear.out_features))
    return model


def _fresh_head(linear: nn.Linear, num_classes: int, radius: float) -> MaxSeparationHead:
    weight, has_bias = linear.weight, linear.bias is not None
    return MaxSeparationHead(
        linear.in_features, num_classes, radius, has_bias, device=weight.device, dtype=weight.dtype
    )


def _like(new: nn.Module, linear: nn.Linear) -> nn.Module:
    new.to(linear.weight).train(linear.training)
    for name, parameter in new.named_parameters():
        old = linear.bias if name == "bias" and isinstance(linear.bias, torch.Tensor) else linear.weight
        if not old.requires_grad:
            parameter.requires_grad_(False)
    return new
