"""Operations on whole uint8 batches, one of a list for each image, bit for bit what Pillow does to one image.

They come in three families, because each family is one pass over the batch whatever operation an image gets:
moves (an affine map of positions), blends (with a degenerate image) and values (a new one for every old one).
Nothing waits for the device, and no shape depends on a value. The work is small and its pieces are many, so their
number is what a training step pays for: what can be looked up in `Tables` is not computed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from maxsep.lab.data.pixel_tables import Tables


def operate(images: Tensor, chosen: Tensor, tables: Tables) -> Tensor:
    """Apply to every image the one operation that is chosen for it.

    Args:
        images: uint8 (B, C, H, W) with 1 or 3 channels.
        chosen: int64 (B,), positions in the list that the tables were made of.
        tables: From `tabulate`, for this height and width, on the device of the images.

    >>> from maxsep.lab.data.pixel_tables import tabulate
    >>> images = torch.full((1, 3, 4, 4), 200, dtype=torch.uint8)
    >>> operate(images, torch.tensor([0]), tabulate((("invert", 0.0),), 4, 4, images.device)).unique()
    tensor([55], dtype=torch.uint8)
    """
    batch, channels = images.shape[:2]
    source = tables.source.index_select(0, chosen).unsqueeze(1).expand(-1, channels, -1)
    moved = images.flatten(2).gather(2, source).masked_fill(tables.outside.index_select(0, chosen), tables.fill)
    pixels = moved.long()
    kinds = tables.kinds.index_select(0, chosen)
    colour, contrast, blended, autocontrast, equalise = (kind.view(-1, 1, 1) for kind in kinds.unbind(1))

    value = tables.value
    counts = torch.zeros(batch, channels, 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, pixels, value[1].expand_as(pixels))  # a one for every pixel
    low, high = pixels.amin(2, keepdim=True), pixels.amax(2, keepdim=True)
    new = tables.values.index_select(0, chosen).unsqueeze(1).expand(-1, channels, -1)
    new = torch.where(autocontrast, _stretch(value, low, high, tables), new)
    new = torch.where(equalise, _equalise(value, counts, high, pixels.shape[2]), new)

    shades = grey(pixels)
    degenerate = torch.where(contrast, mean_grey(shades), _smooth(moved.view_as(images)).flatten(2))
    degenerate = torch.where(colour, shades, degenerate)
    index = torch.add(pixels, degenerate, alpha=256) + tables.factor.index_select(0, chosen).view(-1, 1, 1)
    return torch.where(blended, tables.mixtures.take(index), new.gather(2, pixels)).view_as(images)


def paint(images: Tensor, rows: Tensor, columns: Tensor, colour: Tensor) -> Tensor:
    """Fill one rectangle of every image.

    Args:
        images: uint8 (B, C, H, W).
        rows: int64 (2, B): the first row, and the one after the last; beyond the image nothing is painted.
        columns: int64 (2, B): likewise.
        colour: uint8 (C, 1, 1), on the device of the images.

    >>> colour = torch.tensor([[[7]]], dtype=torch.uint8)
    >>> paint(torch.zeros(1, 1, 2, 4).byte(), torch.tensor([[0], [1]]), torch.tensor([[2], [9]]), colour).tolist()
    [[[[0, 0, 7, 7], [0, 0, 0, 0]]]]
    """
    height, width = images.shape[2:]
    inside = _between(rows, height).unsqueeze(2) & _between(columns, width).unsqueeze(1)
    return torch.where(inside.unsqueeze(1), colour, images)


def grey(pixels: Tensor) -> Tensor:
    """Find how bright colours are, in Pillow's integers: integers of at least 32 bits (B, C, N) to (B, 1, N).

    >>> grey(torch.tensor([[[255, 0], [255, 0], [255, 200]]])).tolist()
    [[[255, 23]]]
    """
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.unbind(1)
    total = torch.add(torch.add(19595 * red, green, alpha=38470), blue, alpha=7471)
    return ((total + 0x8000) >> 16).unsqueeze(1)


def mean_grey(shades: Tensor) -> Tensor:
    """Average what `grey` gives over an image, rounded half up: integers (B, 1, N) to int64 (B, 1, 1).

    >>> mean_grey(torch.tensor([[[1, 2, 2, 1]]])).tolist()
    [[[2]]]
    """
    count = shades.shape[2]
    return (shades.sum(2, keepdim=True) + count // 2) // count


def check_images(images: Tensor) -> None:
    """Raise unless this is a batch of uint8 images.

    >>> check_images(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    """
    if images.ndim != 4 or images.dtype != torch.uint8:
        raise ValueError(
            f"augmentation takes uint8 images of shape (B, C, H, W), got {images.dtype} {tuple(images.shape)}. "
            "Augment before converting to float."
        )


def _between(edges: Tensor, size: int) -> Tensor:
    """Which places of a line of pixels lie between two edges: bool (B, size)."""
    place = torch.arange(size, device=edges.device)
    first, end = edges.unsqueeze(2)
    inside: Tensor = (place >= first) & (place < end)
    return inside


def _smooth(images: Tensor) -> Tensor:
    """Average 3 x 3 pixels, the middle one five times; the border stays."""
    values = images + 0.5  # so that cutting off the fraction rounds
    inner = values[:, :, 1:-1, 1:-1]
    # the sum of nine and four times the middle one, all over 13; it is never nearer than 1/26 to the next whole number
    inner.copy_(torch.add(F.avg_pool2d(values, 3, stride=1, divisor_override=13), inner, alpha=4 / 13))
    return values.long()


def _stretch(value: Tensor, low: Tensor, high: Tensor, tables: Tables) -> Tensor:
    """Spread the values that occur over 0 to 255."""
    ends = torch.add(high, low, alpha=256)
    return (value * tables.scale.take(ends) + tables.offset.take(ends)).clamp(0, 255).to(torch.uint8)


def _equalise(value: Tensor, counts: Tensor, high: Tensor, pixels: int) -> Tensor:
    """Make all values about equally frequent."""
    step = (pixels - counts.gather(2, high)) // 255
    below = counts.cumsum(2) - counts
    flat = ((step // 2 + below) // step.clamp_min(1)).clamp_max(255)
    return torch.where(step > 0, flat, value).to(torch.uint8)
