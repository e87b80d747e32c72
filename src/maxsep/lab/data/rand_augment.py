"""RandAugment (Cubuk et al. 2020) on the device, with the operations and ranges of open-set recognition's scripts.

Their Cutout draws a rectangle with Pillow, which counts both edges as inside: a hole of side v covers v + 1 pixels.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from maxsep.lab.data.pixel_ops import BLENDS, CODES, MOVES, OPERATIONS, operate, paint

HIGHEST = 30
"""The level at which every operation has the upper end of its range."""
_RANGES = {
    **dict.fromkeys(("autocontrast", "equalise", "invert"), (0.0, 0.0)),
    "rotate": (0.0, 30.0),
    "posterise": (0.0, 4.0),
    "solarise": (0.0, 256.0),
    "solarise_add": (0.0, 110.0),
    **dict.fromkeys(BLENDS, (0.1, 1.9)),
    **dict.fromkeys(("shear_x", "shear_y"), (0.0, 0.3)),
    "cutout": (0.0, 40.0),
    **dict.fromkeys(("translate_x", "translate_y"), (0.0, 100.0)),
}
_NOT_FOR_DIGITS = ("rotate", "translate_x", "translate_y")
_CUTOUT = len(OPERATIONS)
"""A code that `operate` does not know, so that it leaves the image alone."""
_COLOURS = {3: (125, 123, 114), 1: (123,)}
"""What fills the hole, by the number of channels; the grey is how bright Pillow finds the colour."""


class RandDraw(NamedTuple):
    """What was drawn for a batch of B images, N operations each."""

    codes: Tensor
    """int64 (N, B): positions in `OPERATIONS`, or the next number for Cutout."""
    magnitudes: Tensor
    """float64 (N, B): how much of each, with its sign."""
    centres: Tensor
    """float64 (N, 2, B): row and column of the middle of a hole, if there is one, in pixels from the corner."""


@dataclass(frozen=True)
class RandAugment:
    """Apply to every image its own random operations, all equally likely, with replacement, at one level.

    Strength is level / 30 of the way through the operation's range; moves have a random sign. Positions are nearest
    neighbours and new pixels are black. As for `Augmentation`, nothing waits for the device and the first call on a
    device must not be inside a CUDA graph, because it sends the table of operations there.

    Args:
        level: M, from 0 to 30.
        count: N, operations for each image.
        digits: Leave out what changes which digit is in the middle or how it stands: rotation and translations.

    >>> images = torch.randint(256, (4, 3, 32, 32)).to(torch.uint8)
    >>> RandAugment(level=6)(images, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 32, 32])
    """

    level: int
    count: int = 1
    digits: bool = False

    def __post_init__(self) -> None:
        """Refuse levels outside of the ranges."""
        if not 0 <= self.level <= HIGHEST:
            raise ValueError(f"the level of RandAugment must be from 0 to {HIGHEST}, got {self.level}.")

    @property
    def operations(self) -> tuple[str, ...]:
        """Name the operations drawn from.

        >>> len(RandAugment(6).operations), len(RandAugment(18, digits=True).operations)
        (16, 13)
        """
        return tuple(name for name in _RANGES if not (self.digits and name in _NOT_FOR_DIGITS))

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change uint8 images (B, C, H, W) with random numbers from a generator on the same device."""
        return self.apply(images, self.draw(images, generator))

    def draw(self, images: Tensor, generator: torch.Generator) -> RandDraw:
        """Draw the parameters for a batch without applying them."""
        batch, channels, height, width = images.shape
        if channels not in _COLOURS:
            raise ValueError(f"RandAugment knows grey and colour images, got {channels} channels. Use crop_flip.")
        device, several = images.device, (self.count, batch)
        codes, fixed, signed = _tables(self.operations, self.level, device)
        chosen = torch.randint(len(codes), several, generator=generator, device=device)
        sign = 2 * torch.randint(0, 2, several, generator=generator, device=device) - 1
        unit = torch.rand(self.count, 2, batch, generator=generator, device=device, dtype=torch.float64)
        centres = torch.stack([unit[:, 0] * height, unit[:, 1] * width], dim=1)
        return RandDraw(codes[chosen], fixed[chosen] + sign * signed[chosen], centres)

    def apply(self, images: Tensor, draw: RandDraw) -> Tensor:
        """Apply drawn parameters: uint8 (B, C, H, W) in, the same out."""
        for codes, magnitudes, centres in zip(*draw, strict=True):
            images = operate(images, codes, magnitudes, fill=0)
            images = _cut(images, codes == _CUTOUT, magnitudes, centres)
        return images


def strength(name: str, level: int) -> float:
    """Say what a level from 0 to 30 means for an operation.

    >>> strength("rotate", 6), strength("posterise", 6), strength("cutout", 18)
    (6.0, 1.0, 24.0)
    """
    low, high = _RANGES[name]
    value = level / HIGHEST * (high - low) + low
    return max(1.0, float(int(value))) if name == "posterise" else value


def _cut(images: Tensor, chosen: Tensor, side: Tensor, centres: Tensor) -> Tensor:
    """Paint a square about the centre, moved back inside at the left and the top, cut off at the right and bottom."""
    first = (centres - side / 2).clamp_min(0).long()  # (2, B)
    end = first + side.long() + 1
    rows, columns = torch.stack([first, torch.where(chosen, end, first)], dim=1).unbind()
    return paint(images, rows, columns, _COLOURS[images.shape[1]])


@functools.lru_cache(maxsize=16)
def _tables(names: tuple[str, ...], level: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The code of every operation, and its strength: a fixed part and one with a random sign."""
    codes = [CODES.get(name, _CUTOUT) for name in names]
    fixed = [0.0 if name in MOVES else strength(name, level) for name in names]
    signed = [strength(name, level) if name in MOVES else 0.0 for name in names]
    return (
        torch.tensor(codes, device=device),
        torch.tensor(fixed, dtype=torch.float64, device=device),
        torch.tensor(signed, dtype=torch.float64, device=device),
    )
