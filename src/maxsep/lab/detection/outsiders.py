"""Made-up outsiders on which the step of the Mahalanobis detector is chosen, so that no reported set decides it.

The eight kinds of the energy benchmark (Liu et al. 2020, after Hendrycks et al. 2019), written anew. There they are
made from CIFAR-10's test images; here from the run's own training images, so that no test image is read for a choice.
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


def outsiders(images: Tensor, mean: Tensor, std: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Turn images of known classes into images of none.

    Args:
        images: uint8 (N, C, H, W), at least two.
        mean: (C,), with which images are normalised; the uniform noise lies in [-1, 1] after that.
        std: (C,).
        seed: Seed of everything that is drawn.

    Returns:
        For each kind, uint8 images of the same shape and on the same device.

    >>> made = outsiders(torch.full((2, 3, 8, 8), 200).byte(), torch.full((3,), 0.5), torch.full((3,), 0.5))
    >>> sorted(made)
    ['arithmetic_mean', 'geometric_mean', 'invert', 'jigsaw', 'pixelate', 'rgb_shift', 'speckle', 'uniform_noise']
    >>> made["invert"].unique().tolist(), made["geometric_mean"].unique().tolist()
    ([55], [200])
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


def _draw(law: Callable[..., Tensor], like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw on the CPU, so that every device sees the same numbers."""
    return law(like.shape, generator=generator).to(like.device)


def _partner(count: int, generator: torch.Generator) -> Tensor:
    """Give every image another one: a ring through all of them in random order."""
    order = torch.randperm(count, generator=generator)
    partner = torch.empty_like(order)
    partner[order] = order.roll(1)
    return partner


def _jigsaw(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shuffle the pieces of every image, each image in its own way."""
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
