"""Image files as the bytes a network was trained on: upright, in its colours, scaled, the centre cut out."""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
COLOURS = {1: "L", 3: "RGB"}
"""Pillow's word for images of so many channels."""
WORKERS = 16


def decode(
    paths: Sequence[Path], shape: tuple[int, int, int], reduced: list[Path] | None = None
) -> tuple[NDArray[np.uint8], dict[int, ValueError]]:
    """Read image files, each by itself: one that cannot be read is told and does not stop the others.

    An image is scaled (bicubic) until it just covers height and width, and the centre is cut out. Transparent pixels
    keep their colour. Of colours with more than 8 bits per channel the upper 8 are kept; grey images of that kind,
    whose values often fill a small part of the range, are refused.

    Args:
        paths: The files.
        shape: (channels, height, width); 1 channel is grey, 3 are RGB.
        reduced: Gets the files that lost bits, for `warn_of_reduced`, which is called here if it is not given.

    Returns:
        uint8 (N, C, H, W), and by position the errors, which name their file; their rows have no meaning.

    >>> array, errors = decode([Path("nowhere.png")], (3, 8, 8))
    >>> array.shape, list(errors)
    ((1, 3, 8, 8), [0])
    """
    import numpy as np

    if shape[0] not in COLOURS:
        raise ValueError(f"image files have 1 channel (grey) or 3 (RGB), and the images here have {shape[0]}.")
    pillow = _pillow()
    array = np.empty((len(paths), *shape), dtype=np.uint8)
    errors: dict[int, ValueError] = {}
    deep: set[int] = set()

    def read(job: tuple[int, Path]) -> None:
        try:
            array[job[0]], has_more = _read(pillow, job[1], shape)
        except ValueError as error:
            errors[job[0]] = error
        else:
            deep.update([job[0]] if has_more else [])

    with warnings.catch_warnings():
        # A picture so large that Pillow warns of a decompression bomb is an error that names the file.
        warnings.simplefilter("error", pillow.DecompressionBombWarning)
        with ThreadPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
            for _ in pool.map(read, enumerate(paths)):
                pass
    lost = [paths[i] for i in sorted(deep)]
    if reduced is None:
        warn_of_reduced(lost)
    else:
        reduced += lost
    return array, errors


def warn_of_reduced(paths: Sequence[Path]) -> None:
    """Warn of files whose colours lost bits: once, however often the same files are read.

    >>> warn_of_reduced([])
    """
    if paths:
        _warn_of_reduced(paths[0], len(paths) - 1)


@functools.cache
def _warn_of_reduced(first: Path, others: int) -> None:
    more = f" and {others} other image{'s' if others > 1 else ''}" if others else ""
    warnings.warn(
        f"{first}{more} ha{'ve' if others else 's'} more than 8 bits per channel, of which the upper 8 are kept. "
        "Convert to 8 bits yourself where the range is to be used otherwise.",
        stacklevel=3,
    )


def _has_more_bits(opened: Any) -> bool:
    """Return whether a file has more bits than the image that Pillow makes of it; known before it is loaded only."""
    for codec, _, _, told in opened.tile:
        raw, *more = told if isinstance(told, tuple) else (told,)
        # the readers of PPM are told the largest value, but for black and white
        if re.fullmatch(r".+;16[BLN]", str(raw)) or (codec.startswith("ppm") and more and more[-1] > 255):
            return True
    return False


def _read(pillow: Any, path: Path, shape: tuple[int, int, int]) -> tuple[NDArray[np.uint8], bool]:
    """Read one image (C, H, W), and whether it had more bits in the file."""
    import numpy as np
    from PIL import ImageOps

    try:
        with pillow.open(path) as opened:
            deep = _has_more_bits(opened)
            image = ImageOps.exif_transpose(opened)
            image.load()
    except Exception as error:  # Pillow's decoders raise what they like; the user needs the file's name
        raise ValueError(
            f"{path} cannot be read as an image ({type(error).__name__}: {error}). Repair or remove it."
        ) from error
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"{path} has more than 8 bits per channel (mode {image.mode}). Convert it to 8 bits first.")
    if image.mode in ("P", "PA", "LA"):
        image = image.convert("RGBA")
    channels, height, width = shape
    image = image.convert("RGB").convert(COLOURS[channels])  # grey to RGB and back changes no value
    scale = max(width / image.width, height / image.height)
    if scale != 1:
        size = max(width, round(image.width * scale)), max(height, round(image.height * scale))
        image = image.resize(size, pillow.Resampling.BICUBIC)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    pixels = np.asarray(image.crop((left, top, left + width, top + height)), dtype=np.uint8)
    return pixels.reshape(height, width, channels).transpose(2, 0, 1), deep


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError('images are read with Pillow, which is missing: pip install "maxsep[lab]"') from error
    return Image
