"""Batches in which every sample is a mixture of two."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from maxsep.checks import check_floating
from maxsep.losses.checks import check_number

__all__ = ["MixedBatch", "mixup"]


class MixedBatch(NamedTuple):
    """A mixed batch; it unpacks as x, first, second, share."""

    x: Tensor
    """share * x + (1 - share) * x[partners]."""
    first: Tensor
    """The targets of the batch as they were."""
    second: Tensor
    """The targets of the partners."""
    share: Tensor
    """Lambda, a scalar tensor in [0, 1] on the device of x: reading it on the host would wait for the device."""


def mixup(x: Tensor, y: Tensor, alpha: float, generator: torch.Generator) -> MixedBatch:
    """Mix every sample of a batch with another one of the same batch (Zhang et al. 2018).

    One share is drawn for the batch, lambda ~ Beta(alpha, alpha), and one permutation that names the partners;
    x = lambda * x + (1 - lambda) * x[partners]. Train on lambda * loss(logits, first) +
    (1 - lambda) * loss(logits, second). The result depends on the generator's state and device only; nothing else is
    drawn from, and nothing waits for the device if the generator lives on the device of x.

    Args:
        x: Inputs (B, ...), floating point.
        y: Targets (B, ...), of any type.
        alpha: Positive; 1 draws the share uniformly, small values leave most batches nearly unmixed.
        generator: What the share and the permutation are drawn from; one on the CPU serves any device.

    Pitfall: bytes cannot be mixed; convert images to floating point first.

    >>> batch, labels = torch.eye(3), torch.tensor([0, 1, 2])
    >>> mixed, first, second, share = mixup(batch, labels, 1.0, torch.Generator().manual_seed(0))
    >>> bool(torch.isclose(mixed.sum(1), torch.ones(3)).all()), sorted(second.tolist())
    (True, [0, 1, 2])
    """
    check_floating(x)
    alpha = check_number("alpha", alpha, "a positive number", lambda value: value > 0)
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, got {type(generator).__name__}. "
            "Pass torch.Generator(device).manual_seed(seed)."
        )
    if not isinstance(y, Tensor):
        raise TypeError(f"y must be a tensor of targets, got {type(y).__name__}. Convert it with torch.as_tensor(y).")
    if x.dim() == 0 or y.shape[:1] != x.shape[:1] or x.shape[0] == 0:
        raise ValueError(
            f"x and y must hold the same samples along their first dimension, at least one, got shapes "
            f"{tuple(x.shape)} and {tuple(y.shape)}. Pass one target for every input."
        )
    share = _draw_share(alpha, generator).to(x.device, torch.float64 if x.dtype == torch.float64 else torch.float32)
    # sorting noise, unlike randperm, is the same few kernels for any size and can be captured in a CUDA graph
    partners = torch.rand(x.shape[0], generator=generator, device=generator.device).argsort()
    mixed = share * x + (1 - share) * x.index_select(0, partners.to(x.device))
    return MixedBatch(mixed, y, y.index_select(0, partners.to(y.device)), share)


def _draw_share(alpha: float, generator: torch.Generator) -> Tensor:
    """Draw from Beta(alpha, alpha) as g / (g + h) with two gamma variables.

    In logarithms, and with gamma(alpha) = gamma(alpha + 1) * u^(1/alpha): for small alpha the variables themselves
    round to zero, and zero over zero is no share.
    """
    shape = torch.full((2,), alpha + 1, dtype=torch.float64, device=generator.device)
    gammas = torch._standard_gamma(shape, generator=generator)
    uniform = 1 - torch.rand(2, dtype=torch.float64, generator=generator, device=generator.device)
    logs = gammas.log() + uniform.log() / alpha
    return torch.sigmoid(logs[0] - logs[1])
