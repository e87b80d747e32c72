"""Give a model plain torch layers with the same logits: nothing of maxsep is left at inference."""

from __future__ import annotations

import copy
from itertools import chain, pairwise

import torch
from torch import Tensor, nn

from maxsep.heads import Head, MaxSeparation
from maxsep.heads.base import LayerHead, linear_from
from maxsep.heads.controls import LogitScaledHead
from maxsep.ops import separate
from maxsep.simplex import simplex
from maxsep.surgery.tree import swap, unwrap

__all__ = ["fold"]

LARGEST_MATRIX = 10_000
"""Classes up to which a MaxSeparation that stands alone is written out as a dense layer (400 MB in float32)."""


def fold(model_or_head: nn.Module) -> nn.Module:
    """Copy a model, or one head, with plain torch layers and the same logits.

    Every head becomes the nn.Linear it amounts to (a normalisation and an nn.Linear where it compares directions);
    nn.Linear followed by MaxSeparation in an nn.Sequential becomes one nn.Linear and an nn.Identity, so that the
    numbering stays. Any other MaxSeparation becomes a frozen nn.Linear that holds the matrix, up to 10,000 classes.
    Device, dtype, train mode and requires_grad are kept. A model inside DDP or torch.compile is taken out first.

    Pitfall: train on with the original. The folded layer has other gradients: it is a plain classifier. Hooks on a
    head stay with the head.

    >>> from maxsep import MaxSeparationHead
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), MaxSeparationHead(8, 3))
    >>> folded, x = fold(model), torch.randn(2, 4)
    >>> folded[2], torch.allclose(folded(x), model(x), atol=1e-6)
    (Linear(in_features=8, out_features=3, bias=True), True)
    """
    if not isinstance(model_or_head, nn.Module):
        raise TypeError(f"fold takes a model or a head, got {type(model_or_head).__name__}. Pass an nn.Module.")
    model = unwrap(model_or_head)
    if not any(isinstance(module, Head | MaxSeparation) for module in model.modules()):
        raise ValueError(
            f"{type(model).__name__} has no head of maxsep, so there is nothing to fold. "
            "Pass the model that maxsep.attach returned."
        )
    for module in model.modules():
        if isinstance(module, Head | MaxSeparation):
            _check_forward(module)
    # Weights are multiplied in their own precision, and can be trained on, wherever the call stands.
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        return _folded(model)


def _folded(model: nn.Module) -> nn.Module:
    box = nn.ModuleList([copy.deepcopy(model)])  # a root above the root: a bare head is then like any other
    _merge_pairs(box)
    like = _reference(box)
    done: dict[int, nn.Module] = {}  # a module that stands at two places stays one module
    for path, module in list(box.named_modules(remove_duplicate=False)):
        if isinstance(module, Head | MaxSeparation) and not _is_inner(box, path):
            if id(module) not in done:
                done[id(module)] = _folded_head(module, like) if isinstance(module, Head) else _matrix(module, like)
            swap(box, path, done[id(module)])
    return box[0]


def _check_forward(module: Head | MaxSeparation) -> None:
    """Raise if a subclass computes other logits than the plain form that it has inherited."""
    kind = type(module)
    if isinstance(module, Head):
        described = min(_depth(kind, "folded"), _depth(kind, "linear_form"))
    else:
        described = kind.__mro__.index(MaxSeparation)
    parent = kind.__mro__[described]
    for name in ("forward", "features", "layer"):
        inherited = getattr(parent, name, nn.Module.forward)
        if inherited is not nn.Module.forward and getattr(kind, name) is not inherited:
            raise ValueError(
                f"{kind.__name__} has a {name}() of its own, but inherits what it is folded to from "
                f"{parent.__name__}: the folded layer would have other logits. "
                "Define linear_form() or folded() beside it, or fold a head without it."
            )


def _depth(kind: type, name: str) -> int:
    """How far up a class takes an attribute from: 0 is the class itself."""
    return next(depth for depth, parent in enumerate(kind.__mro__) if name in vars(parent))


def _is_inner(model: nn.Module, path: str) -> bool:
    """Whether a head stood inside another one, which has been folded, and it with it."""
    place = model
    for name in path.split("."):
        if name not in place._modules:
            return True
        place = place.get_submodule(name)
    return False


def _reference(model: nn.Module) -> Tensor:
    tensors = chain(model.parameters(), model.buffers())
    return next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(0))


def _folded_head(head: Head, like: Tensor) -> nn.Module:
    """Fold one head; what was fixed in it is frozen in its plain form."""
    own = _reference(head)
    if not own.numel() and like.numel():
        head.to(like)  # a head without tensors goes with the model around it
    folded = head.folded().train(head.training)
    folded = folded.to(own) if own.numel() else folded
    inner = head.head if isinstance(head, LogitScaledHead) else head
    trained = isinstance(inner, LayerHead) and any(
        parameter.requires_grad for name, parameter in head.named_parameters() if not name.endswith("bias")
    )
    bias = getattr(inner, "bias", None)
    for index, layer in enumerate(part for part in folded.modules() if isinstance(part, nn.Linear)):
        layer.weight.requires_grad_(trained and index == 0)  # a second layer holds fixed class vectors
        if layer.bias is not None and bias is not None:
            layer.bias.requires_grad_(bias.requires_grad)
    return folded


def _merge_pairs(model: nn.Module) -> None:
    for parent in list(model.modules()):
        if not isinstance(parent, nn.Sequential) or type(parent).forward is not nn.Sequential.forward:
            continue
        names = list(parent._modules)
        for before, after in pairwise(names):
            layer, matrix = parent._modules[before], parent._modules[after]
            if isinstance(matrix, MaxSeparation) and isinstance(layer, nn.Linear) and _is_free(layer, model):
                setattr(parent, before, _merged(layer, matrix))
                setattr(parent, after, nn.Identity().train(matrix.training))


def _is_free(layer: nn.Linear, model: nn.Module) -> bool:
    """Whether a layer is a plain nn.Linear that nothing else uses or watches."""
    if type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    places = [parameter for _, parameter in model.named_parameters(remove_duplicate=False)]
    return sum(parameter is layer.weight or parameter is layer.bias for parameter in places) == len(
        list(layer.parameters())
    )


@torch.no_grad()
def _merged(layer: nn.Linear, matrix: MaxSeparation) -> nn.Linear:
    bias = None if layer.bias is None else separate(layer.bias, matrix.radius)
    weight = separate(layer.weight.T, matrix.radius).T.contiguous()
    merged = linear_from(weight, bias).train(layer.training)
    merged.weight.requires_grad_(layer.weight.requires_grad)
    if merged.bias is not None:
        merged.bias.requires_grad_(layer.bias.requires_grad)
    return merged


def _matrix(module: MaxSeparation, like: Tensor) -> nn.Linear:
    if module.num_classes > LARGEST_MATRIX:
        raise ValueError(
            f"MaxSeparation of {module.num_classes} classes has no nn.Linear before it to merge with, and written out "
            f"it would need {4 * module.num_classes**2 / 2**30:.1f} GiB; at most {LARGEST_MATRIX} classes are. "
            "Put the layer before it next to it in an nn.Sequential, or use MaxSeparationHead."
        )
    matrix = simplex(module.num_classes, dtype=like.dtype, device=like.device)
    dense = matrix * module.radius
    linear = linear_from(dense.T.contiguous(), None).train(module.training)
    return linear.requires_grad_(False)
