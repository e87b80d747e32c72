"""Fit saved tensors to a model whose heads are in the other form: folded where they were not, or the reverse."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from maxsep.heads import Head, MaxSeparation, MaxSeparationHead, PlainHead, build, names
from maxsep.heads.base import FixedRadius, linear_from
from maxsep.heads.registry import name_of
from maxsep.ops import separate
from maxsep.surgery.locate import find_heads
from maxsep.surgery.tree import join, submodule

__all__ = ["HeadRecord", "fit_to_model", "records_of"]

State = dict[str, Tensor]
MATRIX = "matrix"
"""The kind of a MaxSeparation, which is a layer and no head."""
OPTIONS = ("normalise", "reserved", "rotation", "iterations")


@dataclass(frozen=True)
class HeadRecord:
    """What a saved folder says of one head: where it stands, and all that is needed to build it again."""

    path: str
    kind: str
    """Its name in the registry; for a class that is not registered, the class's."""
    in_features: int
    num_classes: int
    radius: float
    options: dict[str, Any] = field(default_factory=dict)


def records_of(model: nn.Module) -> tuple[HeadRecord, ...]:
    """Describe every head of a model.

    >>> records_of(nn.Sequential(MaxSeparationHead(4, 3)))[0].kind
    'maxsep'
    """
    first = {path: index for index, (path, _) in enumerate(find_heads(model))}
    places = list(model.named_modules(remove_duplicate=False))  # a head that stands at two places is told twice
    heads = [
        HeadRecord(path, _kind(head), head.in_features, head.num_classes, head.radius, _options(head))
        for path, head in places
        if isinstance(head, Head)
    ]
    matrices = [
        HeadRecord(path, MATRIX, layer.num_classes - 1, layer.num_classes, layer.radius, _place(model, path))
        for path, layer in places
        if isinstance(layer, MaxSeparation)
    ]
    return (*sorted(heads, key=lambda record: first.get(record.path, len(first))), *matrices)


def fit_to_model(state: State, records: tuple[HeadRecord, ...], model: nn.Module) -> State:
    """Return the tensors under the names and in the shapes that the model expects, or say what does not fit.

    A saved head meets an ordinary layer: its folded tensors are given. A saved ordinary layer meets a
    MaxSeparationHead: it is taken over as `from_linear` does, probabilities unchanged.
    """
    state = dict(state)
    modules = dict(model.named_modules(remove_duplicate=False))
    for record in records:
        target = modules.get(record.path)
        if isinstance(target, Head | MaxSeparation):
            _check_same(record, target)
        elif record.kind == MATRIX:
            _merge_into_layer(state, record)
        elif target is not None:
            _replace(state, record.path, _folded_state(state, record))
    saved = {record.path for record in records}
    for path, head in modules.items():
        if isinstance(head, Head) and path not in saved:
            _replace(state, path, _unfolded_state(state, path, head))
    _check_fits(state, model)
    return state


def _place(model: nn.Module, path: str) -> dict[str, Any]:
    """Name the nn.Linear that `fold` would merge it with."""
    parent, _, name = path.rpartition(".")
    owner = submodule(model, parent)
    names = list(owner._modules) if isinstance(owner, nn.Sequential) else []
    before = names[names.index(name) - 1] if name in names and names.index(name) > 0 else None
    return {} if before is None else {"layer": join(parent, before)}


def _merge_into_layer(state: State, record: HeadRecord) -> None:
    """Fold a saved MaxSeparation into the layer before it, as `fold` does with the modules."""
    layer = record.options.get("layer")
    if layer is None or f"{layer}.weight" not in state:
        return  # the comparison of names and shapes will say what does not fit
    radius = record.radius
    state[f"{layer}.weight"] = separate(state[f"{layer}.weight"].T, radius).T.contiguous()
    if f"{layer}.bias" in state:
        state[f"{layer}.bias"] = separate(state[f"{layer}.bias"], radius)
    state.pop(join(record.path, "_extra_state"), None)


def _kind(head: nn.Module) -> str:
    if isinstance(head, MaxSeparation):
        return MATRIX
    assert isinstance(head, Head)
    return name_of(head) or type(head).__qualname__


def _options(head: Head) -> dict[str, Any]:
    told = {name: value for name in OPTIONS if (value := getattr(head, name, None)) is not None}
    return {"bias": getattr(head, "bias", None) is not None} | told


def _check_same(record: HeadRecord, head: Head | MaxSeparation) -> None:
    where = f"the head at {record.path!r}" if record.path else "the head"
    pairs = (
        ("kind", record.kind, _kind(head)),
        ("num_classes", record.num_classes, head.num_classes),
        ("in_features", record.in_features, getattr(head, "in_features", record.in_features)),
        ("radius", record.radius, head.radius),
    )
    for what, was, now in pairs:
        if was != now:
            raise ValueError(
                f"{where} was saved with {what} {was}, but the model's has {what} {now}: its logits would be other "
                f"ones. Build the model's head with {what} {was}."
            )


def _folded_state(state: State, record: HeadRecord) -> State:
    if record.kind not in names():
        raise ValueError(
            f"the head at {record.path!r} is a {record.kind}, which is not registered here, so it cannot become "
            "an ordinary layer. Register it with maxsep.heads.register, or load into a model that has one."
        )
    with torch.device("meta"):  # the tensors come from the file
        head = build(record.kind, record.in_features, record.num_classes, record.radius, **record.options)
    head.load_state_dict(_part(state, record.path), assign=True)
    if not [*head.parameters(), *head.buffers()]:
        head.to_empty(device="cpu").double()  # nothing came from the file: made here, and rounded where it goes
    return dict(head.folded().state_dict())


def _unfolded_state(state: State, path: str, head: Head) -> State:
    part = _part(state, path)
    weight, bias = part.get("weight"), part.get("bias")
    told = {name: tuple(tensor.shape) for name, tensor in part.items()}
    same_bias = len(part) == len(list(head.parameters()))
    fits = weight is not None and weight.shape == (head.num_classes, head.in_features) and same_bias
    if not fits or not isinstance(head, MaxSeparationHead | PlainHead):
        raise ValueError(
            f"the saved model has no head at {path!r}, only {told or 'nothing'}, which does not determine a "
            f"{head}. Load it into a model with ordinary layers, then use maxsep.attach(model, keep_weights=True)."
        )
    if isinstance(head, PlainHead):
        return part | {"_extra_state": head.get_extra_state()}
    assert weight is not None
    return dict(MaxSeparationHead.from_linear(linear_from(weight, bias), head.radius).state_dict())


def _part(state: State, path: str) -> State:
    prefix = f"{path}." if path else ""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _replace(state: State, path: str, part: State) -> None:
    prefix = f"{path}." if path else ""
    for name in [name for name in state if name.startswith(prefix)]:
        del state[name]
    state.update({prefix + name: tensor for name, tensor in part.items()})


def _check_fits(state: State, model: nn.Module) -> None:
    """Compare names, shapes and radii before anything is copied: a refused load leaves the model as it was."""
    expected = model.state_dict()
    wrong = [f"{name!r} is missing in the saved model" for name in expected if name not in state]
    wrong += [f"{name!r} is not in this model" for name in sorted(state) if name not in expected]
    wrong += [
        f"{name!r} has shape {tuple(tensor.shape)}, the model's {tuple(expected[name].shape)}"
        for name, tensor in sorted(state.items())
        if name in expected and tensor.shape != expected[name].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ValueError(
            f"the saved model does not fit this {type(model).__name__}: {'; '.join(wrong[:5])}{more}. "
            "Build the same network with the same number of classes."
        )
    for path, module in model.named_modules():
        if isinstance(module, FixedRadius):
            module.set_extra_state(state[f"{path}._extra_state" if path else "_extra_state"])
