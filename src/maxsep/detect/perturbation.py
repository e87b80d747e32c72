"""A small step of the input that makes a known sample look more known; unknown ones gain less by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from maxsep.checks import check_floating


def step_direction(objective: Callable[[Tensor], Tensor], x: Tensor, std: Any = None) -> Tensor:
    """Return the direction in which every input lowers its own objective: x - magnitude * direction.

    direction = sign(d objective / dx) / std per channel, with sign(0) = +1 as in the published detectors. The
    objective of a sample must not depend on other samples, so batch normalisation must be in evaluation mode; then
    only signs matter and the batch size does not. No gradient reaches the parameters.

    Args:
        objective: Maps inputs (B, ...) to (B,), small for known samples.
        x: (B, ...) inputs; channels are the second dimension.
        std: What the images were divided by, one number per channel: a step of the same size in every channel of
            the image before normalisation. Without it the step is in normalised units.

    Returns:
        A tensor like `x`.

    >>> step_direction(lambda x: (x**2).sum(1), torch.tensor([[-3.0, 0.0, 2.0]])).tolist()
    [[-1.0, 1.0, 1.0]]
    """
    x = check_floating(x, "x")
    # inference mode would refuse any gradient, whoever switched it on
    with torch.inference_mode(False), torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        total = objective(leaf).sum()
        if not total.requires_grad:
            raise ValueError(
                "the score does not depend on x through differentiable operations, so there is no direction to step "
                "in. Pass a network without no_grad, detach or numpy inside, or use magnitude 0."
            )
        (gradient,) = torch.autograd.grad(total, leaf)
    if bool(gradient.isnan().any()):
        raise ValueError("the gradient of the score in x holds NaN. Check x for NaN, or use magnitude 0.")
    sign = torch.where(gradient >= 0, 1.0, -1.0).to(x.dtype)
    return sign if std is None else sign / _per_channel(std, x)


def _per_channel(std: float | Sequence[float] | Tensor, x: Tensor) -> Tensor:
    values = torch.as_tensor(std, dtype=x.dtype, device=x.device)
    if values.ndim > 1 or (values.ndim == 1 and (x.ndim < 2 or len(values) != x.shape[1])):
        raise ValueError(
            f"std must be one number per channel, got shape {tuple(values.shape)} for inputs of shape "
            f"{tuple(x.shape)}, whose channels are the second dimension. Pass the std of the normalisation."
        )
    if not bool((values > 0).all()):
        raise ValueError(f"std must be above zero, got {values.tolist()}. Pass the std of the normalisation.")
    return values if values.ndim == 0 else values.reshape(-1, *[1] * (x.ndim - 2))
