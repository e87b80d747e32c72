"""Synthetic outliers, on which the input step of the Mahalanobis detector is chosen.

The eight kinds are those of the energy benchmark (Liu, Wang, Owens and Li, Energy-based Out-of-distribution Detection,
NeurIPS 2020). The benchmark makes them from test images of CIFAR-10; here they are made from the run's own training
images, so that neither a test image nor a reported set of outliers decides the step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

_TILES = 4
"""A jigsaw has 4 x 4 pieces; a pixelated image has blocks of 4 x 4 pixels."""
_SPECKLE = 0.6
"""Standard deviation of the noise that multiplies pixels."""


def synthetic_outliers(images: Tensor, mean: Tensor, std: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Turn images of known classes, uint8 (N, C, H, W) with N at least 2, into images of no class, by kind.

    mean and std (C,) are those of the normalisation, after which uniform noise lies in [-1, 1].
    """
    generator = torch.Generator().manual_seed(seed)
    x = images.float()
    spread, centre = (255 * value.to(x.device).view(1, -1, 1, 1) for value in (std, mean))
    other = x[_partner(len(x), generator).to(x.device)]
    made = {
        "uniform_noise": (2 * _draw(torch.rand, x, generator) - 1) * spread + centre,
        "arithmetic_mean": (x + other) / 2,
        "geometric_mean": (x * other).sqrt(),
        "jigsaw": _jigsaw(x, generator),
        "speckle": x + _SPECKLE * x * _draw(torch.randn, x, generator),
        "pixelate": F.interpolate(F.avg_pool2d(x, _TILES), size=x.shape[2:], mode="nearest"),
        "rgb_shift": torch.stack([c.roll((2 * i, -3 * i), (1, 2)) for i, c in enumerate(x.unbind(1), 1)], 1),
        "invert": 255 - x,
    }
    return {kind: value.round().clamp(0, 255).to(torch.uint8) for kind, value in made.items()}


def _draw(sample: Callable[..., Tensor], like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw on the CPU, so that every device gets the same numbers."""
    return sample(like.shape, generator=generator).to(like.device)


def _partner(count: int, generator: torch.Generator) -> Tensor:
    """Assign every image another one: a ring through all of them in random order."""
    order = torch.randperm(count, generator=generator)
    partner = torch.empty_like(order)
    partner[order] = order.roll(1)
    return partner


def _jigsaw(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shuffle the pieces of every image independently."""
    count, channels, height, width = x.shape
    rows, columns = height // _TILES, width // _TILES
    pieces = x[:, :, : rows * _TILES, : columns * _TILES].reshape(count, channels, _TILES, rows, _TILES, columns)
    pieces = pieces.permute(0, 2, 4, 1, 3, 5).reshape(count, _TILES**2, channels, rows, columns)
    order = torch.rand(count, _TILES**2, generator=generator).argsort(1).to(x.device)
    pieces = pieces[torch.arange(count, device=x.device)[:, None], order]
    pieces = pieces.reshape(count, _TILES, _TILES, channels, rows, columns).permute(0, 3, 1, 4, 2, 5)
    result = x.clone()
    result[:, :, : rows * _TILES, : columns * _TILES] = pieces.reshape(count, channels, rows * _TILES, -1)
    return result
