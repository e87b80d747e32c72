"""The optimisers that a spec can name, in the form that the device runs fastest."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from maxsep.lab.spec import RunSpec

NAMES = ("adamw", "sgd")


def build_optimiser(spec: RunSpec, network: nn.Module, *, capturable: bool = False) -> Optimizer:
    """Build the spec's optimiser over all parameters of a network that is on its device already.

    Args:
        spec: Names the optimiser and its numbers.
        network: All of its parameters get the same weight decay, as in the paper's protocol.
        capturable: Keep the learning rate in a tensor on the device, so that a captured step reads what
            `set_learning_rate` writes.

    >>> type(build_optimiser(RunSpec(), nn.Linear(2, 2))).__name__
    'SGD'
    """
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    device = parameters[0].device
    on_gpu = device.type == "cuda"
    # a rate in float32 on the device: the fused kernels read it there
    rate = torch.tensor(spec.learning_rate, device=device) if capturable else spec.learning_rate
    if spec.optimiser == "sgd":
        return SGD(
            parameters,
            lr=rate,
            momentum=spec.momentum,
            nesterov=spec.nesterov,
            weight_decay=spec.weight_decay,
            fused=on_gpu or None,
        )
    if spec.optimiser == "adamw":
        return AdamW(
            parameters,
            lr=rate,
            weight_decay=spec.weight_decay,
            fused=on_gpu or None,
            capturable=capturable,
        )
    raise ValueError(f"unknown optimiser {spec.optimiser!r}. Known: {', '.join(NAMES)}.")


def set_learning_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of all groups, in place where it lives on the device."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
