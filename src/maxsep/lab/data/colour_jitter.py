"""Random brightness, contrast and saturation of whole uint8 batches, on the device, bit for bit Pillow's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from maxsep.lab.data.pixel_ops import check_images, grey, mean_grey
from maxsep.lab.data.pixel_tables import blend

ADJUSTMENTS = ("brightness", "contrast", "saturation")
"""In the order in which they are numbered."""
_BRIGHTNESS, _CONTRAST = 0, 1


class JitterDraw(NamedTuple):
    """What was drawn for a batch of B images."""

    order: Tensor
    """int64 (3, B): which of `ADJUSTMENTS` comes first, second and third."""
    factors: Tensor
    """float32 (3, B): how much of the image remains in brightness, contrast and saturation; 1 changes nothing."""


@dataclass(frozen=True)
class ColourJitter:
    """Change brightness, contrast and saturation by random factors, in a random order for every image.

    Each blends the image with another, d + f (x - d), cut off to bytes: brightness with black, contrast with the mean
    grey of the image as it is then, saturation with the image in grey. Factors f are uniform in [max(0, 1 - s), 1 + s]
    for a strength s. This is torchvision's ColorJitter without hue on PIL images, and bit for bit what a chain of
    Pillow's `ImageEnhance.Brightness`, `Contrast` and `Color` gives. Saturation leaves grey images as they are.

    Calling it draws and applies; as for `Augmentation`, nothing waits for the device and no shape depends on a value.
    Beside images and result, applying takes 20 bytes for each byte of the images, 770 MB for 256 x 3 x 224 x 224;
    compiled (`maxsep.lab.engine.step`) it takes 8 bytes, 310 MB (both measured on a CPU).

    Args:
        brightness: Strength, 0 for none.
        contrast: Likewise.
        saturation: Likewise.

    >>> images = torch.full((4, 3, 8, 8), 100, dtype=torch.uint8)  # flat and grey: only brightness changes it
    >>> changed = ColourJitter(brightness=0.4)(images, torch.Generator().manual_seed(0))
    >>> changed.amin().item() >= 60, changed.amax().item() <= 140
    (True, True)
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4

    def __post_init__(self) -> None:
        """Refuse negative strengths."""
        for name in ADJUSTMENTS:
            strength = getattr(self, name)
            if not 0 <= strength < math.inf:
                raise ValueError(
                    f"{name} must be finite and at least 0, got {strength}. Pass 0 to leave the {name} alone."
                )

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change uint8 images (B, C, H, W) with random numbers from a generator on the same device."""
        return self.apply(images, self.draw(images, generator))

    def draw(self, images: Tensor, generator: torch.Generator) -> JitterDraw:
        """Draw the parameters for a batch without applying them."""
        _check(images)
        batch, device = len(images), images.device
        # from any of the three forwards or backwards round the circle: the six orders, equally likely
        first = torch.randint(3, (batch,), generator=generator, device=device)
        step = torch.randint(1, 3, (batch,), generator=generator, device=device)
        unit = torch.rand(3, batch, generator=generator, device=device, dtype=torch.float64)
        factors = [_factor(unit[i], getattr(self, name)) for i, name in enumerate(ADJUSTMENTS)]
        return JitterDraw(torch.stack([(first + i * step) % 3 for i in range(3)]), torch.stack(factors))

    def apply(self, images: Tensor, draw: JitterDraw) -> Tensor:
        """Apply drawn parameters: uint8 (B, C, H, W) in, the same out."""
        _check(images)
        pixels = images.flatten(2)
        for adjustment, factor in zip(draw.order, draw.factors.gather(0, draw.order), strict=True):
            pixels = _adjust(pixels, adjustment.view(-1, 1, 1), factor.view(-1, 1, 1))
        return pixels.view(images.shape)


def _adjust(pixels: Tensor, adjustment: Tensor, factor: Tensor) -> Tensor:
    """Make one adjustment of every image, its own: uint8 (B, C, H * W)."""
    values = pixels.int()  # bytes would wrap round
    shades = grey(values)
    start = torch.where(adjustment == _CONTRAST, mean_grey(shades).int(), shades)
    return blend(start.masked_fill(adjustment == _BRIGHTNESS, 0), values, factor)


def _factor(unit: Tensor, strength: float) -> Tensor:
    low, high = max(0.0, 1 - strength), 1 + strength
    return (low + (high - low) * unit).float()


def _check(images: Tensor) -> None:
    check_images(images)
    if images.shape[1] not in (1, 3):
        raise ValueError(
            f"colour jitter knows grey and colour images, got {images.shape[1]} channels. Use resized_crop_flip."
        )
