"""AutoAugment, RandAugment and cutout of whole uint8 batches, one operation for each image, bit for bit as Pillow.

Cubuk et al., AutoAugment, CVPR 2019; Cubuk et al., RandAugment, NeurIPS 2020; DeVries and Taylor, Cutout, 2017. What
the few dozen operations of an augmentation do is tabulated once: positions, new values and blends. The first `draw` on
a device sends the tables there and must not be inside a CUDA graph.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
BLENDS = ("colour", "contrast", "brightness", "sharpness")
Operation = tuple[str, float]
"""A name and how much: pixels by pixel of a shear, pixels of a translation, degrees of a rotation (counter-clockwise),
factor of a blend (1 changes nothing), bits to keep, threshold, or what is added before solarising at 128."""
HIGHEST = 30  # the level at which RandAugment's operations have the upper end of their range
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
_HOLE_COLOURS = {3: (125, 123, 114), 1: (123,)}
# fmt: off
_POLICY: tuple[tuple[tuple[str, float, int], tuple[str, float, int]], ...] = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)), (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)), (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalise", 0.9, 2)), (("shear_y", 0.2, 7), ("posterise", 0.3, 7)),
    (("colour", 0.4, 3), ("brightness", 0.6, 7)), (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalise", 0.6, 5), ("equalise", 0.5, 1)), (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("colour", 0.7, 7), ("translate_x", 0.5, 8)), (("equalise", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)), (("brightness", 0.9, 6), ("colour", 0.2, 8)),
    (("solarise", 0.5, 2), ("invert", 0.0, 3)), (("equalise", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalise", 0.2, 8), ("equalise", 0.6, 4)), (("colour", 0.9, 9), ("equalise", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarise", 0.2, 8)), (("brightness", 0.1, 3), ("colour", 0.7, 0)),
    (("solarise", 0.4, 5), ("autocontrast", 0.9, 3)), (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarise", 0.8, 3)), (("equalise", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 1)),
)  # the 25 pairs of operations that AutoAugment found on CIFAR-10, each with its probability and level of 9
# fmt: on


class Tables(NamedTuple):
    """What a list of V operations does to images of one size, on a device."""

    source: Tensor  # int64 (V, H * W): which pixel comes to each position
    outside: Tensor  # bool (V, 1, H * W): positions to which none comes
    fill: int  # the value of those
    values: Tensor  # uint8 (V, 256): the new value of every old one, where that is the same for all images
    blend_table: Tensor  # uint8 (F * 256 * 256,): for each factor, degenerate value and value, their blend
    blend_start: Tensor  # int64 (V,): where the blends of an operation begin
    scale: Tensor  # float64 (256 * 256,): for the lowest and highest value, what stretches them to 0 and 255
    offset: Tensor  # float64 (256 * 256,): likewise what is added
    value: Tensor  # int64 (256,): 0 to 255
    kinds: Tensor  # bool (V, 5): is it colour, contrast, any blend that depends on the image, autocontrast, equalise?


@dataclass(frozen=True)
class AutoAugment:
    """Apply a random pair of AutoAugment's CIFAR policy to each image; new pixels are grey (128)."""

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tables]:
        """Draw two operations of each image, positions in `policy_operations`: int64 (2, B); tables come along."""
        batch, device = len(images), images.device
        tables, chances = _policy_tables(*images.shape[1:], device)
        pair = torch.randint(len(_POLICY), (batch,), generator=generator, device=device)
        chance = torch.rand(2, batch, generator=generator, device=device, dtype=torch.float64)
        sign = torch.randint(0, 2, (2, batch), generator=generator, device=device)
        # the list has nothing, then the first operations of all pairs with either sign, then the second ones
        first, second = (torch.add(sign[i] + 1 + 2 * i * len(_POLICY), pair, alpha=2) for i in (0, 1))
        return torch.stack([first, second]) * (chance < chances[:, pair]), tables

    def apply(self, images: Tensor, draw: tuple[Tensor, Tables]) -> Tensor:
        """Apply the first operations, then the second."""
        for chosen in draw[0]:
            images = operate(images, chosen, draw[1])
        return images


@dataclass(frozen=True)
class Cutout:
    """Blacken a square half as wide as the image about a random pixel, so that it may stick out."""

    def draw(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the middle of the hole: int64 (2, B)."""
        batch, sides = len(images), images.shape[2:]
        return torch.stack([torch.randint(s, (batch,), generator=generator, device=images.device) for s in sides])

    def apply(self, images: Tensor, centre: Tensor) -> Tensor:
        """Fill the hole with 0."""
        side = min(images.shape[2:]) // 2
        first = centre - side // 2
        return images.masked_fill(_in_square(images, first, first + side), 0)


class RandDraw(NamedTuple):
    """What was drawn for B images."""

    chosen: Tensor  # int64 (B,): twice the position in `RandAugment.operations`, and one more for a positive sign
    centre: Tensor  # float64 (2, B): row and column of the middle of a hole, if there is one
    tables: Tables
    colour: Tensor  # uint8 (C, 1, 1): what fills a hole


@dataclass(frozen=True)
class RandAugment:
    """Apply one random operation to every image, as the scripts of open-set recognition do.

    Strength is level / 30 of the way through the operation's range; moves have a random sign, new pixels are black.
    `digits` leaves out rotation and translations, which change which digit is in the middle or how it stands.
    """

    level: int
    digits: bool = False

    def __post_init__(self) -> None:
        """Check the level."""
        if not 0 <= self.level <= HIGHEST:
            raise ValueError(f"the level of RandAugment must be from 0 to {HIGHEST}, got {self.level}.")

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of the operations, all equally likely."""
        left_out = ("rotate", "translate_x", "translate_y") if self.digits else ()
        return tuple(name for name in _RANGES if name not in left_out)

    def draw(self, images: Tensor, generator: torch.Generator) -> RandDraw:
        """Draw operations, signs and holes."""
        batch, device = len(images), images.device
        operation = torch.randint(len(self.operations), (batch,), generator=generator, device=device)
        sign = torch.randint(0, 2, (batch,), generator=generator, device=device)
        unit = torch.rand(2, batch, generator=generator, device=device, dtype=torch.float64)
        tables, colour = _rand_tables(self.operations, self.level, *images.shape[1:], device)
        centre = torch.stack([unit[0] * images.shape[2], unit[1] * images.shape[3]])
        return RandDraw(torch.add(sign, operation, alpha=2), centre, tables, colour)

    def apply(self, images: Tensor, draw: RandDraw) -> Tensor:
        """Apply the operation; a hole of side v covers v + 1 pixels, as Pillow counts both edges as inside."""
        hole, side = self.operations.index("cutout"), strength("cutout", self.level)
        first = (draw.centre - side / 2).clamp_min(0).long()
        end = first + (int(side) + 1) * (draw.chosen >> 1 == hole)
        images = operate(images, draw.chosen, draw.tables)
        return torch.where(_in_square(images, first, end), draw.colour, images)


def operate(images: Tensor, chosen: Tensor, tables: Tables) -> Tensor:
    """Apply to every image (uint8, (B, C, H, W)) the one operation that is chosen for it (int64, (B,))."""
    batch, channels = images.shape[:2]
    source = tables.source.index_select(0, chosen).unsqueeze(1).expand(-1, channels, -1)
    moved = images.flatten(2).gather(2, source).masked_fill(tables.outside.index_select(0, chosen), tables.fill)
    pixels = moved.long()
    kinds = tables.kinds.index_select(0, chosen)
    colour, contrast, blended, autocontrast, equalise = (kind.view(-1, 1, 1) for kind in kinds.unbind(1))

    counts = torch.zeros(batch, channels, 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, pixels, tables.value[1].expand_as(pixels))  # a one for every pixel
    low, high = pixels.amin(2, keepdim=True), pixels.amax(2, keepdim=True)
    new = tables.values.index_select(0, chosen).unsqueeze(1).expand(-1, channels, -1)
    ends = torch.add(high, low, alpha=256)
    stretched = (tables.value * tables.scale.take(ends) + tables.offset.take(ends)).clamp(0, 255).to(torch.uint8)
    new = torch.where(autocontrast, stretched, new)
    new = torch.where(equalise, _equalise(tables.value, counts, high, pixels.shape[2]), new)

    shades, count = _grey(pixels), pixels.shape[2]
    mean = (shades.sum(2, keepdim=True) + count // 2) // count
    degenerate = torch.where(contrast, mean, _smooth(moved.view_as(images)).flatten(2))
    degenerate = torch.where(colour, shades, degenerate)
    index = torch.add(pixels, degenerate, alpha=256) + tables.blend_start.index_select(0, chosen).view(-1, 1, 1)
    return torch.where(blended, tables.blend_table.take(index), new.gather(2, pixels)).view_as(images)


def _in_square(images: Tensor, first: Tensor, end: Tensor) -> Tensor:
    """Mark the pixels from `first` up to `end` (int64, (2, B): rows and columns): bool (B, 1, H, W)."""
    row, column = (torch.arange(size, device=images.device) for size in images.shape[2:])
    rows = (row >= first[0].unsqueeze(1)) & (row < end[0].unsqueeze(1))
    columns = (column >= first[1].unsqueeze(1)) & (column < end[1].unsqueeze(1))
    return (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)


def _grey(pixels: Tensor) -> Tensor:
    """Compute brightness in Pillow's integers: int64 (B, C, N) to (B, 1, N)."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.unbind(1)
    total = torch.add(torch.add(19595 * red, green, alpha=38470), blue, alpha=7471)
    return ((total + 0x8000) >> 16).unsqueeze(1)


def _smooth(images: Tensor) -> Tensor:
    """Average 3 x 3 pixels, the middle one five times; the border stays."""
    values = images + 0.5  # so that cutting off the fraction rounds
    inner = values[:, :, 1:-1, 1:-1]
    # the sum of nine and four times the middle one, all over 13; it is never nearer than 1/26 to the next whole number
    inner.copy_(torch.add(F.avg_pool2d(values, 3, stride=1, divisor_override=13), inner, alpha=4 / 13))
    return values.long()


def _equalise(value: Tensor, counts: Tensor, high: Tensor, pixels: int) -> Tensor:
    """Make all values about equally frequent."""
    step = (pixels - counts.gather(2, high)) // 255
    below = counts.cumsum(2) - counts
    flat = ((step // 2 + below) // step.clamp_min(1)).clamp_max(255)
    return torch.where(step > 0, flat, value).to(torch.uint8)


def policy_operations(height: int, width: int) -> tuple[Operation, ...]:
    """List what AutoAugment can draw: nothing, and every operation of the policy with either sign."""
    sizes = {"shear_x": 0.3, "shear_y": 0.3, "rotate": 30.0, **dict.fromkeys(BLENDS, 0.9)}
    sizes |= {"translate_x": 150 / 331 * width, "translate_y": 150 / 331 * height}
    operations = [("nothing", 0.0)]
    for name, _, level in (pair[i] for i in (0, 1) for pair in _POLICY):
        part = level / 9
        fixed = {"posterise": float(round(8 - 4 * part)), "solarise": 256 - 256 * part}.get(name, float(name in BLENDS))
        operations += [(name, fixed + sign * sizes.get(name, 0.0) * part) for sign in (-1, 1)]
    return tuple(operations)


def strength(name: str, level: int) -> float:
    """Return what a level from 0 to 30 means for an operation of RandAugment."""
    low, high = _RANGES[name]
    value = level / HIGHEST * (high - low) + low
    return max(1.0, float(int(value))) if name == "posterise" else value


@functools.lru_cache(maxsize=16)
def _policy_tables(channels: int, height: int, width: int, device: torch.device) -> tuple[Tables, Tensor]:
    """Return the tables of the policy, and how likely each operation of a pair is made: float64 (2, 25)."""
    chances = [[pair[i][1] for pair in _POLICY] for i in (0, 1)]
    tables = tabulate(policy_operations(height, width), (channels, height, width), device)
    return tables, torch.tensor(chances, dtype=torch.float64, device=device)


@functools.lru_cache(maxsize=16)
def _rand_tables(
    names: tuple[str, ...], level: int, channels: int, height: int, width: int, device: torch.device
) -> tuple[Tables, Tensor]:
    """Return the tables of every operation twice, moves with either sign, and the colour of holes."""
    signed = [(name, sign if name in MOVES else 1) for name in names for sign in (-1, 1)]
    operations = [("nothing" if name == "cutout" else name, sign * strength(name, level)) for name, sign in signed]
    return (
        tabulate(tuple(operations), (channels, height, width), device, fill=0),
        torch.tensor(_HOLE_COLOURS[channels], dtype=torch.uint8, device=device).view(-1, 1, 1),
    )


def tabulate(
    operations: tuple[Operation, ...], shape: tuple[int, int, int], device: torch.device, fill: int = 128
) -> Tables:
    """Work out what operations do to images of a shape (channels, height, width)."""
    if shape[0] not in _HOLE_COLOURS:
        raise ValueError(f"AutoAugment and RandAugment take grey and colour images, got {shape[0]} channels.")
    source, outside = _positions(operations, *shape[1:])
    factors = sorted({amount for name, amount in operations if name in BLENDS}) or [1.0]
    starts = [factors.index(amount) * 256 * 256 if name in BLENDS else 0 for name, amount in operations]
    groups = (("colour",), ("contrast",), ("colour", "contrast", "sharpness"), ("autocontrast",), ("equalise",))
    low, high = torch.meshgrid(torch.arange(256).double(), torch.arange(256).double(), indexing="ij")
    span = (high - low).clamp_min(1)
    # a plain 255.0 / span would multiply by the rounded reciprocal
    scale = torch.where(high > low, torch.full_like(span, 255.0) / span, 1.0)
    return Tables(
        source=source.to(device),
        outside=outside.to(device),
        fill=fill,
        values=torch.stack([_values(name, amount) for name, amount in operations]).to(device),
        blend_table=torch.stack([_blends(factor) for factor in factors]).flatten().to(device),
        blend_start=torch.tensor(starts, device=device),
        scale=scale.flatten().to(device),
        offset=torch.where(high > low, -low * scale, 0.0).flatten().to(device),
        value=torch.arange(256, device=device),
        kinds=torch.tensor([[name in group for group in groups] for name, _ in operations], device=device),
    )


def _positions(operations: tuple[Operation, ...], height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return where every output pixel comes from, nearest neighbour, and whether that is outside the image."""
    maps = torch.tensor([_inverse_map(*operation, height, width) for operation in operations], dtype=torch.float64)
    xx, xy, x0, yx, yy, y0 = maps.view(-1, 6, 1, 1).unbind(1)
    row, column = torch.arange(height).view(1, height, 1), torch.arange(width).view(1, 1, width)
    # pixel centres are at halves
    start_x, start_y = fixed_point(x0 + 0.5 * xx + 0.5 * xy), fixed_point(y0 + 0.5 * yx + 0.5 * yy)
    from_column = (start_x + column * fixed_point(xx) + row * fixed_point(xy)) >> 16
    from_row = (start_y + column * fixed_point(yx) + row * fixed_point(yy)) >> 16
    outside = (from_row < 0) | (from_row >= height) | (from_column < 0) | (from_column >= width)
    source = from_row.clamp(0, height - 1) * width + from_column.clamp(0, width - 1)
    return source.flatten(1), outside.flatten(1).unsqueeze(1)


def _inverse_map(name: str, amount: float, height: int, width: int) -> tuple[float, ...]:
    """Return where an output position comes from: x = xx x' + xy y' + x0, and likewise y."""
    if name == "rotate":
        turn = torch.tensor(amount * torch.pi / 180, dtype=torch.float64)
        cos, sin = float(turn.cos()), float(turn.sin())
        x0, y0 = (width - cos * width + sin * height) / 2, (height - sin * width - cos * height) / 2
        return cos, -sin, x0, sin, cos, y0
    size = {move: amount if move == name else 0.0 for move in MOVES}
    return 1.0, size["shear_x"], size["translate_x"], size["shear_y"], 1.0, size["translate_y"]


def _values(name: str, amount: float) -> Tensor:
    """Return the new value of each of the 256, for the operations that look at nothing else."""
    value = torch.arange(256)
    step, raised = 2 ** min(8, max(0, 8 - int(amount))), (value + amount).clamp(0, 255).long()
    new: dict[str, Tensor] = {
        "posterise": value // step * step,
        "solarise": torch.where(value < amount, value, 255 - value),
        "solarise_add": torch.where(raised < 128, raised, 255 - raised),
        "invert": 255 - value,
        "brightness": _blends(amount)[0],
    }
    return new.get(name, value).to(torch.uint8)


def _blends(factor: float) -> Tensor:
    """Mix d + factor (x - d) in float32 for every degenerate value d and value x, as Pillow does: uint8 (256, 256)."""
    value = torch.arange(256, dtype=torch.float32)
    start = value[:, None]
    return (start + torch.tensor(factor, dtype=torch.float32) * (value - start)).clamp(0, 255).to(torch.uint8)


def fixed_point(value: Tensor) -> Tensor:
    """Round to 1/65536 pixel, as Pillow does, so that both find the same nearest neighbours."""
    return (value * (1 << 16) + 0.5).floor().long()
