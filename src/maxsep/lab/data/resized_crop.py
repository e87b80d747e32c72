"""Random crops of any size and shape, scaled back to the whole image: ImageNet's augmentation, on the device.

Scaling is Pillow's, bit for bit: integers with 22 bits behind the point, columns first, bytes in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from maxsep.lab.data.pixel_ops import check_images

_TRIES = 10
_BITS = 22
"""Weights count in 1/2^22, as in Pillow, so that both round every pixel the same way. Times 255 they fit in int32."""


class CropDraw(NamedTuple):
    """What was drawn for a batch of B images: one rectangle each, inside the image."""

    top: Tensor
    """int64 (B,): the first row."""
    left: Tensor
    """int64 (B,): the first column."""
    height: Tensor
    """int64 (B,): rows, at least 1."""
    width: Tensor
    """int64 (B,): columns, at least 1."""


@dataclass(frozen=True)
class ResizedCrop:
    """Cut a random rectangle out of every image and scale it to the image's own height and width.

    Rectangles are drawn as torchvision's RandomResizedCrop does it: a part of the area a, uniform in `scale`, and a
    ratio of width to height r, log-uniform in `ratio`, make sqrt(a H W r) columns and sqrt(a H W / r) rows, rounded;
    of ten such tries the first that fits into the image is taken, anywhere in it, and if none fits, the largest
    rectangle in the middle whose shape is within `ratio`. So large areas are rarer than small ones: fewer shapes fit.

    Pixels are interpolated bilinearly inside the rectangle (beyond its edge the edge goes on, not the image), columns
    first, each direction rounded half up to bytes: bit for bit Pillow's `image.crop(box).resize(size, BILINEAR)`.
    Images are stored at the size they are trained at, so a rectangle is never larger than its result: scaling only
    magnifies. There an interpolation against aliasing is the plain one, which is why no antialiasing is needed.

    Calling it draws and applies; as for `Augmentation`, nothing waits for the device and no shape depends on a value.
    Beside images and result, applying takes 14 bytes for each byte of the images, 540 MB for 256 x 3 x 224 x 224;
    compiled (`maxsep.lab.engine.step`) it takes next to nothing (both measured on a CPU).

    Args:
        scale: Least and largest part of the area, within (0, 1].
        ratio: Least and largest width over height.

    >>> images = torch.randint(256, (4, 3, 48, 64)).to(torch.uint8)
    >>> crop = ResizedCrop(scale=(0.25, 0.25), ratio=(4 / 3, 4 / 3))
    >>> draw = crop.draw(images, torch.Generator().manual_seed(0))
    >>> draw.height.tolist(), draw.width.tolist()
    ([24, 24, 24, 24], [32, 32, 32, 32])
    >>> crop.apply(images, draw).shape
    torch.Size([4, 3, 48, 64])
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        """Refuse areas that no image has, and empty ranges."""
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(
                f"scale must be two parts of the area with 0 < least <= largest <= 1, got {self.scale}. "
                "Pass such as (0.08, 1.0)."
            )
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise ValueError(
                f"ratio must be two positive ratios of width to height, the smaller first, got {self.ratio}. "
                "Pass such as (3 / 4, 4 / 3)."
            )

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Crop and scale uint8 images (B, C, H, W) with random numbers from a generator on the same device."""
        return self.apply(images, self.draw(images, generator))

    def draw(self, images: Tensor, generator: torch.Generator) -> CropDraw:
        """Draw the rectangles for a batch without cutting them out."""
        check_images(images)
        batch, _, height, width = images.shape
        tries = torch.rand(2, _TRIES, batch, generator=generator, device=images.device, dtype=torch.float64)
        place = torch.rand(2, batch, generator=generator, device=images.device, dtype=torch.float64)
        area = height * width * _between(tries[0], *self.scale)
        ratio = _between(tries[1], *map(math.log, self.ratio)).exp()
        rows, columns = (area / ratio).sqrt().round().long(), (area * ratio).sqrt().round().long()
        fits = (rows > 0) & (rows <= height) & (columns > 0) & (columns <= width)
        # what is taken if none fits stands behind the ten, as one that always does
        last_rows, last_columns = largest_within(height, width, self.ratio)
        rows, columns = (_append(x, last) for x, last in ((rows, last_rows), (columns, last_columns)))
        chosen = _append(fits.long(), 1).argmax(0, keepdim=True)  # of equals the first
        rows, columns = rows.gather(0, chosen)[0], columns.gather(0, chosen)[0]
        central = chosen[0] == _TRIES
        top, left = _position(place[0], height - rows, central), _position(place[1], width - columns, central)
        return CropDraw(top, left, rows, columns)

    def apply(self, images: Tensor, draw: CropDraw) -> Tensor:
        """Cut drawn rectangles out and scale them: uint8 (B, C, H, W) in, the same out."""
        check_images(images)
        height, width = images.shape[2:]
        images = _interpolate(images, 3, _taps(draw.left, draw.width, width))
        return _interpolate(images, 2, _taps(draw.top, draw.height, height))


def largest_within(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """Find the largest rectangle in an image whose width over height is within two bounds: rows and columns.

    >>> largest_within(90, 100, (3 / 4, 4 / 3)), largest_within(90, 300, (3 / 4, 4 / 3))
    ((90, 100), (90, 120))
    """
    least, largest = ratio
    if width / height < least:
        return max(1, round(width / least)), width
    if width / height > largest:
        return height, max(1, round(height * largest))
    return height, width


class _Taps(NamedTuple):
    """Which two pixels of a line of n make each of its new ones."""

    first: Tensor
    """int64 (B, n)."""
    second: Tensor
    """int64 (B, n)."""
    weight: Tensor
    """int32 (B, n): of the second, in 1/2^22."""


def _taps(start: Tensor, extent: Tensor, size: int) -> _Taps:
    """Spread `extent` pixels from `start` on over `size`.

    Pixel centres are at halves: the middle of place i comes from p = (i + 1/2) extent / size - 1/2, from which whole
    and fractional part are taken, in units of 1 / (2 size), where p is a whole number.
    """
    unit = 2 * size
    place = torch.arange(size, device=start.device)
    start, extent = start.unsqueeze(1), extent.unsqueeze(1)
    position = ((2 * place + 1) * extent - size).clamp_min(0)
    whole = position // unit
    weight = ((position - whole * unit) * 2**_BITS + size) // unit
    return _Taps(start + whole, start + torch.minimum(whole + 1, extent - 1), weight.int())


def _interpolate(images: Tensor, dim: int, taps: _Taps) -> Tensor:
    """Make new rows (dim 2) or columns (dim 3): first + weight (second - first), rounded half up."""
    first, second, weight = (x[:, None, :, None] if dim == 2 else x[:, None, None, :] for x in taps)
    one, other = (images.gather(dim, source.expand_as(images)) for source in (first, second))
    step: Tensor = ((other.int() - one) * weight + 2 ** (_BITS - 1)) >> _BITS
    return (one + step).to(torch.uint8)


def _between(unit: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * unit


def _append(tries: Tensor, last: int) -> Tensor:
    return torch.cat([tries, torch.full_like(tries[:1], last)])


def _position(unit: Tensor, room: Tensor, central: Tensor) -> Tensor:
    """Choose one of 0 to `room`, all equally likely, or the middle."""
    return torch.where(central, room // 2, (unit * (room + 1)).long())
