"""Replace heads by plain torch layers with the same logits, for inference without maxsep."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, pairwise

import torch
from torch import Tensor, nn

from maxsep.heads import Head, MaxSeparation
from maxsep.heads.base import linear_from
from maxsep.surgery.locate import unwrap
from maxsep.surgery.pointwise import Pointwise
from maxsep.surgery.pretrained import undo_fold_on_save

LARGEST_MATRIX = 10_000  # classes of a dense layer, which has 400 MB in float32


def fold(model_or_head: nn.Module) -> nn.Module:
    """Copy a model, or one head, with plain torch layers and the same logits.

    A head becomes the equivalent nn.Linear (after a normalisation, if it compares directions), with rows in the order
    of the classes. nn.Linear followed by MaxSeparation in an nn.Sequential becomes one nn.Linear and an nn.Identity,
    which keeps the numbering. Any other MaxSeparation becomes a frozen nn.Linear with the dense matrix, up to 10,000
    classes. A head in the place of a 1 x 1 convolution becomes an nn.Conv2d. Device, dtype, train mode and
    requires_grad are kept. DDP, torch.compile, AveragedModel and timm's EMA wrappers are removed.

    Pitfall: continue training with the original. The folded layer has the gradients of a plain classifier. Hooks on a
    head stay with the head.

    >>> from maxsep import MaxSeparationHead
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), MaxSeparationHead(8, 3))
    >>> folded, x = fold(model), torch.randn(2, 4)
    >>> folded[2], torch.allclose(folded(x), model(x), atol=1e-6)
    (Linear(in_features=8, out_features=3, bias=True), True)
    """
    if not isinstance(model_or_head, nn.Module):
        raise TypeError(f"model_or_head must be an nn.Module, got {type(model_or_head).__name__}")
    model = unwrap(model_or_head)
    heads = [module for module in model.modules() if isinstance(module, Head | MaxSeparation)]
    if not heads:
        raise ValueError(f"{type(model).__name__} has no head of maxsep to fold")
    for head in heads:
        _check_forward(head)
    with full_precision():
        root = nn.ModuleList([copy.deepcopy(model)])  # a parent for a bare head
        _merge_linear_and_matrix(root)
        _fold_children(root, _first_tensor(root), {})
    for module in root.modules():
        undo_fold_on_save(module)
    return root[0]


@contextmanager
def full_precision() -> Iterator[None]:
    """Let results have full precision and be trainable, also for callers under autocast or in inference mode."""
    no_autocast = torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False)
    with torch.inference_mode(False), torch.no_grad(), no_autocast[0], no_autocast[1]:
        yield


def _fold_children(parent: nn.Module, like: Tensor, folded: dict[nn.Module, nn.Module]) -> None:
    for name, child in list(parent._modules.items()):
        if isinstance(child, Head | MaxSeparation):
            if child not in folded:  # a head at two places stays one layer
                folded[child] = _fold_head(child, like) if isinstance(child, Head) else _dense(child, like)
            parent.set_submodule(name, folded[child])
        elif child is not None:
            _fold_children(child, like, folded)
            if isinstance(child, Pointwise):
                folded[child] = folded.get(child) or child.convolution()
                parent.set_submodule(name, folded[child])


def _fold_head(head: Head, like: Tensor) -> nn.Module:
    tensor = _first_tensor(head)
    if not tensor.numel() and like.numel():
        head.to(like)  # a head without tensors takes the device and dtype of the model
    folded = head.folded().train(head.training)
    if tensor.numel():
        folded.to(tensor)
    parameters = list(head.named_parameters())
    trained = any(p.requires_grad for name, p in parameters if not name.endswith(("bias", "scale")))
    bias = next((p for name, p in parameters if name.endswith("bias")), None)
    for index, layer in enumerate(part for part in folded.modules() if isinstance(part, nn.Linear)):
        layer.weight.requires_grad_(trained and index == 0)  # a second layer holds fixed class vectors
        if layer.bias is not None and bias is not None:
            layer.bias.requires_grad_(bias.requires_grad)
    return folded


def _dense(matrix: MaxSeparation, like: Tensor) -> nn.Linear:
    classes = matrix.num_classes
    if classes > LARGEST_MATRIX:
        raise ValueError(f"MaxSeparation without an nn.Linear folds up to {LARGEST_MATRIX} classes, got {classes}")
    device = like.device if matrix.class_order is None else matrix.class_order.device
    columns = matrix(torch.eye(classes - 1, dtype=like.dtype, device=device))  # (C-1, C), the radius included
    return linear_from(columns.T.contiguous(), None).train(matrix.training).requires_grad_(False)


def _merge_linear_and_matrix(model: nn.Module) -> None:
    for parent in list(model.modules()):
        if not isinstance(parent, nn.Sequential) or type(parent).forward is not nn.Sequential.forward:
            continue
        for (before, layer), (after, matrix) in pairwise(list(parent._modules.items())):
            if isinstance(matrix, MaxSeparation) and isinstance(layer, nn.Linear) and _is_free(layer, model):
                bias = None if layer.bias is None else matrix(layer.bias)
                parent.set_submodule(before, linear_from(matrix(layer.weight.T).T.contiguous(), bias, layer))
                parent.set_submodule(after, nn.Identity().train(matrix.training))


def _is_free(layer: nn.Linear, model: nn.Module) -> bool:
    """Return whether a plain nn.Linear has no hooks and shares no parameter."""
    if type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    uses = [p for _, p in model.named_parameters(remove_duplicate=False) if p is layer.weight or p is layer.bias]
    return len(uses) == len(list(layer.parameters()))


def _check_forward(module: Head | MaxSeparation) -> None:
    """Raise if a subclass changes the logits but inherits the plain form."""
    kind = type(module)
    plain_form = {"folded", "linear_form"}
    parent = next((c for c in kind.__mro__ if plain_form & vars(c).keys()), MaxSeparation)
    for name in ("forward", "features", "layer"):
        inherited = getattr(parent, name, nn.Module.forward)
        if inherited is not nn.Module.forward and getattr(kind, name) is not inherited:
            raise ValueError(f"{kind.__name__} overrides {name}(), so it must define linear_form() or folded() too")


def _first_tensor(module: nn.Module) -> Tensor:
    tensors = chain(module.parameters(), module.buffers())
    return next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(0))
