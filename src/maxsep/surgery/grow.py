"""Add classes to a trained head without moving the old ones."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep.checks import check_count
from maxsep.heads import ETFHead, Head, MaxSeparationHead
from maxsep.ops import adjoint, separate
from maxsep.surgery.attach import update_num_classes
from maxsep.surgery.fold import full_precision
from maxsep.surgery.locate import find_heads, refuse_shared, refuse_wrapped, replace_everywhere

Growable = MaxSeparationHead | ETFHead
ROWS = ("weight", "bias")
FIRST_MOMENTS = ("momentum_buffer", "exp_avg")
SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq")


def grow(model_or_head: nn.Module, new_classes: int, *, optimiser: torch.optim.Optimizer | None = None) -> nn.Module:
    """Append classes: old classes keep their index and their logits.

    In a MaxSeparationHead the new classes start with logit 0. This is fold, then zero rows, then `from_linear`: the
    logits sum to zero, and zeros do not change that. New classes take the last columns of P. An ETFHead takes the new
    classes from its reserved vertices, so that their logits are not 0.

    A model is changed in place and returned: all its heads grow, and its number of classes and labels are updated. A
    bare head is not changed: a new one is returned.

    Args:
        model_or_head: A model with a MaxSeparationHead or ETFHead, or such a head.
        new_classes: At least 1.
        optimiser: SGD, Adam or AdamW that trains it. It gets the new parameters and keeps its state: momentum is mapped
            like the weight; Adam's second moments are kept and start at their mean over classes in new rows.

    Pitfall: without `optimiser=`, an existing optimiser continues to train the old parameters; build a new one. Grow an
    averaged copy of the model too.

    >>> head, x = MaxSeparationHead(8, 3), torch.randn(2, 8)
    >>> grown = grow(head, 2)
    >>> torch.allclose(grown(x)[:, :3], head(x), atol=1e-6), grown(x)[:, 3:].abs().max() < 1e-6
    (True, tensor(True))
    """
    check_count("new_classes", new_classes)
    refuse_wrapped(model_or_head)
    heads = _growable_heads(model_or_head)
    if optimiser is not None:
        _check_optimiser(optimiser, [head for _, head in heads])
    with full_precision():
        grown = _grow_all([head for _, head in heads], new_classes)
        if optimiser is not None:
            for (_, head), new in zip(heads, grown, strict=True):
                _carry_state(optimiser, head, new)
    if isinstance(model_or_head, Head):
        return grown[0]
    for (path, head), new in zip(heads, grown, strict=True):
        replace_everywhere(model_or_head, head, new)
        update_num_classes(model_or_head, path, head.num_classes, new.num_classes, keep_labels=True)
    return model_or_head


def _growable_heads(model: nn.Module) -> list[tuple[str, Growable]]:
    heads: list[tuple[str, Growable]] = []
    for path, head in find_heads(model):
        if not isinstance(head, MaxSeparationHead | ETFHead):
            raise TypeError(f"grow takes MaxSeparationHead and ETFHead, got {type(head).__name__} at {path!r}")
        for name in ROWS:
            if name not in head._parameters and isinstance(head, MaxSeparationHead):
                raise ValueError(f"the head at {path!r} computes its {name}: remove the parametrization or mask first")
        heads.append((path, head))
    if not heads:
        raise ValueError(f"{type(model).__name__} has no head of maxsep; maxsep.attach(model, keep_weights=True) first")
    if len({head.num_classes for _, head in heads}) > 1:
        sizes = ", ".join(f"{path!r}: {head.num_classes}" for path, head in heads)
        raise ValueError(f"the heads must have the same number of classes, got {sizes}: grow one by itself")
    refuse_shared(model, [head for _, head in heads])
    return heads


def _grow_all(heads: list[Growable], new_classes: int) -> list[Growable]:
    grown = [_grow_head(head, new_classes) for head in heads]
    first: dict[nn.Parameter, nn.Parameter] = {}  # heads that share a parameter still do
    for head, new in zip(heads, grown, strict=True):
        for name, old in head.named_parameters(recurse=False):
            parameter = new.get_parameter(name) if name in ROWS else old
            parameter.requires_grad_(old.requires_grad)
            setattr(new, name, first.setdefault(old, parameter))
    return grown


def _grow_head(head: Growable, new_classes: int) -> Growable:
    devices = {parameter.device for parameter in head.parameters() if parameter.is_cuda}
    with torch.random.fork_rng(devices=list(devices)):  # the initial values are not used
        new = _grow_etf(head, new_classes) if isinstance(head, ETFHead) else _grow_maxsep(head, new_classes)
    return new.train(head.training)


def _grow_maxsep(head: MaxSeparationHead, new_classes: int) -> MaxSeparationHead:
    classes, order = head.num_classes + new_classes, head.class_order
    if order is not None:
        order = torch.cat([order, torch.arange(head.num_classes, classes, device=order.device)])
    new = type(head).like(head, classes, head.radius, class_order=order)
    for name, rows in head.named_parameters(recurse=False):
        if name in ROWS:
            new.get_parameter(name).copy_(_grow_rows(rows, new_classes))
    return new


def _grow_etf(head: ETFHead, new_classes: int) -> ETFHead:
    if new_classes > head.reserved:
        raise ValueError(f"new_classes must be at most reserved={head.reserved} of this ETFHead, got {new_classes}")
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
        new.bias.copy_(_pad_zeros(head.bias, new_classes))
    if head.directions is not None:
        new.directions = head.directions.clone()
    return new


def _grow_rows(rows: Tensor, new_classes: int) -> Tensor:
    """Map rows of a weight or bias, (C-1, ...), to (C-1+n, ...): apply P, append zero rows, undo P."""
    columns = rows.double().reshape(len(rows), -1).T  # (..., C-1)
    logits = F.pad(separate(columns), (0, new_classes))
    classes = logits.shape[-1]
    grown = adjoint(logits, (classes - 1) / classes).T
    return grown.reshape(-1, *rows.shape[1:]).to(rows.dtype)


def _pad_zeros(rows: Tensor, new_classes: int) -> Tensor:
    return torch.cat([rows, rows.new_zeros(new_classes, *rows.shape[1:])])


def _check_optimiser(optimiser: torch.optim.Optimizer, heads: list[Growable]) -> None:
    trained = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
    for head in heads:
        parameters = list(head.parameters())
        if parameters and not any(id(parameter) in trained for parameter in parameters):
            raise ValueError(f"optimiser must train the head, got one without a parameter of {head}")
    # a wrapper such as timm's Lookahead has the state of its base optimiser in the state dict alone
    is_known = isinstance(optimiser, torch.optim.SGD | torch.optim.Adam | torch.optim.AdamW)
    if not is_known and (optimiser.state or optimiser.state_dict().get("state", True)):
        kind = type(optimiser).__name__
        raise TypeError(f"optimiser must be SGD, Adam or AdamW once it has state, got {kind}: build a new one")


def _carry_state(optimiser: torch.optim.Optimizer, head: Growable, new: Growable) -> None:
    """Replace the parameters of a head in an optimiser, with their state."""
    first_moment: Callable[[Tensor, int], Tensor] = _pad_zeros if isinstance(head, ETFHead) else _grow_rows
    new_classes = new.num_classes - head.num_classes

    def grow_state(key: str, value: Any) -> Any:
        if isinstance(value, Tensor) and key in FIRST_MOMENTS:
            return first_moment(value, new_classes)
        if isinstance(value, Tensor) and key in SECOND_MOMENTS:
            # not zero: the bias correction is over, and Adam would take its longest steps there
            return torch.cat([value, value.mean(0, keepdim=True).expand(new_classes, *value.shape[1:])])
        return value

    for name, old in head.named_parameters(recurse=False):
        if name not in ROWS:
            continue
        parameter = new.get_parameter(name)
        for group in optimiser.param_groups:
            group["params"] = [parameter if p is old else p for p in group["params"]]
        if old in optimiser.state:
            state = optimiser.state.pop(old)
            optimiser.state[parameter] = {key: grow_state(key, value) for key, value in state.items()}
