"""Find the layer of a model that computes its logits, and refuse layers that must not be replaced."""

import re
from collections.abc import Iterator, Sequence

from torch import nn
from torch.nn.utils import parametrize

from maxsep.heads import Head
from maxsep.surgery.pointwise import is_pointwise, sizes

Classifiers = list[tuple[str, nn.Linear | nn.Conv2d]]
"""Paths and layers; the main classifier comes first."""

NAMES = re.compile(r"(classifier|fc|heads?|score|linear|last_linear|logits_proj|classification_head|cls_classifier)$")
"""Names that libraries give to the last part of a network."""

AUXILIARY = re.compile(r"aux|head_dist$|dist_head$|.*distill", re.IGNORECASE)
"""Path components of additional heads: those of GoogLeNet, Inception and VOLO, and distillation heads."""

POOLS = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)
AVERAGES = ("AveragedModel", "ModelEmaV2", "ModelEmaV3")
"""Classes of torch and timm that hold the running average of a model as `module`."""


def locate(model: nn.Module, classifier: str | None = None) -> Classifiers:
    """Return the classifier of a model, followed by its auxiliary and distillation heads of the same width.

    timm models name it (`get_classifier`). transformers models keep it outside their base model. In other models it is
    the last layer of an nn.Sequential, the last child if it has a usual name (`fc`, `classifier`, `head`, ...), or the
    only linear layer. A 1 x 1 convolution counts too in timm models; in others next to a pooling layer, if it ends an
    nn.Sequential or is the last child with a usual name. If several layers are possible, the error lists them. With the
    path `classifier`, auxiliary heads are left alone. The path of a bare nn.Linear is "".
    """
    refuse_wrapped(model)
    layers = _search(model) if classifier is None else [_at_path(model, classifier)]
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
    """Return the module inside averages (AveragedModel, timm's), DDP, DataParallel and torch.compile wrappers."""
    while (inner := model._modules["module"] if _is_average(model) else _wrapped(model)) is not None:
        model = inner
    return model


def refuse_wrapped(model: nn.Module) -> None:
    """Raise if the model is wrapped: wrappers keep references to the old parameters and code."""
    if _wrapped(model) is not None:
        kind = type(model).__name__
        raise ValueError(f"model must not be wrapped, got {kind}: pass the model inside of it, and wrap it again after")


def refuse_shared(model: nn.Module, heads: Sequence[Head]) -> None:
    """Raise if a module other than these heads uses one of their parameters."""
    inside = {module for head in heads for module in head.modules()}
    parameters = {id(parameter) for head in heads for parameter in head.parameters()}
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if id(parameter) in parameters and module not in inside:
                raise ValueError(f"a head shares a parameter with {join(path, name)!r}: give the head a copy first")


def replace_everywhere(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module at all its places in a model."""
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module is old and path:
            model.set_submodule(path, new)


def join(*names: str) -> str:
    """Join parts of a path, which may be empty."""
    return ".".join(name for name in names if name)


def _is_average(model: nn.Module) -> bool:
    return any(kind.__name__ in AVERAGES for kind in type(model).__mro__)


def _wrapped(model: nn.Module) -> nn.Module | None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module: nn.Module = model.module
        return module
    return model._modules.get("_orig_mod") if type(model).__name__ == "OptimizedModule" else None  # torch.compile


def _at_path(model: nn.Module, path: str) -> tuple[str, nn.Linear | nn.Conv2d]:
    try:
        layer = model.get_submodule(path)
    except AttributeError:
        raise ValueError(f"classifier={path!r} is not a path of this model; {_list(_candidates(model))}") from None
    if isinstance(layer, Head):
        raise ValueError(_already([(path, layer)]))
    if not (isinstance(layer, nn.Linear) or is_pointwise(layer)):
        kind, layers = type(layer).__name__, _list(_candidates(layer, path))
        raise ValueError(f"classifier={path!r} must be an nn.Linear or a 1 x 1 Conv2d, got {kind}; {layers}")
    return path, layer


def _search(model: nn.Module) -> Classifiers:
    if heads := find_heads(model):
        raise ValueError(_already(heads))
    prefix, inner = _innermost(model)
    if callable(getattr(inner, "get_classifier", None)) and callable(getattr(inner, "reset_classifier", None)):
        layers = _timm(inner)
    elif hasattr(inner, "base_model_prefix") and hasattr(getattr(inner, "config", None), "id2label"):
        layers = _transformers(inner)
    else:
        layers = _by_name(inner)
        for path, layer in layers:
            _check_pooled(inner, path, layer)
    main = [(join(prefix, path), layer) for path, layer in layers]
    paths, width = {path for path, _ in main}, sizes(main[0][1])[1]
    return main + [(path, x) for path, x in _auxiliary(model) if path not in paths and sizes(x)[1] == width]


def _innermost(model: nn.Module, path: str = "") -> tuple[str, nn.Module]:
    """Return path and module of the network in a LightningModule or an average; of others "" and the model."""
    refuse_wrapped(model)
    children = [(name, child) for name, child in model.named_children() if next(child.parameters(), None) is not None]
    is_lightning = any(kind.__name__ == "LightningModule" for kind in type(model).__mro__)
    if len(children) == 1 and (is_lightning or _is_average(model)):
        return _innermost(children[0][1], join(path, children[0][0]))
    return path, model


def _check_pooled(model: nn.Module, path: str, layer: nn.Module) -> None:
    siblings = model.get_submodule(path.rpartition(".")[0]).children()
    if not isinstance(layer, nn.Linear) and not any(isinstance(one, POOLS) for one in siblings):
        advice = f"pass classifier={path!r} if it gives the logits of classes"
        raise ValueError(f"the convolution at {path!r} has no average pooling next to it: {advice}")


def _timm(model: nn.Module, prefix: str = "") -> Classifiers:
    classifier = model.get_classifier()  # type: ignore[operator]
    parts = classifier if isinstance(classifier, tuple | list) else [classifier]
    paths = {id(module): path for path, module in model.named_modules()}
    layers = [pair for part in parts for pair in _last_layers(part, join(prefix, paths[id(part)]))]
    if not layers:
        kind = type(parts[0]).__name__
        raise ValueError(f"get_classifier() must return a linear layer, got {kind}: call reset_classifier(C) first")
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
    return _single(module, _linears(module, path), path)


def _single(module: nn.Module, layers: Classifiers, path: str = "") -> Classifiers:
    if len(layers) != 1:
        listed = _list(layers or _candidates(module, path))
        raise ValueError(f"no single classifier in {type(module).__name__}; {listed}")
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
    if is_pointwise(last) or isinstance(last, nn.Linear):
        return [(last_path, last)]
    if _is_conv(last):
        advice = "end the model with pooling and an nn.Linear"
        raise ValueError(f"the classifier at {last_path!r} must be an nn.Linear or 1 x 1, got {last}: {advice}")
    return []


def _auxiliary(model: nn.Module) -> Iterator[tuple[str, nn.Linear | nn.Conv2d]]:
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


def _candidates(module: nn.Module, prefix: str = "") -> Classifiers:
    """Return the linear layers of a module, or its 1 x 1 convolutions if it has none."""
    if linears := _linears(module, prefix):
        return linears
    return [(join(prefix, path), part) for path, part in module.named_modules() if is_pointwise(part)]


def _check_replaceable(model: nn.Module, path: str, layer: nn.Linear | nn.Conv2d) -> None:
    """Raise if a layer shares, computes or packs its weight, or does not compute class logits."""
    where = f"the classifier at {path!r}"
    if isinstance(layer, nn.LazyLinear):
        raise ValueError(f"{where} is a lazy layer without a size: run one batch through the model first")
    if parametrize.is_parametrized(layer) or not isinstance(layer.weight, nn.Parameter):
        raise ValueError(f"{where} computes its weight (weight norm, pruning): remove the parametrization first")
    if layer.weight.shape[:2] != sizes(layer)[::-1] or not layer.weight.is_floating_point():
        raise ValueError(f"{where} has a packed or quantised weight of {layer.weight.dtype}: attach before quantising")
    if sizes(layer)[1] == 1:
        advice = "give it one output per class first, or leave a regression as it is"
        raise ValueError(f"{where} must have at least 2 outputs, got 1: {advice}")
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if (parameter is layer.weight or parameter is layer.bias) and name.rpartition(".")[0] != path:
            raise ValueError(f"{where} shares its parameters with {name!r}: give it a copy of them first")
    if any(isinstance(module, nn.Sigmoid) for module in _behind(model, path)):
        # a sigmoid per label depends on a common shift of the logits, which maximum separation removes
        advice = "remove it if every sample has one class, else leave the model as it is"
        raise ValueError(f"{where} must give softmax logits, but a Sigmoid follows it: {advice}")


def activation_behind(model: nn.Module, path: str) -> str | None:
    """Return the name of an activation behind a layer that depends on the mean of its outputs over classes."""
    return next((type(module).__name__ for module in _behind(model, path) if _sees_mean_logit(module)), None)


def _sees_mean_logit(module: nn.Module) -> bool:
    """Return whether a module is an activation of torch, other than a softmax along the classes."""
    if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.Softmin):
        return module.dim not in (None, -1, 1)
    is_activation = any(kind.__module__ == nn.ReLU.__module__ for kind in type(module).__mro__)
    return is_activation and not isinstance(module, nn.Softmax2d)


def _behind(model: nn.Module, path: str) -> list[nn.Module]:
    """Return the modules that are registered after a layer, or after the part that ends with it."""
    while path:
        path, _, name = path.rpartition(".")
        children = list(model.get_submodule(path).named_children())
        later = children[[child for child, _ in children].index(name) + 1 :]
        if later:  # the layer is not the last one of this part, so the layers after it decide
            return [child for _, child in later]
    return []


def _is_conv(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)


def _already(heads: list[tuple[str, Head]]) -> str:
    listed = ", ".join(f"{head} at {path!r}" for path, head in heads)
    return f"the model already has {listed}: use maxsep.grow for more classes, maxsep.fold before another head"


def _list(layers: Classifiers) -> str:
    listed = ", ".join(f"{path!r} ({sizes(layer)[0]} -> {sizes(layer)[1]})" for path, layer in layers[-10:])
    if not listed:
        return "linear layers and 1 x 1 convolutions: none; end the model with an nn.Linear or a MaxSeparationHead"
    kind = "linear layers" if isinstance(layers[-1][1], nn.Linear) else "1 x 1 convolutions"
    return f"pass classifier='path.to.layer'; last {kind}: {listed}"
