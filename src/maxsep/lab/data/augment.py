"""Random crop, flip and rotation of whole uint8 batches, on the device where the images lie; names of these and others.

Each of the three moves pixels without mixing them and fills with zero, so their composition is one gather: the
source position of every output pixel is computed with integers, from the last step back to the first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maxsep.lab.data.colour_jitter import ColourJitter
from maxsep.lab.data.pixel_ops import check_images
from maxsep.lab.data.rand_augment import HIGHEST, RandAugment
from maxsep.lab.data.resized_crop import ResizedCrop
from maxsep.lab.data.strong import Strong

_ONE = 1 << 16
"""Rotations count in 1/65536 pixel, as Pillow does, so that both round every position the same way."""


class Draw(NamedTuple):
    """What was drawn for a batch of B images; a step that is not made is None."""

    top: Tensor | None
    """int64 (B,): the crop's first row, relative to the image; negative reaches into the padding."""
    left: Tensor | None
    """int64 (B,): likewise the first column."""
    flip: Tensor | None
    """bool (B,): whether to mirror left and right."""
    angle: Tensor | None
    """float64 (B,): degrees, counter-clockwise."""


@dataclass(frozen=True)
class Augmentation:
    """Augment batches: crop (zero padding of size // 8 on each side), then flip, then rotation.

    Calling it draws and applies. Nothing waits for the device and no shape depends on a value, so it may run inside
    a CUDA graph; there the generator must be registered with the graph (`CUDAGraph.register_generator_state`).

    Args:
        crop: Shift by up to size // 8 pixels in both directions (4 at 32 x 32); what enters is 0.
        flip: Mirror left and right with probability 1/2.
        degrees: Rotate by a uniform angle in [-degrees, degrees] about the centre, nearest neighbour, zero fill:
            pixel for pixel what Pillow's `Image.rotate` gives.

    >>> augment = Augmentation(crop=True, flip=True)
    >>> images = torch.randint(256, (4, 3, 32, 32)).to(torch.uint8)
    >>> augment(images, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 32, 32])
    """

    crop: bool = False
    flip: bool = False
    degrees: float = 0.0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment uint8 images (B, C, H, W) with random numbers from a generator on the same device."""
        if not (self.crop or self.flip or self.degrees):
            return images
        return self.apply(images, self.draw(images, generator))

    def draw(self, images: Tensor, generator: torch.Generator) -> Draw:
        """Draw the parameters for a batch without applying them."""
        check_images(images)
        batch, device = len(images), images.device
        top = left = flip = angle = None
        if self.crop:
            pad = min(images.shape[2:]) // 8
            shift = torch.randint(-pad, pad + 1, (2, batch), generator=generator, device=device)
            top, left = shift.unbind()
        if self.flip:
            flip = torch.randint(0, 2, (batch,), generator=generator, device=device).bool()
        if self.degrees:
            unit = torch.rand(batch, generator=generator, device=device, dtype=torch.float64)
            angle = (2 * unit - 1) * self.degrees
        return Draw(top, left, flip, angle)

    def apply(self, images: Tensor, draw: Draw) -> Tensor:
        """Apply drawn parameters: uint8 (B, C, H, W) in, the same out."""
        check_images(images)
        batch, channels, height, width = images.shape
        row = torch.arange(height, device=images.device).view(1, height, 1)
        column = torch.arange(width, device=images.device).view(1, 1, width)
        inside: Tensor | None = None
        # Backwards: where does an output pixel come from before the rotation, before the flip, before the crop?
        if draw.angle is not None:
            row, column = _unrotate(row, column, draw.angle, height, width)
            inside = _within(row, column, height, width)
        if draw.flip is not None:
            column = torch.where(draw.flip.view(-1, 1, 1), width - 1 - column, column)
        if draw.top is not None and draw.left is not None:
            row, column = row + draw.top.view(-1, 1, 1), column + draw.left.view(-1, 1, 1)
            cropped = _within(row, column, height, width)
            inside = cropped if inside is None else inside & cropped
        source = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        source = source.expand(batch, height, width).reshape(batch, 1, -1).expand(-1, channels, -1)
        result = images.flatten(2).gather(2, source).view(batch, channels, height, width)
        return result if inside is None else result * inside.unsqueeze(1)


@dataclass(frozen=True)
class Chain:
    """One augmentation after another.

    >>> Chain((Augmentation(flip=True), Strong(cutout=True))).steps[1]
    Strong(policy=False, cutout=True)
    """

    steps: tuple[Augmentation | Strong | RandAugment | ResizedCrop | ColourJitter, ...]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment uint8 images (B, C, H, W) with random numbers from a generator on the same device."""
        return self.apply(images, self.draw(images, generator))

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[NamedTuple, ...]:
        """Draw the parameters of all steps, which none of them changes the shape for, without applying them."""
        return tuple(step.draw(images, generator) for step in self.steps)

    def apply(self, images: Tensor, draws: tuple[Any, ...]) -> Tensor:
        """Apply drawn parameters, step by step."""
        for step, draw in zip(self.steps, draws, strict=True):
            images = step.apply(images, draw)
        return images


_WEAK = Augmentation(crop=True, flip=True)
_RESIZED = (ResizedCrop(), Augmentation(flip=True))
_NAMED: dict[str, Augmentation | Chain] = {
    "none": Augmentation(),
    "crop_flip": _WEAK,
    "crop_flip_rotate": Augmentation(crop=True, flip=True, degrees=15.0),
    "crop_flip_cutout": Chain((_WEAK, Strong(cutout=True))),
    "crop_flip_auto": Chain((_WEAK, Strong(policy=True))),
    "crop_flip_auto_cutout": Chain((_WEAK, Strong(policy=True, cutout=True))),
    "resized_crop_flip": Chain(_RESIZED),
    "resized_crop_flip_jitter": Chain((*_RESIZED, ColourJitter())),
}


def augmentation(name: str) -> Augmentation | Chain:
    """Look an augmentation up by name.

    `none`, `crop_flip`, `crop_flip_rotate` (within 15 degrees); and after crop and flip, `crop_flip_auto`
    (AutoAugment's CIFAR policy), `crop_flip_cutout` (a hole of half the width) or both, `crop_flip_auto_cutout`.
    Before crop and flip, `rand_augment_mM` (RandAugment, one operation at level M of 30; open-set recognition takes
    m6 for CIFAR) or, without rotation and translations, `rand_augment_digits_mM` (m18 for SVHN).
    For photographs, as on ImageNet, `resized_crop_flip` (a rectangle of 8 to 100 percent of the area, scaled to the
    whole image, then the flip) and `resized_crop_flip_jitter` (then brightness, contrast and saturation, each times
    0.6 to 1.4).

    A flip before the crop, as some protocols have it, needs no name of its own: shifts are as likely to the left as to
    the right, so both orders give the same pictures with the same probabilities.

    >>> augmentation("crop_flip")
    Augmentation(crop=True, flip=True, degrees=0.0)
    """
    if name in _NAMED:
        return _NAMED[name]
    if found := re.fullmatch(r"rand_augment(_digits)?_m(0|[1-9]\d*)", name):
        return Chain((RandAugment(int(found[2]), digits=bool(found[1])), _WEAK))
    known = ", ".join([*_NAMED, "rand_augment_mM", "rand_augment_digits_mM"])
    raise ValueError(f"unknown augmentation {name!r}. Known: {known} (M is a level from 0 to {HIGHEST}).")


def _unrotate(row: Tensor, column: Tensor, angle: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Find the pixel that a rotation about the image centre brings to (row, column).

    With t the angle in radians, and pixel centres at half-integers relative to the image centre,
    x' = x cos t - y sin t and y' = x sin t + y cos t (rows count downwards).
    """
    radians = (angle * (torch.pi / 180)).view(-1, 1, 1)
    cos, sin = radians.cos(), radians.sin()
    first_x, first_y = 0.5 - width / 2, 0.5 - height / 2
    start_x = _fixed(first_x * cos - first_y * sin + width / 2)
    start_y = _fixed(first_x * sin + first_y * cos + height / 2)
    step_cos, step_sin = _fixed(cos), _fixed(sin)
    source_column = (start_x + column * step_cos - row * step_sin) >> 16
    source_row = (start_y + column * step_sin + row * step_cos) >> 16
    return source_row, source_column


def _fixed(value: Tensor) -> Tensor:
    return (value * _ONE + 0.5).floor().long()


def _within(row: Tensor, column: Tensor, height: int, width: int) -> Tensor:
    return (row >= 0) & (row < height) & (column >= 0) & (column < width)
