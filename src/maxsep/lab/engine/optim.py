"""The optimisers and schedules that a spec can name; a learning rate is a pure function of the epoch and the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from maxsep.lab.spec import RunSpec

OPTIMISERS = ("adamw", "sgd")


def build_optimiser(spec: RunSpec, network: nn.Module, *, capturable: bool = False) -> Optimizer:
    """Build the spec's optimiser over all trained parameters of a network that is on its device already.

    `capturable` keeps the learning rate in a tensor on the device, so that a captured step reads what
    `set_learning_rate` writes.
    """
    groups = _groups(spec, network)
    device = groups[0]["params"][0].device
    fused = device.type == "cuda" or None
    for group in groups:
        # a rate in float32 on the device: the fused kernels read it there
        rate = spec.learning_rate * group["factor"]
        group["lr"] = torch.tensor(rate, device=device) if capturable else rate
    if spec.optimiser == "sgd":
        return SGD(groups, lr=groups[0]["lr"], momentum=spec.momentum, nesterov=spec.nesterov, fused=fused)
    if spec.optimiser == "adamw":
        return AdamW(groups, lr=groups[0]["lr"], fused=fused, capturable=capturable)
    raise ValueError(f"unknown optimiser {spec.optimiser!r}. Known: {', '.join(OPTIMISERS)}.")


def set_learning_rate(optimiser: Optimizer, rate: float, *, freezes: bool = False) -> None:
    """Set the learning rate of all groups, each times its factor, in place where it lives on the device.

    With `freezes` the backbone gets the rate 0, so that a captured step stays valid when it is trained later.
    """
    for group in optimiser.param_groups:
        scaled = 0.0 if freezes and group.get("backbone") else rate * group.get("factor", 1.0)
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(scaled)
        else:
            group["lr"] = scaled


def _groups(spec: RunSpec, network: nn.Module) -> list[dict[str, Any]]:
    """Collect the trained parameters; the head is a group of its own if it has its own rate or decay.

    Logit factors (`head.scale`) belong to the other parameters. With a `stem_rate` every layer has a group too.
    """
    if spec.stem_rate != 1 or spec.freeze_epochs:
        return _layer_groups(spec, network)
    trained = {name: value for name, value in network.named_parameters() if value.requires_grad}
    is_split = spec.head_rate != 1 or spec.head_decay != 1
    head = [name for name in trained if is_split and name.startswith("head.") and name != "head.scale"]
    rest = [value for name, value in trained.items() if name not in head]
    decay = spec.weight_decay
    groups = [(rest, 1.0, decay), ([trained[name] for name in head], spec.head_rate, decay * spec.head_decay)]
    return [{"params": params, "factor": factor, "weight_decay": wd} for params, factor, wd in groups if params]


def _layer_groups(spec: RunSpec, network: nn.Module) -> list[dict[str, Any]]:
    """Collect the trained parameters by layer, in the network's order, the head last.

    A layer is what the first two names of a module's path say: `conv_stem`, `blocks.3`, `layer2.0`. Layer i of n has
    the factor stem_rate ** (1 - i / n).
    """
    layers: dict[tuple[str, ...], list[nn.Parameter]] = {}
    head: list[nn.Parameter] = []
    for name, value in network.named_parameters():
        path = tuple(name.removeprefix("backbone.").split("."))
        if value.requires_grad:
            (head if path[0] == "head" else layers.setdefault(path[:-1][:2], [])).append(value)
    decay, groups = spec.weight_decay, list[dict[str, Any]]()
    for index, params in enumerate(layers.values()):
        factor = spec.stem_rate ** (1 - index / len(layers))
        groups.append({"params": params, "factor": factor, "weight_decay": decay, "backbone": True})
    return [*groups, {"params": head, "factor": spec.head_rate, "weight_decay": decay * spec.head_decay}]


class Moment(NamedTuple):
    """A point in training: `epoch` of `epochs` and `step` of `steps` per epoch, both counted from 0."""

    epoch: int
    step: int
    epochs: int
    steps: int


def constant(moment: Moment, base: float) -> float:
    """Keep the base rate."""
    return base


def cosine(moment: Moment, base: float) -> float:
    """Fall from base along half a cosine, once an epoch: base/2 (1 + cos(pi e / E))."""
    return base / 2 * (1 + math.cos(math.pi * moment.epoch / moment.epochs))


def step(moment: Moment, base: float, *, every: int = 30, factor: float = 0.1) -> float:
    """Multiply by `factor` every `every` epochs."""
    return base * factor ** (moment.epoch // every)


def milestones(
    moment: Moment, base: float, *, at: tuple[int, ...] = (160, 180), factors: tuple[float, ...] = (0.1, 0.01)
) -> float:
    """From epoch `at[i]` on, use base times `factors[i]` (not their product)."""
    if len(at) != len(factors) or list(at) != sorted(at):
        raise ValueError(f"milestones needs as many increasing epochs as factors, got at={at!r}, factors={factors!r}.")
    passed = sum(moment.epoch >= epoch for epoch in at)
    return base * (factors[passed - 1] if passed else 1.0)


def ldam(moment: Moment, base: float, *, factors: tuple[float, ...] = (0.01, 0.0001)) -> float:
    """Follow LDAM's schedule: 1 % from epoch 160 of 200 and 0.01 % from epoch 180, after 5 epochs of warm-up."""
    last_fifth = round(0.8 * moment.epochs), round(0.9 * moment.epochs)  # epochs 160 and 180 in a run of any length
    return milestones(moment, base, at=last_fifth, factors=factors)


def mislas(moment: Moment, base: float) -> float:
    """Follow MiSLAS's first stage: 10 % from epoch 160 of 200 and 1 % from epoch 180, after 5 epochs of warm-up."""
    return ldam(moment, base, factors=(0.1, 0.01))


def cosine_steps(moment: Moment, base: float, *, final: float = 1e-6, ramp: int = 0) -> float:
    """Fall along half a cosine from base to `final`, every step; update i of I, counted from 1, uses lr(i).

    Over the first `ramp` epochs, at most half of all, the rate also rises linearly with every step.
    """
    update, total = moment.epoch * moment.steps + moment.step + 1, moment.epochs * moment.steps
    rate = final + (base - final) / 2 * (1 + math.cos(math.pi * update / total))
    rise = min(ramp * moment.steps, total / 2)
    return rate * min(1.0, update / rise) if rise else rate


def restarts(moment: Moment, base: float, *, cycles: int = 3, warmup: int = 10, floor: float = 1e-3) -> float:
    """Restart a cosine `cycles` times, after one linear warm-up, as open-set recognition's scripts do.

    As there, every value comes one epoch late: epoch 0 runs at the floor, epochs 1 to `warmup` rise to what the cosine
    has at epoch `warmup`, and epoch e follows with the cosine of e - 1. A cycle is a whole number of epochs, so a run
    whose epochs do not divide evenly begins one more cycle near its end.
    """
    low, length = base * floor, max(1, moment.epochs // cycles)

    def wave(epoch: float) -> float:
        return low + (base - low) / 2 * (1 + math.cos(math.pi * (epoch % length) / length))

    if moment.epoch <= warmup:
        return low + (wave(warmup) - low) * moment.epoch / warmup if warmup else wave(0)
    return wave(moment.epoch - 1)


SCHEDULES: dict[str, Callable[..., float]] = {
    function.__name__: function
    for function in (constant, cosine, step, milestones, ldam, mislas, cosine_steps, restarts)
}
_WARMUPS = {"ldam": 5, "mislas": 5}


def learning_rate(spec: RunSpec, epoch: int, step: int = 0, steps: int = 1) -> float:
    """Return the learning rate of `step` of `steps` in an epoch, both counted from 0.

    Every schedule but `restarts`, which has its own, takes the option `warmup`: over that many epochs the rate rises
    linearly, from 1/warmup of its value in epoch 0.
    """
    if spec.schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {spec.schedule!r}. Known: {', '.join(sorted(SCHEDULES))}.")
    options: dict[str, Any] = dict(spec.schedule_options)
    warmup = 0 if spec.schedule == "restarts" else options.pop("warmup", _WARMUPS.get(spec.schedule, 0))
    try:
        rate = SCHEDULES[spec.schedule](Moment(epoch, step, spec.epochs, steps), spec.learning_rate, **options)
    except TypeError as error:
        raise ValueError(f"schedule {spec.schedule!r} does not take the options {options!r}: {error}") from error
    return rate * ((epoch + 1) / warmup) if epoch < warmup else rate
