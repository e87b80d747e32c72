"""Operations on whole uint8 batches with one parameter per image, bit for bit what Pillow does to one image.

They come in three families, because each family is one pass over the batch whatever operation an image gets:
moves (an affine map of positions), blends (with a degenerate image) and tables (a new value for every old one).
Nothing waits for the device, and no shape depends on a value.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
BLENDS = ("colour", "contrast", "brightness", "sharpness")
TABLES = ("posterise", "solarise", "solarise_add", "invert", "autocontrast", "equalise")
OPERATIONS = ("nothing", *MOVES, *BLENDS, *TABLES)
CODES = {name: code for code, name in enumerate(OPERATIONS)}

_ONE = 1 << 16
"""Positions count in 1/65536 pixel, as in Pillow, so that both round every one the same way."""


def operate(images: Tensor, codes: Tensor, magnitudes: Tensor, fill: int = 128) -> Tensor:
    """Apply to every image the one operation that its code names.

    Args:
        images: uint8 (B, C, H, W) with 1 or 3 channels.
        codes: int64 (B,), positions in `OPERATIONS`.
        magnitudes: float64 (B,): pixels by pixel of a shear, pixels of a translation, degrees of a rotation
            (counter-clockwise), factor of a blend (1 changes nothing), bits to keep, threshold, or what is added before
            solarising at 128; not used by others.
        fill: Value of pixels that enter from outside.

    >>> images = torch.full((1, 3, 4, 4), 200, dtype=torch.uint8)
    >>> operate(images, torch.tensor([CODES["invert"]]), torch.zeros(1, dtype=torch.float64)).unique()
    tensor([55], dtype=torch.uint8)
    """
    images = move(images, codes, magnitudes, fill)
    images = blend(images, codes, magnitudes)
    return look_up(images, codes, magnitudes)


def move(images: Tensor, codes: Tensor, magnitudes: Tensor, fill: int = 128) -> Tensor:
    """Shear, translate or rotate images, nearest neighbour; those with another code stay."""
    batch, channels, height, width = images.shape
    (xx, xy, x0), (yx, yy, y0) = _inverse_maps(codes, magnitudes, height, width)
    row = torch.arange(height, device=images.device).view(1, height, 1)
    column = torch.arange(width, device=images.device).view(1, 1, width)
    # pixel centres are at halves
    start_x, start_y = _fixed(x0 + 0.5 * xx + 0.5 * xy), _fixed(y0 + 0.5 * yx + 0.5 * yy)
    from_column = (start_x + column * _fixed(xx) + row * _fixed(xy)) >> 16
    from_row = (start_y + column * _fixed(yx) + row * _fixed(yy)) >> 16
    inside = (from_row >= 0) & (from_row < height) & (from_column >= 0) & (from_column < width)
    source = from_row.clamp(0, height - 1) * width + from_column.clamp(0, width - 1)
    source = source.view(batch, 1, -1).expand(-1, channels, -1)
    moved = images.flatten(2).gather(2, source).view_as(images)
    return moved.masked_fill(~inside.unsqueeze(1), fill)


def blend(images: Tensor, codes: Tensor, factors: Tensor) -> Tensor:
    """Change colour, contrast, brightness or sharpness: degenerate + factor * (image - degenerate), cut to bytes."""
    grey = _grey(images)
    pixels = grey.shape[2] * grey.shape[3]
    mean = (2 * grey.sum((1, 2, 3), keepdim=True) + pixels) // (2 * pixels)
    degenerate = torch.zeros_like(images, dtype=torch.int64)
    for name, other in (("colour", grey), ("contrast", mean), ("sharpness", _smooth(images))):
        degenerate = torch.where(_is(codes, name), other, degenerate)
    start = degenerate.float()
    mixed = (start + factors.float().view(-1, 1, 1, 1) * (images.float() - start)).clamp(0, 255).to(torch.uint8)
    chosen = (codes >= CODES[BLENDS[0]]) & (codes <= CODES[BLENDS[-1]])
    return torch.where(chosen.view(-1, 1, 1, 1), mixed, images)


def look_up(images: Tensor, codes: Tensor, magnitudes: Tensor) -> Tensor:
    """Change values by a table of 256 new ones for every channel: posterise, solarise, invert, equalise and so on."""
    batch, channels = images.shape[:2]
    counts = torch.zeros(batch, channels, 256, dtype=torch.int64, device=images.device)
    flat = images.flatten(2).long()
    counts.scatter_add_(2, flat, torch.ones_like(flat))
    value = torch.arange(256, device=images.device).expand(batch, channels, 256)
    amount = magnitudes.view(-1, 1, 1)
    raised = (value + amount).clamp(0, 255).long()
    step = torch.exp2((8 - amount).clamp(0, 8)).long()
    tables = {
        "posterise": value // step * step,
        "solarise": torch.where(value < amount, value, 255 - value),
        "solarise_add": torch.where(raised < 128, raised, 255 - raised),
        "invert": 255 - value,
        "autocontrast": _stretch(counts, value),
        "equalise": _equalise(counts, value),
    }
    table = value
    for name, other in tables.items():
        table = torch.where(_is(codes, name).squeeze(-1), other, table)
    return table.to(torch.uint8).gather(2, flat).view_as(images)


def cut_out(images: Tensor, row: Tensor, column: Tensor, size: int) -> Tensor:
    """Blacken a square of `size` pixels about (row, column) of every image; what lies outside is lost."""
    top, left = row - size // 2, column - size // 2
    return paint(images, torch.stack([top, top + size]), torch.stack([left, left + size]), (0,) * images.shape[1])


def paint(images: Tensor, rows: Tensor, columns: Tensor, colour: tuple[int, ...]) -> Tensor:
    """Fill one rectangle of every image.

    Args:
        images: uint8 (B, C, H, W).
        rows: int64 (2, B): the first row, and the one after the last; beyond the image nothing is painted.
        columns: int64 (2, B): likewise.
        colour: C values of 0 to 255.

    >>> paint(torch.zeros(1, 1, 2, 4).byte(), torch.tensor([[0], [1]]), torch.tensor([[2], [9]]), (7,)).tolist()
    [[[[0, 0, 7, 7], [0, 0, 0, 0]]]]
    """
    height, width = images.shape[2:]
    row = torch.arange(height, device=images.device).view(1, height, 1)
    column = torch.arange(width, device=images.device)
    top, bottom, left, right = (edge.view(-1, 1, 1) for edge in (*rows, *columns))
    inside = (row >= top) & (row < bottom) & (column >= left) & (column < right)
    # numbers, not a tensor of them: that would have to be sent to the device
    planes = [plane.masked_fill(inside, value) for plane, value in zip(images.unbind(1), colour, strict=True)]
    return torch.stack(planes, dim=1)


def _inverse_maps(codes: Tensor, magnitudes: Tensor, height: int, width: int) -> tuple[list[Tensor], list[Tensor]]:
    """Where an output position comes from: (xx, xy, x0) and (yx, yy, y0), each (B, 1, 1)."""
    one, zero = torch.ones_like(magnitudes), torch.zeros_like(magnitudes)
    code = {name: codes == CODES[name] for name in MOVES}
    radians = magnitudes * (torch.pi / 180)
    turn = code["rotate"]
    cos, sin = torch.where(turn, radians.cos(), one), torch.where(turn, radians.sin(), zero)
    x0 = torch.where(turn, (width - cos * width + sin * height) / 2, zero)
    y0 = torch.where(turn, (height - sin * width - cos * height) / 2, zero)
    x_row = [cos, torch.where(code["shear_x"], magnitudes, -sin), torch.where(code["translate_x"], magnitudes, x0)]
    y_row = [torch.where(code["shear_y"], magnitudes, sin), cos, torch.where(code["translate_y"], magnitudes, y0)]
    return [value.view(-1, 1, 1) for value in x_row], [value.view(-1, 1, 1) for value in y_row]


def _fixed(value: Tensor) -> Tensor:
    return (value * _ONE + 0.5).floor().long()


def _grey(images: Tensor) -> Tensor:
    """The brightness of colours, (B, 1, H, W), in Pillow's integers."""
    if images.shape[1] == 1:
        return images.long()
    red, green, blue = images.long().unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).unsqueeze(1)


def _smooth(images: Tensor) -> Tensor:
    """Average 3 x 3 pixels, the middle one five times; the border stays."""
    values = images.long()
    height, width = images.shape[2:]
    total = 4 * values[:, :, 1:-1, 1:-1]
    for down in range(3):
        for right in range(3):
            total = total + values[:, :, down : height - 2 + down, right : width - 2 + right]
    smooth = values.clone()
    smooth[:, :, 1:-1, 1:-1] = (2 * total + 13) // 26
    return smooth


def _stretch(counts: Tensor, value: Tensor) -> Tensor:
    """Spread the values that occur over 0 to 255."""
    there = counts > 0
    low = torch.where(there, value, 255).amin(2, keepdim=True)
    high = torch.where(there, value, 0).amax(2, keepdim=True)
    span = (high - low).clamp_min(1).double()
    scale = torch.full_like(span, 255.0) / span  # a plain 255.0 / span would multiply by the rounded reciprocal
    spread = (value * scale + -low * scale).clamp(0, 255).long()
    return torch.where(high > low, spread, value)


def _equalise(counts: Tensor, value: Tensor) -> Tensor:
    """Make all values about equally frequent."""
    last = torch.where(counts > 0, value, 0).amax(2, keepdim=True)
    step = (counts.sum(2, keepdim=True) - counts.gather(2, last)) // 255
    below = counts.cumsum(2) - counts
    flat = ((step // 2 + below) // step.clamp_min(1)).clamp_max(255)
    return torch.where(step > 0, flat, value)


def _is(codes: Tensor, name: str) -> Tensor:
    return (codes == CODES[name]).view(-1, 1, 1, 1)
