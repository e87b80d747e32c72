"""What a fixed list of image operations does, worked out once: positions, new values and mixtures as tables.

Of one augmentation there are a few dozen operations with their strengths, so a training step has nothing left to
compute but look-ups, in whole numbers: as fast as the device reads memory, and the same bits on every one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
BLENDS = ("colour", "contrast", "brightness", "sharpness")
VALUES = ("posterise", "solarise", "solarise_add", "invert", "autocontrast", "equalise")
OPERATIONS = ("nothing", *MOVES, *BLENDS, *VALUES)

Operation = tuple[str, float]
"""A name of `OPERATIONS` and how much: pixels by pixel of a shear, pixels of a translation, degrees of a rotation
(counter-clockwise), factor of a blend (1 changes nothing), bits to keep, threshold, or what is added before solarising
at 128; not used by others."""

_ONE = 1 << 16
"""Positions count in 1/65536 pixel, as in Pillow, so that both round every one the same way."""


class Tables(NamedTuple):
    """A list of V operations on images of one size, on a device."""

    source: Tensor
    """int64 (V, H * W): which pixel comes to each place."""
    outside: Tensor
    """bool (V, 1, H * W): places to which none comes."""
    fill: int
    """Value of those."""
    values: Tensor
    """uint8 (V, 256): the new value of every old one, where that is the same for all images."""
    mixtures: Tensor
    """uint8 (F * 256 * 256,): for each factor, degenerate value and value, their blend."""
    factor: Tensor
    """int64 (V,): where the mixtures of an operation begin."""
    scale: Tensor
    """float64 (256 * 256,): for the lowest and the highest value, what stretches them to 0 and 255."""
    offset: Tensor
    """float64 (256 * 256,): likewise what is added."""
    value: Tensor
    """int64 (256,): 0 to 255."""
    kinds: Tensor
    """bool (V, 5): is it colour, contrast, any blend that depends on the image, autocontrast, equalise?"""


def tabulate(
    operations: tuple[Operation, ...], height: int, width: int, device: torch.device, fill: int = 128
) -> Tables:
    """Work the tables out for a list of operations; keep them, because they are sent to the device.

    >>> tables = tabulate((("nothing", 0.0), ("invert", 0.0)), 4, 4, torch.device("cpu"))
    >>> tables.values[1, :3].tolist(), tables.source[1, :3].tolist()
    ([255, 254, 253], [0, 1, 2])
    """
    names = [name for name, _ in operations]
    source, outside = _positions(operations, height, width)
    factors = sorted({amount for name, amount in operations if name in BLENDS}) or [1.0]
    mixtures = torch.stack([_mixtures(factor) for factor in factors])
    place = {factor: i * 256 * 256 for i, factor in enumerate(factors)}
    groups = (("colour",), ("contrast",), ("colour", "contrast", "sharpness"), ("autocontrast",), ("equalise",))
    kinds = torch.tensor([[name in group for group in groups] for name in names])
    starts = torch.tensor([place[amount] if name in BLENDS else 0 for name, amount in operations])
    values = torch.stack([_values(name, amount) for name, amount in operations])
    scale, offset = _stretches()
    everything = values, mixtures.flatten(), starts, scale, offset, torch.arange(256), kinds
    return Tables(source.to(device), outside.to(device), fill, *(table.to(device) for table in everything))


def blend(start: Tensor, value: Tensor, factor: Tensor) -> Tensor:
    """Mix start + factor * (value - start) in float32, cut off to bytes, as Pillow does: uint8.

    Args:
        start: The degenerate image, whole numbers from 0 to 255, not of type uint8, whose differences wrap round.
        value: The image, likewise.
        factor: float32; 1 gives the image, more than 1 goes away from `start`.

    >>> blend(torch.tensor([0, 128, 128]), torch.tensor([200, 200, 30]), torch.tensor(1.5)).tolist()
    [255, 236, 0]
    """
    mixed: Tensor = start + factor * (value - start)
    return mixed.clamp(0, 255).to(torch.uint8)


def _positions(operations: tuple[Operation, ...], height: int, width: int) -> tuple[Tensor, Tensor]:
    """Where every output pixel comes from, nearest neighbour, and whether that is outside the image."""
    maps = torch.tensor([_inverse_map(*operation, height, width) for operation in operations], dtype=torch.float64)
    xx, xy, x0, yx, yy, y0 = maps.view(-1, 6, 1, 1).unbind(1)
    row, column = torch.arange(height).view(1, height, 1), torch.arange(width).view(1, 1, width)
    # pixel centres are at halves
    start_x, start_y = _fixed(x0 + 0.5 * xx + 0.5 * xy), _fixed(y0 + 0.5 * yx + 0.5 * yy)
    from_column = (start_x + column * _fixed(xx) + row * _fixed(xy)) >> 16
    from_row = (start_y + column * _fixed(yx) + row * _fixed(yy)) >> 16
    outside = (from_row < 0) | (from_row >= height) | (from_column < 0) | (from_column >= width)
    source = from_row.clamp(0, height - 1) * width + from_column.clamp(0, width - 1)
    return source.flatten(1), outside.flatten(1).unsqueeze(1)


def _inverse_map(name: str, amount: float, height: int, width: int) -> tuple[float, ...]:
    """Where an output position comes from: x = xx x' + xy y' + x0, and likewise y."""
    if name == "rotate":
        turn = torch.tensor(amount * torch.pi / 180, dtype=torch.float64)
        cos, sin = float(turn.cos()), float(turn.sin())
        x0, y0 = (width - cos * width + sin * height) / 2, (height - sin * width - cos * height) / 2
        return cos, -sin, x0, sin, cos, y0
    size = {move: amount if move == name else 0.0 for move in MOVES}
    return 1.0, size["shear_x"], size["translate_x"], size["shear_y"], 1.0, size["translate_y"]


def _values(name: str, amount: float) -> Tensor:
    """The new value of each of the 256, for the operations that look at nothing else."""
    value = new = torch.arange(256)
    if name == "posterise":
        step = 2 ** min(8, max(0, 8 - int(amount)))
        new = value // step * step
    elif name == "solarise":
        new = torch.where(value < amount, value, 255 - value)
    elif name == "solarise_add":
        raised = (value + amount).clamp(0, 255).long()
        new = torch.where(raised < 128, raised, 255 - raised)
    elif name == "invert":
        new = 255 - value
    elif name == "brightness":
        new = _mixtures(amount)[0]
    return new.to(torch.uint8)


def _mixtures(factor: float) -> Tensor:
    """Blend every value with every degenerate one: uint8 (256, 256)."""
    value = torch.arange(256, dtype=torch.float32)
    return blend(value[:, None], value, torch.tensor(factor, dtype=torch.float32))


def _stretches() -> tuple[Tensor, Tensor]:
    """What spreads the values from `low` to `high` over 0 to 255; a single value stays."""
    low, high = torch.meshgrid(torch.arange(256).double(), torch.arange(256).double(), indexing="ij")
    span = (high - low).clamp_min(1)
    # a plain 255.0 / span would multiply by the rounded reciprocal
    scale = torch.where(high > low, torch.full_like(span, 255.0) / span, 1.0)
    offset = torch.where(high > low, -low * scale, 0.0)
    return scale.flatten(), offset.flatten()


def _fixed(value: Tensor) -> Tensor:
    return (value * _ONE + 0.5).floor().long()
