"""RandAugment (Cubuk et al. 2020) on the device, with the operations and ranges of open-set recognition's scripts.

Their Cutout draws a rectangle with Pillow, which counts both edges as inside: a hole of side v covers v + 1 pixels.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from maxsep.lab.data.pixel_ops import operate, paint
from maxsep.lab.data.pixel_tables import BLENDS, MOVES, Tables, tabulate

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
_COLOURS = {3: (125, 123, 114), 1: (123,)}
"""What fills the hole, by the number of channels; the grey is how bright Pillow finds the colour."""


class _Tables(NamedTuple):
    pixels: Tables
    sizes: Tensor
    """float64 (2, 1): height and width."""
    colour: Tensor
    """uint8 (C, 1, 1): what fills a hole."""


class RandDraw(NamedTuple):
    """What was drawn for a batch of B images, N operations each."""

    chosen: Tensor
    """int64 (N, B): twice the position in `operations`, and one more for a positive sign."""
    centres: Tensor
    """float64 (N, 2, B): row and column of the middle of a hole, if there is one, in pixels from the corner."""
    tables: _Tables | None = None
    """What the operations do, kept on the device: looked for where it is not given, which a compiled program cannot."""


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
        device, several, operations = images.device, (self.count, batch), len(self.operations)
        operation = torch.randint(operations, several, generator=generator, device=device)
        sign = torch.randint(0, 2, several, generator=generator, device=device)
        unit = torch.rand(self.count, 2, batch, generator=generator, device=device, dtype=torch.float64)
        tables = _tables(self.operations, self.level, (channels, height, width), device)
        return RandDraw(torch.add(sign, operation, alpha=2), unit * tables.sizes, tables)

    def apply(self, images: Tensor, draw: RandDraw) -> Tensor:
        """Apply drawn parameters: uint8 (B, C, H, W) in, the same out."""
        channels, height, width = images.shape[1:]
        tables = draw.tables
        if tables is None:
            tables = _tables(self.operations, self.level, (channels, height, width), images.device)
        hole, side = self.operations.index("cutout"), strength("cutout", self.level)
        for chosen, centres in zip(draw.chosen, draw.centres, strict=True):
            images = operate(images, chosen, tables.pixels)
            images = _cut(images, chosen >> 1 == hole, side, centres, tables.colour)
        return images


def strength(name: str, level: int) -> float:
    """Say what a level from 0 to 30 means for an operation.

    >>> strength("rotate", 6), strength("posterise", 6), strength("cutout", 18)
    (6.0, 1.0, 24.0)
    """
    low, high = _RANGES[name]
    value = level / HIGHEST * (high - low) + low
    return max(1.0, float(int(value))) if name == "posterise" else value


def _cut(images: Tensor, chosen: Tensor, side: float, centres: Tensor, colour: Tensor) -> Tensor:
    """Paint a square about the centre, moved back inside at the left and the top, cut off at the right and bottom."""
    first = (centres - side / 2).clamp_min(0).long()  # (2, B)
    end = first + (int(side) + 1) * chosen
    rows, columns = torch.stack([first, end], dim=1).unbind()
    return paint(images, rows, columns, colour)


@functools.lru_cache(maxsize=16)
def _tables(names: tuple[str, ...], level: int, shape: tuple[int, int, int], device: torch.device) -> _Tables:
    """Every operation twice, moves with either sign, on the device; a hole is painted after them."""
    channels, height, width = shape
    signed = [(name, sign if name in MOVES else 1) for name in names for sign in (-1, 1)]
    operations = [("nothing" if name == "cutout" else name, sign * strength(name, level)) for name, sign in signed]
    return _Tables(
        tabulate(tuple(operations), height, width, device, fill=0),
        torch.tensor([[height], [width]], dtype=torch.float64, device=device),
        torch.tensor(_COLOURS[channels], dtype=torch.uint8, device=device).view(-1, 1, 1),
    )
