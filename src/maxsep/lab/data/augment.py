"""Augmentation of whole uint8 batches on their device: crop, flip, rotation, resized crop, colour jitter; all names.

`draw` and `apply` never synchronise with the GPU and have static shapes, so a CUDA graph can capture them.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maxsep.lab.data.autoaugment import HIGHEST, AutoAugment, Cutout, RandAugment, fixed_point

_TRIES = 10
_BRIGHTNESS, _CONTRAST = 0, 1


@dataclass(frozen=True)
class Augmentation:
    """Apply one step after another to uint8 images (B, C, H, W), which are left alone; the shape stays.

    >>> augment = augmentation("crop_flip")
    >>> images = torch.randint(256, (4, 3, 32, 32)).to(torch.uint8)
    >>> augment(images, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 32, 32])
    """

    steps: tuple[Any, ...]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Draw and apply."""
        return self.apply(images, self.draw(images, generator))

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Any, ...]:
        """Draw the parameters of all steps, from a generator on the device of the images."""
        return tuple(step.draw(images, generator) for step in self.steps)

    def apply(self, images: Tensor, draws: tuple[Any, ...]) -> Tensor:
        """Apply drawn parameters, step by step."""
        for step, draw in zip(self.steps, draws, strict=True):
            images = step.apply(images, draw)
        return images


@dataclass(frozen=True)
class CropFlip:
    """Shift by up to size // 8 pixels each way, flip left and right, rotate within `degrees`; new pixels are 0.

    None of the three mixes pixels, so their composition is one gather. Rotation is pixel for pixel Pillow's.
    """

    crop: bool = True
    flip: bool = True
    degrees: float = 0.0

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor | None, ...]:
        """Draw shifts (int64, (2, B)), flips (bool, (B,)) and angles (float64, (B,)); None for what is not done."""
        batch, device = len(images), images.device
        shift = flip = angle = None
        if self.crop:
            pad = min(images.shape[2:]) // 8
            shift = torch.randint(-pad, pad + 1, (2, batch), generator=generator, device=device)
        if self.flip:
            flip = torch.randint(0, 2, (batch,), generator=generator, device=device).bool()
        if self.degrees:
            unit = torch.rand(batch, generator=generator, device=device, dtype=torch.float64)
            angle = (2 * unit - 1) * self.degrees
        return shift, flip, angle

    def apply(self, images: Tensor, draw: tuple[Tensor | None, ...]) -> Tensor:
        """Compute the source position of every output pixel, from the last step back to the first."""
        shift, flip, angle = draw
        batch, channels, height, width = images.shape
        row = torch.arange(height, device=images.device).view(1, height, 1)
        column = torch.arange(width, device=images.device).view(1, 1, width)
        inside = torch.ones(1, 1, 1, dtype=torch.bool, device=images.device)
        if angle is not None:
            row, column = _unrotate(row, column, angle, height, width)
            inside = _is_inside(row, column, height, width)
        if flip is not None:
            column = torch.where(flip.view(-1, 1, 1), width - 1 - column, column)
        if shift is not None:
            row, column = row + shift[0].view(-1, 1, 1), column + shift[1].view(-1, 1, 1)
            inside = inside & _is_inside(row, column, height, width)
        source = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        source = source.expand(batch, height, width).reshape(batch, 1, -1).expand(-1, channels, -1)
        return images.flatten(2).gather(2, source).view_as(images) * inside.unsqueeze(1)


def _unrotate(row: Tensor, column: Tensor, angle: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Find the pixel that a rotation brings to (row, column): x' = x cos t - y sin t, y' = x sin t + y cos t."""
    radians = (angle * (torch.pi / 180)).view(-1, 1, 1)
    cos, sin = radians.cos(), radians.sin()
    first_x, first_y = 0.5 - width / 2, 0.5 - height / 2
    start_x = fixed_point(first_x * cos - first_y * sin + width / 2)
    start_y = fixed_point(first_x * sin + first_y * cos + height / 2)
    step_cos, step_sin = fixed_point(cos), fixed_point(sin)
    source_column = (start_x + column * step_cos - row * step_sin) >> 16
    return (start_y + column * step_sin + row * step_cos) >> 16, source_column


def _is_inside(row: Tensor, column: Tensor, height: int, width: int) -> Tensor:
    return (row >= 0) & (row < height) & (column >= 0) & (column < width)


@dataclass(frozen=True)
class ResizedCrop:
    """Cut a random rectangle out of every image and scale it to the image's own height and width, bilinearly.

    Rectangles are drawn as by torchvision's RandomResizedCrop: a part of the area a, uniform in `scale`, and a ratio of
    width to height r, log-uniform in `ratio`, make sqrt(a H W r) columns and sqrt(a H W / r) rows, rounded; of ten
    tries the first that fits is taken, and if none fits, the whole image. Scaling only magnifies: no antialiasing.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def draw(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Draw rectangles: int64 (4, B), top, left, height and width."""
        batch, _, height, width = images.shape
        tries = torch.rand(2, _TRIES, batch, generator=generator, device=images.device, dtype=torch.float64)
        position = torch.rand(2, batch, generator=generator, device=images.device, dtype=torch.float64)
        area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * tries[0])
        low, high = map(math.log, self.ratio)
        ratio = (low + (high - low) * tries[1]).exp()
        rows, columns = (area / ratio).sqrt().round().long(), (area * ratio).sqrt().round().long()
        fits = (rows > 0) & (rows <= height) & (columns > 0) & (columns <= width)
        # behind the ten tries stands the whole image, which always fits
        candidates = ((rows, height), (columns, width), (fits.long(), 1))
        rows, columns, fits = (F.pad(tensor, (0, 0, 0, 1), value=last) for tensor, last in candidates)
        chosen = fits.argmax(0, keepdim=True)  # of equals the first
        rows, columns = rows.gather(0, chosen)[0], columns.gather(0, chosen)[0]
        top, left = (position[0] * (height - rows + 1)).long(), (position[1] * (width - columns + 1)).long()
        return torch.stack([top, left, rows, columns])

    def apply(self, images: Tensor, rectangles: Tensor) -> Tensor:
        """Interpolate inside each rectangle; beyond its edge the edge goes on, not the image."""
        (top, left, rows, columns), (height, width) = rectangles, images.shape[2:]
        y = _source(top, rows, height).unsqueeze(2).expand(-1, -1, width)
        x = _source(left, columns, width).unsqueeze(1).expand(-1, height, -1)
        scaled = F.grid_sample(images.float(), torch.stack([x, y], dim=3), align_corners=False)
        return scaled.round().to(torch.uint8)


def _source(start: Tensor, extent: Tensor, size: int) -> Tensor:
    """Spread `extent` pixels from `start` on over `size`: float32 (B, size), -1 and 1 are the edges of the image."""
    centre = torch.arange(size, device=start.device) + 0.5
    start, extent = start.unsqueeze(1), extent.unsqueeze(1)
    inside = torch.minimum((centre * extent / size).clamp_min(0.5), extent - 0.5)
    return (start + inside) * (2 / size) - 1


@dataclass(frozen=True)
class ColourJitter:
    """Change brightness, contrast and saturation by factors in [1 - strength, 1 + strength], in a random order.

    Each blends the image with another, d + f (x - d), clamped to 0..255: brightness with black, contrast with the mean
    grey of the image as it is then, saturation with the image in grey. This is torchvision's ColorJitter without hue.
    """

    strength: float = 0.4

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw the order of brightness (0), contrast (1) and saturation (2), and their factors: (3, B) each."""
        batch, device = len(images), images.device
        # from any of the three forwards or backwards round the circle: the six orders, equally likely
        first = torch.randint(3, (batch,), generator=generator, device=device)
        step = torch.randint(1, 3, (batch,), generator=generator, device=device)
        unit = torch.rand(3, batch, generator=generator, device=device, dtype=torch.float64)
        factors = 1 + self.strength * (2 * unit - 1)
        return torch.stack([(first + i * step) % 3 for i in range(3)]), factors.float()

    def apply(self, images: Tensor, draw: tuple[Tensor, Tensor]) -> Tensor:
        """Blend three times in float32 and round at the end."""
        pixels, (order, factors) = images.float(), draw
        for adjustment, factor in zip(order, factors.gather(0, order), strict=True):
            adjustment, factor = adjustment.view(-1, 1, 1, 1), factor.view(-1, 1, 1, 1)
            red, green, blue = pixels.unbind(1) if pixels.shape[1] == 3 else pixels.expand(-1, 3, -1, -1).unbind(1)
            grey = (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)
            # a sum of whole numbers is the same in any order, and so on every device
            mean = grey.round().long().sum((2, 3), keepdim=True) / grey[0].numel()
            start = torch.where(adjustment == _CONTRAST, mean, grey).masked_fill(adjustment == _BRIGHTNESS, 0)
            pixels = (start + factor * (pixels - start)).clamp(0, 255)
        return pixels.round().to(torch.uint8)


_WEAK = CropFlip()
_RESIZED = (ResizedCrop(), CropFlip(crop=False))
_NAMED: dict[str, tuple[Any, ...]] = {
    "none": (),
    "crop_flip": (_WEAK,),
    "crop_flip_rotate": (CropFlip(degrees=15.0),),
    "crop_flip_cutout": (_WEAK, Cutout()),
    "crop_flip_auto": (_WEAK, AutoAugment()),
    "crop_flip_auto_cutout": (_WEAK, AutoAugment(), Cutout()),
    "resized_crop_flip": _RESIZED,
    "resized_crop_flip_jitter": (*_RESIZED, ColourJitter()),
}


@functools.cache  # the same object for the same name, so that a compiled one is compiled once
def augmentation(name: str) -> Augmentation:
    """Look an augmentation up by name.

    Open-set recognition takes `rand_augment_m6` for CIFAR and `rand_augment_digits_m18`, without rotation and
    translations, for SVHN; both come before crop and flip. Resized crops and jitter are for photographs.
    """
    if name in _NAMED:
        return Augmentation(_NAMED[name])
    if match := re.fullmatch(r"rand_augment(_digits)?_m(0|[1-9]\d*)", name):
        return Augmentation((RandAugment(int(match[2]), digits=bool(match[1])), _WEAK))
    known = ", ".join([*_NAMED, "rand_augment_mM", "rand_augment_digits_mM"])
    raise ValueError(f"unknown augmentation {name!r}. Known: {known} (M is a level from 0 to {HIGHEST}).")
