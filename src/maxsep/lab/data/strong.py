"""Strong augmentation on the device: the CIFAR policy of AutoAugment (Cubuk et al. 2019) and cutout (DeVries 2017)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from maxsep.lab.data.pixel_ops import operate, paint
from maxsep.lab.data.pixel_tables import BLENDS, MOVES, Tables, tabulate

_LEVELS = 9
_SIZES = {
    "shear_x": 0.3,
    "shear_y": 0.3,
    "translate_x": 150 / 331,  # of the image's width, as in the original
    "translate_y": 150 / 331,
    "rotate": 30.0,
    **dict.fromkeys(BLENDS, 0.9),
}
"""What the highest level means; the lowest is 0, and a sign is drawn."""

_POLICY: tuple[tuple[tuple[str, float, int], tuple[str, float, int]], ...] = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalise", 0.9, 2)),
    (("shear_y", 0.2, 7), ("posterise", 0.3, 7)),
    (("colour", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalise", 0.6, 5), ("equalise", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("colour", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalise", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("colour", 0.2, 8)),
    (("solarise", 0.5, 2), ("invert", 0.0, 3)),
    (("equalise", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalise", 0.2, 8), ("equalise", 0.6, 4)),
    (("colour", 0.9, 9), ("equalise", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarise", 0.2, 8)),
    (("brightness", 0.1, 3), ("colour", 0.7, 0)),
    (("solarise", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarise", 0.8, 3)),
    (("equalise", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 1)),
)
"""The 25 pairs of operations found on CIFAR-10, each with its probability and level."""


class _Tables(NamedTuple):
    pixels: Tables
    chances: Tensor
    """float64 (2, 25): how likely each operation of a pair is done."""
    black: Tensor
    """uint8 (C, 1, 1)."""


class StrongDraw(NamedTuple):
    """What was drawn for a batch of B images."""

    chosen: Tensor | None
    """int64 (2, B): two operations for every image, one after the other: positions in `operations`."""
    centre: Tensor | None
    """int64 (2, B): row and column of the middle of the hole."""
    tables: _Tables | None = None
    """What the operations do, kept on the device: looked for where it is not given, which a compiled program cannot."""


@dataclass(frozen=True)
class Strong:
    """Change what images look like: a random pair of operations for each, then a hole.

    Args:
        policy: Apply AutoAugment's CIFAR policy. New pixels are grey (128), positions are nearest neighbours.
        cutout: Blacken a square half as wide as the image (16 pixels at 32 x 32), about a random pixel, so that it may
            stick out.

    Calling it draws and applies; as for `Augmentation`, nothing waits for the device and the first call on a device
    must not be inside a CUDA graph, because it sends the policy there.

    >>> images = torch.randint(256, (4, 3, 32, 32)).to(torch.uint8)
    >>> Strong(policy=True, cutout=True)(images, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 32, 32])
    """

    policy: bool = False
    cutout: bool = False

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change uint8 images (B, C, H, W) with random numbers from a generator on the same device."""
        return self.apply(images, self.draw(images, generator))

    def draw(self, images: Tensor, generator: torch.Generator) -> StrongDraw:
        """Draw the parameters for a batch without applying them."""
        batch, channels, height, width = images.shape
        if channels not in (1, 3):
            raise ValueError(
                f"strong augmentation knows grey and colour images, got {channels} channels. Use crop_flip."
            )
        device = images.device
        tables = _tables(channels, height, width, device)
        chosen = centre = None
        if self.policy:
            pair = torch.randint(len(_POLICY), (batch,), generator=generator, device=device)
            chance = torch.rand(2, batch, generator=generator, device=device, dtype=torch.float64)
            sign = torch.randint(0, 2, (2, batch), generator=generator, device=device)
            # the list has nothing, then the first operations of all pairs with either sign, then the second ones
            first, second = (torch.add(sign[i] + 1 + 2 * i * len(_POLICY), pair, alpha=2) for i in (0, 1))
            chosen = torch.stack([first, second]) * (chance < tables.chances[:, pair])
        if self.cutout:
            draws = [torch.randint(side, (batch,), generator=generator, device=device) for side in (height, width)]
            centre = torch.stack(draws)
        return StrongDraw(chosen, centre, tables)

    def apply(self, images: Tensor, draw: StrongDraw) -> Tensor:
        """Apply drawn parameters: uint8 (B, C, H, W) in, the same out."""
        channels, height, width = images.shape[1:]
        tables = _tables(channels, height, width, images.device) if draw.tables is None else draw.tables
        if draw.chosen is not None:
            for chosen in draw.chosen:
                images = operate(images, chosen, tables.pixels)
        if draw.centre is not None:
            side = min(height, width) // 2
            first = draw.centre - side // 2
            rows, columns = torch.stack([first, first + side], dim=1).unbind()
            images = paint(images, rows, columns, tables.black)
        return images


@functools.lru_cache(maxsize=16)
def _tables(channels: int, height: int, width: int, device: torch.device) -> _Tables:
    chances = [[pair[i][1] for pair in _POLICY] for i in (0, 1)]
    return _Tables(
        tabulate(operations(width, height), height, width, device),
        torch.tensor(chances, dtype=torch.float64, device=device),
        torch.zeros(channels, 1, 1, dtype=torch.uint8, device=device),
    )


def operations(width: int, height: int) -> tuple[tuple[str, float], ...]:
    """List what can be drawn for images of a size: nothing, and every operation of the policy with either sign.

    >>> len(operations(32, 32)), operations(32, 32)[:3]
    (101, (('nothing', 0.0), ('invert', 0.0), ('invert', 0.0)))
    """
    found = [("nothing", 0.0)]
    for place in (0, 1):
        for pair in _POLICY:
            name, _, level = pair[place]
            fixed, signed = magnitude(name, level, width, height)
            found += [(name, fixed - signed), (name, fixed + signed)]
    return tuple(found)


def magnitude(name: str, level: int, width: int, height: int) -> tuple[float, float]:
    """Say what a level from 0 to 9 means: a fixed part, and a part with a random sign.

    >>> magnitude("rotate", 9, 32, 32), magnitude("posterise", 7, 32, 32)
    ((0.0, 30.0), (5.0, 0.0))
    """
    part = level / _LEVELS
    if name == "posterise":
        return float(round(8 - 4 * part)), 0.0
    if name == "solarise":
        return 256 - 256 * part, 0.0
    size = _SIZES.get(name, 0.0) * part
    if name in MOVES:
        return 0.0, size * {"translate_x": width, "translate_y": height}.get(name, 1)
    return (1.0, size) if name in BLENDS else (0.0, 0.0)
