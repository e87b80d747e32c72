"""Replace the matrix by a plain layer that SGD goes on training in exactly the same way."""

from itertools import chain, compress
from typing import Any

import torch
from torch import nn

from maxsep.heads import MaxSeparationHead
from maxsep.surgery.fold import fold, full_precision
from maxsep.surgery.locate import activation_behind, find_heads, refuse_shared, refuse_wrapped, replace_everywhere

RATES = ("lr", "initial_lr", "max_lr", "min_lr")  # keys of a param group; the last two are OneCycleLR's
PROPORTIONAL = (
    "LambdaLR, MultiplicativeLR, StepLR, MultiStepLR, ConstantLR, LinearLR, ExponentialLR, PolynomialLR, OneCycleLR, "
    "CosineAnnealingLR, CosineAnnealingWarmRestarts"
)
"""Schedulers whose learning rate is proportional to the base rate, the cosines for eta_min = 0."""


def to_plain_sgd(model: nn.Module, optimiser: torch.optim.SGD, *schedulers: Any) -> nn.Module:
    """Replace each MaxSeparationHead by an nn.Linear that trains on exactly alike: the same without maxsep.

    The layer is weight' = radius * P^T weight, and its bias likewise. With k = radius^2 C/(C-1) it gets the head's
    learning rate times k, its weight decay divided by k, and the momentum radius * P^T momentum / k. From then on the
    logits of every step are those that the head would give, up to rounding, if the loss ignores a common shift of the
    logits, as cross-entropy does. The mean of weight' over classes is zero, gets no gradient and stays zero.

    Model, optimiser and schedulers are changed in place, and the model is returned; for a bare head, the new layer. The
    layer has a param group of its own, unless the head had one.

    Args:
        model: A network with one or more MaxSeparationHead, such as `attach` returns; wrap it in DDP again afterwards.
        optimiser: The torch.optim.SGD that trains it: momentum, Nesterov and coupled decay, but not `maximize`.
        schedulers: All learning rate schedulers of the optimiser. Their rates must be proportional to the base rate.
            Those of other libraries, such as timm's, are not taken: convert first, then build them.

    Pitfall: gradient clipping in the training loop cannot be seen here and must not be used afterwards: the gradients
    of the two layers have different norms. The same holds for SAM.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), MaxSeparationHead(8, 3, radius=0.1))
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    >>> to_plain_sgd(model, optimiser)[2]
    Linear(in_features=8, out_features=3, bias=True)
    >>> [(round(group["lr"], 4), round(group["weight_decay"], 4)) for group in optimiser.param_groups]
    [(0.1, 0.01), (0.0015, 0.6667)]
    """
    refuse_wrapped(model)
    # not of a subclass, whose plain form may have another factor than k
    heads = [(path, head) for path, head in find_heads(model) if type(head) is MaxSeparationHead]
    if not heads or len(heads) < len(find_heads(model)):
        kinds = [type(head).__name__ for _, head in find_heads(model)]
        raise TypeError(f"model must have a MaxSeparationHead and no other head, got {kinds}")
    parts = list(chain.from_iterable(getattr(scheduler, "_schedulers", [scheduler]) for scheduler in schedulers))
    _check_optimiser(optimiser, parts)
    for path, head in heads:
        if kind := activation_behind(model, path):
            advice = "define it before the head if it is applied before, else leave the model as it is"
            raise ValueError(f"{kind}, which depends on the mean logit, follows the head at {path!r}: {advice}")
        refuse_shared(model, [head])
        _check_head(optimiser, head)
    layers = {head: fold(head) for _, head in heads}
    for head, layer in layers.items():
        k = head.radius**2 * head.num_classes / (head.num_classes - 1)
        _move_groups(optimiser, {*parts, *schedulers}, set(head.parameters()), k)
        for name, old in head.named_parameters():
            _carry_state(optimiser, head, old, layer.get_parameter(name), k)
        replace_everywhere(model, head, layer)
    return layers[model] if isinstance(model, MaxSeparationHead) else model


def _check_optimiser(optimiser: torch.optim.SGD, schedulers: list[Any]) -> None:
    if type(optimiser) is not torch.optim.SGD:
        raise TypeError(f"optimiser must be torch.optim.SGD, got {type(optimiser).__name__}")
    if any(group["maximize"] for group in optimiser.param_groups):
        raise ValueError("optimiser must minimise, got maximize=True")
    if optimiser._optimizer_step_pre_hooks or optimiser._optimizer_step_post_hooks:
        raise ValueError("optimiser must have no step hooks, got some: they would see other gradients")
    if not schedulers and any("initial_lr" in group for group in optimiser.param_groups):
        raise ValueError("schedulers must hold all schedulers of the optimiser, got none although it has one")
    for scheduler in schedulers:
        kind, eta_min = type(scheduler).__name__, getattr(scheduler, "eta_min", None) or 0
        if kind not in PROPORTIONAL.split(", "):
            raise ValueError(f"schedulers must be torch's {PROPORTIONAL}, got {kind}: build it after the conversion")
        if eta_min:
            raise ValueError(f"schedulers must have eta_min=0, got {kind} with {eta_min=}")
        if scheduler.optimizer is not optimiser:
            raise ValueError(f"schedulers must be of the optimiser, got {kind} of another one")


def _check_head(optimiser: torch.optim.SGD, head: MaxSeparationHead) -> None:
    if head._forward_hooks or head._forward_pre_hooks or head._backward_hooks or head._backward_pre_hooks:
        raise ValueError("the head must have no hooks, got some: the new layer would not have them")
    trained = {parameter for group in optimiser.param_groups for parameter in group["params"]}
    for name, parameter in head.named_parameters():
        if parameter.requires_grad and parameter not in trained:
            raise ValueError(f"optimiser must train the head, got one without its {name}")
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise ValueError(f"{name} must have no gradient hooks, got some: they would see other gradients")


def _move_groups(optimiser: torch.optim.SGD, schedulers: set[Any], parameters: set[nn.Parameter], k: float) -> None:
    """Give the parameters of a head k times the rate and 1/k times the decay, in groups of their own."""
    for index, group in enumerate(optimiser.param_groups[:]):
        is_moved = [parameter in parameters for parameter in group["params"]]
        if not any(is_moved):
            continue
        target, is_new = group, not all(is_moved)
        if is_new:
            target = dict(group)
            for key in {"params", "param_names"} & group.keys():
                target[key] = list(compress(group[key], is_moved))
                group[key] = list(compress(group[key], [not moved for moved in is_moved]))
            optimiser.param_groups.append(target)
        target |= {key: target[key] * k for key in RATES if key in target}
        target["weight_decay"] = target["weight_decay"] / k
        for scheduler in schedulers:
            _scale_rates(scheduler, index, k, is_new)


def _scale_rates(scheduler: Any, index: int, k: float, is_new: bool) -> None:
    """Scale the base rates of a group, or add a group with the scaled rates of another one."""
    state = vars(scheduler)
    for name in {"base_lrs", "_last_lr"} & state.keys():
        rates = list(state[name])  # a copy: SequentialLR shares the list of its parts
        place = len(rates) if is_new else index
        rates[place : place + 1] = [rates[index] * k]
        setattr(scheduler, name, rates)
    if is_new and "lr_lambdas" in state:
        scheduler.lr_lambdas = [*scheduler.lr_lambdas, scheduler.lr_lambdas[index]]


def _carry_state(
    optimiser: torch.optim.SGD, head: MaxSeparationHead, old: nn.Parameter, new: nn.Parameter, k: float
) -> None:
    """Replace a parameter in an optimiser, with its momentum and its gradient."""
    with full_precision():
        if old.grad is not None:
            new.grad = head.compose(old.grad) / k
        buffer = optimiser.state.pop(old, {}).get("momentum_buffer")
        if buffer is not None:
            optimiser.state[new] = {"momentum_buffer": head.compose(buffer) / k}
    for group in optimiser.param_groups:
        group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
