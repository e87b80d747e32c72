"""Image files as the bytes a network was trained on: upright, in its colours, scaled, the centre cut out."""

from __future__ import annotations

import os
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


def decode(paths: Sequence[Path], shape: tuple[int, int, int]) -> tuple[NDArray[np.uint8], dict[int, ValueError]]:
    """Read image files, each by itself: one that cannot be read is told and does not stop the others.

    An image is scaled (bicubic) until it just covers height and width, and the centre is cut out. Transparent pixels
    keep their colour; images with more than 8 bits per channel are refused.

    Args:
        paths: The files.
        shape: (channels, height, width); 1 channel is grey, 3 are RGB.

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

    def read(job: tuple[int, Path]) -> None:
        try:
            array[job[0]] = _read(pillow, job[1], shape)
        except ValueError as error:
            errors[job[0]] = error

    with warnings.catch_warnings():
        # A picture so large that Pillow warns of a decompression bomb is an error that names the file.
        warnings.simplefilter("error", pillow.DecompressionBombWarning)
        with ThreadPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
            for _ in pool.map(read, enumerate(paths)):
                pass
    return array, errors


def _read(pillow: Any, path: Path, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    import numpy as np
    from PIL import ImageOps

    try:
        with pillow.open(path) as opened:
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
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError('images are read with Pillow, which is missing: pip install "maxsep[lab]"') from error
    return Image
