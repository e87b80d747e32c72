"""Add classes to a trained head without moving the old ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maxsep.checks import check_count
from maxsep.heads import ETFHead, Head, MaxSeparationHead
from maxsep.surgery.follow import follow_num_classes
from maxsep.surgery.growth import grow_rows
from maxsep.surgery.locate import find_heads
from maxsep.surgery.optimiser_state import carry_optimiser_state, check_can_carry
from maxsep.surgery.own_parameters import ROWS, refuse_computed, refuse_shared
from maxsep.surgery.tree import refuse_wrapped, swap

__all__ = ["grow"]


def grow(model_or_head: nn.Module, new_classes: int, *, optimiser: torch.optim.Optimizer | None = None) -> nn.Module:
    """Make room for more classes: old labels keep their index, new ones are appended.

    A MaxSeparationHead gives the new classes logit 0 and leaves every old logit, and so the argmax among the old
    classes, as it was until it is trained on: the logits sum to zero, and zeros do not change that. It is fold, then
    zero rows, then `from_linear`: an ordinary head at the same radius, which can grow again. An ETFHead takes the new
    classes from its reserved vertices; there the old logits stay, and the new ones say where those vertices are.

    A model is changed in place and returned, all its heads together, and its number of classes and labels follow; a
    bare head is left alone and a new one returned.

    Args:
        model_or_head: A model with a MaxSeparationHead or ETFHead, or such a head itself.
        new_classes: How many classes are added, at least 1.
        optimiser: SGD, Adam or AdamW that trains it: it is pointed to the new parameters and keeps its momentum.

    Pitfall: without `optimiser=`, an optimiser that exists goes on training the old parameters; build a new one.

    >>> head, x = MaxSeparationHead(8, 3), torch.randn(2, 8)
    >>> grown = grow(head, 2)
    >>> torch.allclose(grown(x)[:, :3], head(x), atol=1e-6), grown(x)[:, 3:].abs().max() < 1e-6
    (True, tensor(True))
    """
    check_count("new_classes", new_classes)
    if not isinstance(model_or_head, nn.Module):
        raise TypeError(f"grow takes a model or a head, got {type(model_or_head).__name__}. Pass an nn.Module.")
    refuse_wrapped(model_or_head)
    heads = find_heads(model_or_head)
    _check_heads(model_or_head, heads)
    with torch.inference_mode(False), torch.no_grad():  # what is made can be trained on, wherever the call stands
        grown = _all_grown([head for _, head in heads], new_classes)
        if optimiser is not None:
            for _, head in heads:  # all before any is carried
                check_can_carry(optimiser, head)
            for (_, head), new in zip(heads, grown, strict=True):
                carry_optimiser_state(optimiser, head, new)
    if isinstance(model_or_head, Head):
        return grown[0]
    for (path, head), new in zip(heads, grown, strict=True):
        for place, module in list(model_or_head.named_modules(remove_duplicate=False)):
            if module is head:
                swap(model_or_head, place, new)
        follow_num_classes(model_or_head, path, head.num_classes, new.num_classes, keep_labels=True)
    return model_or_head


def _check_heads(model: nn.Module, heads: list[tuple[str, Head]]) -> None:
    if not heads:
        raise ValueError(
            f"{type(model).__name__} has no head of maxsep to grow. "
            "Use maxsep.attach(model, keep_weights=True) first, which changes no probability."
        )
    for path, head in heads:
        if not isinstance(head, MaxSeparationHead | ETFHead):
            raise TypeError(
                f"grow knows MaxSeparationHead, and ETFHead with reserved vertices, got {type(head).__name__}"
                f"{f' at {path!r}' if path else ''}. Fold it and take it over with MaxSeparationHead.from_linear."
            )
        if isinstance(head, MaxSeparationHead):
            refuse_computed(head, "grown")
    refuse_shared(model, [head for _, head in heads], "grown")
    if len({head.num_classes for _, head in heads}) > 1:
        told = ", ".join(f"{path!r}: {head.num_classes} classes" for path, head in heads)
        raise ValueError(
            f"the heads of this model have different numbers of classes ({told}), so they do different tasks. "
            "Grow the one that is meant and put it back: model.task = maxsep.grow(model.task, new_classes)."
        )


def _all_grown(heads: list[Head], new_classes: int) -> list[Head]:
    grown = [_grown(head, new_classes) for head in heads]
    first: dict[Tensor | None, Tensor | None] = {None: None}
    for head, new in zip(heads, grown, strict=True):
        for name in ROWS:
            if name in new._parameters:  # what heads share stays shared
                setattr(new, name, first.setdefault(getattr(head, name), getattr(new, name)))
    return grown


def _grown(head: Head, new_classes: int) -> Head:
    assert isinstance(head, MaxSeparationHead | ETFHead)
    new = _grown_etf(head, new_classes) if isinstance(head, ETFHead) else _grown_maxsep(head, new_classes)
    new.train(head.training)
    for name, parameter in head.named_parameters():
        new.get_parameter(name).requires_grad_(parameter.requires_grad)
    return new


def _grown_maxsep(head: MaxSeparationHead, new_classes: int) -> MaxSeparationHead:
    num_classes = head.num_classes + new_classes
    new = type(head)(
        head.in_features, num_classes, head.radius, head.bias is not None, device="meta", dtype=head.weight.dtype
    ).to_empty(device=head.weight.device)  # nothing is drawn: the random state stays as it was
    new.weight.copy_(grow_rows(head.weight, new_classes))
    if head.bias is not None and new.bias is not None:
        new.bias.copy_(grow_rows(head.bias, new_classes))
    return new


def _grown_etf(head: ETFHead, new_classes: int) -> ETFHead:
    if new_classes > head.reserved:
        raise ValueError(
            f"this ETFHead has {head.reserved} reserved vertices, got new_classes={new_classes}. Nothing is trained "
            "after its features, so it can only grow into vertices that were kept: build it with reserved=... ."
        )
    like = head.class_vectors()
    new = ETFHead(
        head.in_features,
        head.num_classes + new_classes,
        head.radius,
        normalise=head.normalise,
        reserved=head.reserved - new_classes,
        rotation=head.rotation,
        bias=head.bias is not None,
        device=like.device,
        dtype=like.dtype,
    )
    if head.bias is not None and new.bias is not None:
        new.bias[: head.num_classes].copy_(head.bias)
    if head.directions is not None:
        new.directions = head.directions.clone()  # those it was trained with, wherever they came from
    return new
