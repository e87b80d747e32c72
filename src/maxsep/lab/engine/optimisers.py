"""The optimisers that a spec can name, in the form that the device runs fastest."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from maxsep.lab.spec import RunSpec

NAMES = ("adamw", "sgd")


def build_optimiser(spec: RunSpec, network: nn.Module, *, capturable: bool = False) -> Optimizer:
    """Build the spec's optimiser over all trained parameters of a network that is on its device already.

    Args:
        spec: Names the optimiser and its numbers.
        network: All of its parameters get the same weight decay, as in the paper's protocol. With `spec.head_rate`
            other than 1 the head is a group of its own.
        capturable: Keep the learning rate in a tensor on the device, so that a captured step reads what
            `set_learning_rate` writes.

    >>> type(build_optimiser(RunSpec(), nn.Linear(2, 2))).__name__
    'SGD'
    """
    groups = _groups(spec, network)
    device = groups[0]["params"][0].device
    on_gpu = device.type == "cuda"
    for group in groups:
        # a rate in float32 on the device: the fused kernels read it there
        rate = spec.learning_rate * group["factor"]
        group["lr"] = torch.tensor(rate, device=device) if capturable else rate
    if spec.optimiser == "sgd":
        return SGD(
            groups,
            lr=groups[0]["lr"],
            momentum=spec.momentum,
            nesterov=spec.nesterov,
            weight_decay=spec.weight_decay,
            fused=on_gpu or None,
        )
    if spec.optimiser == "adamw":
        return AdamW(
            groups,
            lr=groups[0]["lr"],
            weight_decay=spec.weight_decay,
            fused=on_gpu or None,
            capturable=capturable,
        )
    raise ValueError(f"unknown optimiser {spec.optimiser!r}. Known: {', '.join(NAMES)}.")


def set_learning_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of all groups, each times its factor, in place where it lives on the device."""
    for group in optimiser.param_groups:
        scaled = rate * group.get("factor", 1.0)
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(scaled)
        else:
            group["lr"] = scaled


def _groups(spec: RunSpec, network: nn.Module) -> list[dict[str, Any]]:
    """Collect the trained parameters; the head's apart if it learns at another rate (its logit factors do not)."""
    trained = {name: value for name, value in network.named_parameters() if value.requires_grad}
    if spec.head_rate == 1:
        return [{"params": list(trained.values()), "factor": 1.0}]
    head = [name for name in trained if name.startswith("head.") and name != "head.scale"]
    rest = [value for name, value in trained.items() if name not in head]
    groups = [
        {"params": rest, "factor": 1.0},
        {"params": [trained[name] for name in head], "factor": spec.head_rate},
    ]
    return [group for group in groups if group["params"]]
