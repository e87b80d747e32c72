"""Find the layer of a model that gives its logits, or say why none can be meant."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn
from torch.nn.utils import parametrize

from maxsep.heads import Head
from maxsep.surgery.tree import join, refuse_wrapped, submodule
from maxsep.surgery.vet import vet

__all__ = ["Found", "find_heads", "locate"]

Found = list[tuple[str, nn.Linear]]
"""Classifiers of one model, each with its path; the first is the main one."""

NAMES = (
    "classifier",
    "fc",
    "head",
    "heads",
    "score",
    "linear",
    "last_linear",
    "logits_proj",
    "classification_head",
    "cls_classifier",
)
"""What libraries call the last part of a network."""

AUXILIARY = re.compile(r"aux|head_dist$|dist_head$|.*distill", re.IGNORECASE)
"""Path components of heads that are trained beside the main one: GoogLeNet's, Inception's, VOLO's, distilled ones."""

LISTED = 20  # paths in one message


def locate(model: nn.Module, classifier: str | None = None) -> Found:
    """Find the classifier of a model, and the auxiliary and distilled ones that are trained beside it.

    timm models say it themselves (`get_classifier`); transformers models keep it outside their base model; others are
    recognised by the name of their last part (`fc`, `classifier`, `head`, ...), by being an nn.Sequential, or by having
    one linear layer only. Nothing is guessed: where several layers could be meant, the error lists them.

    Args:
        model: Any module; a bare nn.Linear is its own classifier, at path "".
        classifier: Path of the layer, where it is named by hand; auxiliary heads are then left alone.

    >>> locate(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    [('2', Linear(in_features=8, out_features=3, bias=True))]
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}. Pass the network itself.")
    refuse_wrapped(model)
    found = _by_hand(model, classifier) if classifier is not None else _by_itself(model)
    for path, layer in found:
        vet(model, path, layer)
    return found


def find_heads(model: nn.Module) -> list[tuple[str, Head]]:
    """List the heads of maxsep in a model with their paths, auxiliary ones last.

    >>> from maxsep import MaxSeparationHead
    >>> find_heads(nn.Sequential(MaxSeparationHead(4, 3)))
    [('0', MaxSeparationHead(in_features=4, num_classes=3, radius=1))]
    """
    heads = [(path, module) for path, module in model.named_modules() if isinstance(module, Head)]
    return sorted(heads, key=lambda found: _is_auxiliary(found[0]))


def _by_hand(model: nn.Module, classifier: str) -> Found:
    if not isinstance(classifier, str):
        raise TypeError(
            f"classifier must be the path of a layer such as 'head.fc', got {type(classifier).__name__}. "
            "Paths are those of model.named_modules()."
        )
    layer = submodule(model, classifier)
    if layer is None:
        raise ValueError(
            f"classifier={classifier!r} names no layer of {type(model).__name__}. {_told(_linears(model, ''))}"
        )
    if isinstance(layer, Head):
        raise ValueError(_already([(classifier, layer)]))
    if not isinstance(layer, nn.Linear):
        raise ValueError(
            f"classifier={classifier!r} names a {type(layer).__name__}, not an nn.Linear. "
            + (_told(_linears(layer, classifier)) if not _is_conv(layer) else _conv_told(classifier, layer))
        )
    return [(classifier, layer)]


def _by_itself(model: nn.Module) -> Found:
    heads = find_heads(model)
    if heads:
        raise ValueError(_already(heads))
    if callable(getattr(model, "get_classifier", None)) and callable(getattr(model, "reset_classifier", None)):
        main = _of_timm(model, "")
    elif _is_transformers(model):
        main = _of_transformers(model)
    else:
        main = _of_plain(model, "")
    taken = {path for path, _ in main}
    width = main[0][1].out_features
    return main + [(p, x) for p, x in _auxiliary(model) if p not in taken and x.out_features == width]


def _of_timm(model: nn.Module, prefix: str) -> Found:
    given = model.get_classifier()  # type: ignore[operator]
    parts = given if isinstance(given, tuple | list) else [given]
    paths = {id(module): path for path, module in model.named_modules()}
    found = [pair for part in parts for pair in _last_layers(part, join(prefix, paths[id(part)]))]
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no classifier: its get_classifier() gives {type(parts[0]).__name__}. "
            "It was built with num_classes=0; call model.reset_classifier(num_classes) first."
        )
    return found


def _is_transformers(model: nn.Module) -> bool:
    return hasattr(model, "base_model_prefix") and hasattr(getattr(model, "config", None), "id2label")


def _of_transformers(model: nn.Module) -> Found:
    name = type(model).__name__
    if "Classification" not in name:
        raise ValueError(
            f"{name} is not a classification model, so its last layer gives no class logits. "
            "Use the ...ForImageClassification or ...ForSequenceClassification model, or name the layer with "
            "classifier='path.to.layer'."
        )
    inner = getattr(model, "timm_model", None)
    if isinstance(inner, nn.Module):
        return _of_timm(inner, "timm_model")
    outer = [
        (path, child)
        for path, child in model.named_children()
        if path != model.base_model_prefix and not AUXILIARY.match(path)
    ]
    named = [pair for path, child in outer if path in NAMES for pair in _last_layers(child, path)]
    found = named or [pair for path, child in outer for pair in _last_layers(child, path)]
    if len(found) != 1:
        raise ValueError(f"no single classifier found in {name}. {_told(found or _linears(model, ''))}")
    return found


def _of_plain(module: nn.Module, path: str) -> Found:
    """Search a module of unknown make; only its names and its order in nn.Sequential count as evidence."""
    if isinstance(module, nn.Linear):
        return [(path, module)]
    children = [
        (name, child)
        for name, child in module.named_children()
        if next(child.parameters(), None) is not None and not AUXILIARY.match(name)
    ]
    if isinstance(module, nn.Sequential) and children:
        name, child = children[-1]
        return _of_plain(child, join(path, name)) if not _is_conv(child) else _last_layers(child, join(path, name))
    named = [(name, child) for name, child in children if name in NAMES]
    if len(named) == 1 and named[0] == children[-1]:
        found = _last_layers(named[0][1], join(path, named[0][0]))
        if found:
            return found
    linears = _linears(module, path)
    if len(linears) != 1:
        raise ValueError(f"no single classifier found in {type(module).__name__}. {_told(linears)}")
    return linears


def _last_layers(module: nn.Module, path: str) -> Found:
    """Return the last layer with parameters of a head-like module, of each one in an nn.ModuleList."""
    if isinstance(module, nn.ModuleList):
        return [pair for name, child in module.named_children() for pair in _last_layers(child, join(path, name))]
    owners = [
        (join(path, name), part)
        for name, part in module.named_modules()
        if any(parameter is not None for parameter in part._parameters.values()) or parametrize.is_parametrized(part)
        if not _is_auxiliary(name)
    ]
    if not owners:
        return []
    last_path, last = owners[-1]
    if _is_conv(last):
        raise ValueError(_conv_told(last_path, last))
    return [(last_path, last)] if isinstance(last, nn.Linear) else []


def _auxiliary(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for path, module in model.named_modules():
        above, _, name = path.rpartition(".")
        if AUXILIARY.match(name) and not _is_auxiliary(above):
            yield from _last_layers(module, path)


def _is_auxiliary(path: str) -> bool:
    return any(AUXILIARY.match(component) for component in path.split("."))


def _linears(module: nn.Module, prefix: str) -> Found:
    inside_attention = {
        id(part.out_proj) for part in module.modules() if isinstance(part, nn.MultiheadAttention)
    }  # a projection that happens to subclass nn.Linear
    return [
        (join(prefix, path), part)
        for path, part in module.named_modules()
        if isinstance(part, nn.Linear) and id(part) not in inside_attention
    ]


def _is_conv(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)


def _conv_told(path: str, layer: nn.Module) -> str:
    return (
        f"The classifier at {path!r} is a convolution, {layer}; the head takes vectors. "
        "Pool and flatten before it and put an nn.Linear in its place first."
    )


def _already(heads: list[tuple[str, Head]]) -> str:
    told = ", ".join(f"{head} at {path!r}" for path, head in heads)
    return (
        f"the model already has {told}. For more classes use maxsep.grow(model, new_classes); for another head take "
        "model = maxsep.fold(model) first."
    )


def _told(linears: Found) -> str:
    if not linears:
        return "It has no nn.Linear. Add one with one output per class, or build MaxSeparationHead into the model."
    lines = [f"  {path!r}: {layer.in_features} -> {layer.out_features}" for path, layer in linears]
    if len(lines) > LISTED:
        lines = [f"  ... {len(lines) - LISTED} more before these", *lines[-LISTED:]]
    return "Name one with classifier='path.to.layer'; linear layers:\n" + "\n".join(lines)
