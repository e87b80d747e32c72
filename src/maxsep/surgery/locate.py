"""Find the layer of a model that computes its logits, and refuse layers that must not be replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import nn
from torch.nn.utils import parametrize

from maxsep.heads import Head

Classifiers = list[tuple[str, nn.Linear]]
"""Paths and layers; the main classifier comes first."""

NAMES = re.compile(r"(classifier|fc|heads?|score|linear|last_linear|logits_proj|classification_head|cls_classifier)$")
"""Names that libraries give to the last part of a network."""

AUXILIARY = re.compile(r"aux|head_dist$|dist_head$|.*distill", re.IGNORECASE)
"""Path components of additional heads: those of GoogLeNet, Inception and VOLO, and distillation heads."""


def locate(model: nn.Module, classifier: str | None = None) -> Classifiers:
    """Return the classifier of a model, followed by its auxiliary and distillation heads of the same width.

    timm models name it (`get_classifier`). transformers models keep it outside their base model. In other models it is
    the last layer of an nn.Sequential, the last child if it has a usual name (`fc`, `classifier`, `head`, ...), or the
    only linear layer. If several layers are possible, the error lists them. With the path `classifier`, auxiliary heads
    are left alone. The path of a bare nn.Linear is "".
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    refuse_wrapped(model)
    layers = _search(model) if classifier is None else _at_path(model, classifier)
    for path, layer in layers:
        _check_replaceable(model, path, layer)
    return layers


def find_heads(model: nn.Module) -> list[tuple[str, Head]]:
    """List the heads of maxsep in a model with their paths, auxiliary heads last.

    >>> from maxsep import MaxSeparationHead
    >>> find_heads(nn.Sequential(MaxSeparationHead(4, 3)))
    [('0', MaxSeparationHead(in_features=4, num_classes=3, radius=1))]
    """
    heads = [(path, module) for path, module in model.named_modules() if isinstance(module, Head)]
    return sorted(heads, key=lambda pair: _is_auxiliary(pair[0]))


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside DDP, DataParallel and torch.compile wrappers."""
    while (inner := _wrapped(model)) is not None:
        model = inner
    return model


def refuse_wrapped(model: nn.Module) -> None:
    """Raise if the model is wrapped: wrappers keep references to the old parameters and code."""
    if _wrapped(model) is not None:
        raise ValueError(f"model must not be wrapped, got {type(model).__name__}: change its inside and wrap it anew")


def refuse_shared(model: nn.Module, heads: Sequence[Head]) -> None:
    """Raise if a module other than these heads uses one of their parameters."""
    inside = {module for head in heads for module in head.modules()}
    parameters = {id(parameter) for head in heads for parameter in head.parameters()}
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if id(parameter) in parameters and module not in inside:
                raise ValueError(f"a head shares a parameter with {join(path, name)!r}, which would be untied")


def replace_everywhere(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module at all its places in a model."""
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module is old and path:
            model.set_submodule(path, new)


def join(*names: str) -> str:
    """Join parts of a path, which may be empty."""
    return ".".join(name for name in names if name)


def _wrapped(model: nn.Module) -> nn.Module | None:
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module: nn.Module = model.module
        return module
    return model._modules.get("_orig_mod") if type(model).__name__ == "OptimizedModule" else None  # torch.compile


def _at_path(model: nn.Module, path: str) -> Classifiers:
    try:
        layer = model.get_submodule(path)
    except AttributeError:
        raise ValueError(f"classifier={path!r} is not a path of this model; {_list(_linears(model))}") from None
    if isinstance(layer, Head):
        raise ValueError(_already([(path, layer)]))
    if not isinstance(layer, nn.Linear):
        layers = _list(_linears(layer, path))
        raise ValueError(f"classifier={path!r} must be an nn.Linear, got {type(layer).__name__}; {layers}")
    return [(path, layer)]


def _search(model: nn.Module) -> Classifiers:
    if heads := find_heads(model):
        raise ValueError(_already(heads))
    if callable(getattr(model, "get_classifier", None)) and callable(getattr(model, "reset_classifier", None)):
        main = _timm(model)
    elif hasattr(model, "base_model_prefix") and hasattr(getattr(model, "config", None), "id2label"):
        main = _transformers(model)
    else:
        main = _by_name(model)
    paths, width = {path for path, _ in main}, main[0][1].out_features
    return main + [(path, x) for path, x in _auxiliary(model) if path not in paths and x.out_features == width]


def _timm(model: nn.Module, prefix: str = "") -> Classifiers:
    classifier = model.get_classifier()  # type: ignore[operator]
    parts = classifier if isinstance(classifier, tuple | list) else [classifier]
    paths = {id(module): path for path, module in model.named_modules()}
    layers = [pair for part in parts for pair in _last_layers(part, join(prefix, paths[id(part)]))]
    if not layers:
        kind = type(parts[0]).__name__
        raise ValueError(f"get_classifier() must return a linear layer, got {kind}: call reset_classifier first")
    return layers


def _transformers(model: nn.Module) -> Classifiers:
    name = type(model).__name__
    if "Classification" not in name:
        raise ValueError(f"model must be a classification model, got {name}; or pass classifier='path.to.layer'")
    inner = getattr(model, "timm_model", None)
    if isinstance(inner, nn.Module):
        return _timm(inner, "timm_model")
    children = [
        (path, child)
        for path, child in model.named_children()
        if path != model.base_model_prefix and not AUXILIARY.match(path)
    ]
    named = [pair for path, child in children if NAMES.match(path) for pair in _last_layers(child, path)]
    layers = named or [pair for path, child in children for pair in _last_layers(child, path)]
    return _single(model, layers or _linears(model))


def _by_name(module: nn.Module, path: str = "") -> Classifiers:
    """Search a module of unknown origin by the names of its children and the order of nn.Sequential."""
    if isinstance(module, nn.Linear):
        return [(path, module)]
    children = [
        (name, child)
        for name, child in module.named_children()
        if next(child.parameters(), None) is not None and not AUXILIARY.match(name)
    ]
    if isinstance(module, nn.Sequential) and children:
        name, child = children[-1]
        return _last_layers(child, join(path, name)) if _is_conv(child) else _by_name(child, join(path, name))
    named = [(name, child) for name, child in children if NAMES.match(name)]
    if len(named) == 1 and named[0] == children[-1]:
        name, child = named[0]
        if layers := _last_layers(child, join(path, name)):
            return layers
    return _single(module, _linears(module, path))


def _single(module: nn.Module, layers: Classifiers) -> Classifiers:
    if len(layers) != 1:
        raise ValueError(f"no single classifier in {type(module).__name__}; {_list(layers)}")
    return layers


def _last_layers(module: nn.Module, path: str) -> Classifiers:
    """Return the last layer with parameters, if it is linear; of each child of an nn.ModuleList."""
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
        raise ValueError(f"the classifier at {last_path!r} must be an nn.Linear, got the convolution {last}")
    return [(last_path, last)] if isinstance(last, nn.Linear) else []


def _auxiliary(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for path, module in model.named_modules():
        parent, _, name = path.rpartition(".")
        if AUXILIARY.match(name) and not _is_auxiliary(parent):
            yield from _last_layers(module, path)


def _is_auxiliary(path: str) -> bool:
    return any(AUXILIARY.match(component) for component in path.split("."))


def _linears(module: nn.Module, prefix: str = "") -> Classifiers:
    # the output projection of attention is a subclass of nn.Linear, but no classifier
    projections = {id(part.out_proj) for part in module.modules() if isinstance(part, nn.MultiheadAttention)}
    return [
        (join(prefix, path), part)
        for path, part in module.named_modules()
        if isinstance(part, nn.Linear) and id(part) not in projections
    ]


def _check_replaceable(model: nn.Module, path: str, layer: nn.Linear) -> None:
    """Raise if a layer shares, computes or packs its weight, or does not compute class logits."""
    where = f"the classifier at {path!r}"
    if isinstance(layer, nn.LazyLinear):
        raise ValueError(f"{where} is a lazy layer without a size: run one batch through the model first")
    if parametrize.is_parametrized(layer) or not isinstance(layer.weight, nn.Parameter):
        raise ValueError(f"{where} computes its weight (weight norm, pruning): remove the parametrization first")
    if layer.weight.shape != (layer.out_features, layer.in_features) or not layer.weight.is_floating_point():
        raise ValueError(f"{where} has a packed or quantised weight of {layer.weight.dtype}, expected floating point")
    if layer.out_features == 1:
        raise ValueError(f"{where} must have at least 2 outputs, got 1: a regression or a binary score")
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if (parameter is layer.weight or parameter is layer.bias) and name.rpartition(".")[0] != path:
            raise ValueError(f"{where} shares its parameters with {name!r}; a head would untie them")
    if _sigmoid_follows(model, path):
        # a sigmoid per label depends on a common shift of the logits, which maximum separation removes
        raise ValueError(f"{where} must give softmax logits, but a Sigmoid follows it")


def _sigmoid_follows(model: nn.Module, path: str) -> bool:
    """Return whether a Sigmoid is registered after the layer, or after a part that ends with it."""
    while path:
        path, _, name = path.rpartition(".")
        children = list(model.get_submodule(path).named_children())
        later = children[[child for child, _ in children].index(name) + 1 :]
        if later:  # the layer is not the last one of this part, so the layers after it decide
            return any(isinstance(child, nn.Sigmoid) for _, child in later)
    return False


def _is_conv(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)


def _already(heads: list[tuple[str, Head]]) -> str:
    listed = ", ".join(f"{head} at {path!r}" for path, head in heads)
    return f"the model already has {listed}: use maxsep.grow for more classes, maxsep.fold before another head"


def _list(layers: Classifiers) -> str:
    listed = ", ".join(f"{path!r} ({layer.in_features} -> {layer.out_features})" for path, layer in layers[-10:])
    return f"pass classifier='path.to.layer'; last linear layers: {listed or 'none'}"
