"""Decode pictures into uint8 arrays: in memory, or once into a folder that is mapped into memory."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
import re
import shutil
import stat
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image, ImageOps

from maxsep.files import parse_file, read_json, verify_folder, write_folder
from maxsep.lab.data.download import Progress
from maxsep.lab.data.images import ImageSet, labels_of
from maxsep.packages import load_package

HEIC_SUFFIXES = frozenset({".heic", ".heif"})
HAS_HEIC = importlib.util.find_spec("pillow_heif") is not None
IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
IMAGE_SUFFIXES |= HEIC_SUFFIXES if HAS_HEIC else frozenset()
FORMATS: tuple[str, ...] = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow's names of these formats: it knows others that start programs, such as Ghostscript for EPS."""
MOST_BYTES = 1 << 30
"""A larger file is no picture and refused unread."""
COLOURS = {1: "L", 3: "RGB"}  # Pillow's mode by number of channels
_BLOCK = 1024  # files decoded at a time
_LARGEST = 1 << 26  # pixels of an enlarged image
_MARGIN = 8  # bicubic interpolation looks two pixels beyond each edge
_CACHED = ("splits.json", "test.npy", "train.npy")


@dataclass(frozen=True, eq=False)
class Stored:
    """A picture that is bytes inside another file; its `str` names it in errors."""

    name: str
    size: int
    read_bytes: Callable[[], bytes]
    time: int = 0  # when that file was changed last

    def __str__(self) -> str:
        return self.name


Source = Path | Stored


def decode(sources: Sequence[Source], shape: tuple[int, int, int]) -> tuple[NDArray[np.uint8], dict[int, ValueError]]:
    """Decode pictures, each by itself, as `shape`: (channels, height, width), with 1 channel (grey) or 3 (RGB).

    An image is turned upright and scaled (bicubic) until it just covers height and width, and the centre is cut out.
    Transparent pixels keep their colour. Grey values of 16 bits lose the lower 8; of more bits they are refused, for
    they often fill a small part of the range. Returned are uint8 (N, C, H, W), and by position the errors, whose rows
    have no meaning.
    """
    if shape[0] not in COLOURS:
        raise ValueError(f"image files have 1 channel (grey) or 3 (RGB), got {shape[0]}.")
    array = np.empty((len(sources), *shape), dtype=np.uint8)

    def read(position: int) -> None:
        array[position] = _fit(_open(sources[position]), shape)

    return array, _errors_of(read, len(sources))


def find_unreadable(sources: Sequence[Source]) -> dict[int, ValueError]:
    """Open every picture; return by position the errors of those that cannot be read."""
    return _errors_of(lambda position: _open(sources[position]), len(sources))


def _errors_of(work: Callable[[int], object], count: int) -> dict[int, ValueError]:
    """Call a function with every number below `count`, in threads; return its errors."""
    errors: dict[int, ValueError] = {}

    def attempt(position: int) -> None:
        try:
            work(position)
        except ValueError as error:
            errors[position] = error

    with warnings.catch_warnings(), ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        # A picture so large that Pillow warns of a decompression bomb is an error that names the file.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            list(pool.map(attempt, range(count)))
        except BaseException:  # Ctrl-C must not wait for thousands of files
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return errors


def _open(source: Source) -> Image.Image:
    """Decode one picture upright, with 8 bits per channel."""
    formats = FORMATS
    if HAS_HEIC and Path(str(source)).suffix.lower() in HEIC_SUFFIXES:
        load_package("pillow_heif", "formats").register_heif_opener()
        formats = (*FORMATS, "HEIF")
    try:
        if isinstance(source, Path):
            _check_file(source)
        content = source.read_bytes()
        if not content:
            raise EOFError("the file is empty")
        with Image.open(io.BytesIO(content), formats=formats) as opened:
            image: Image.Image = ImageOps.exif_transpose(opened)
            image.load()
    except Exception as error:  # Pillow's decoders raise what they like; the user needs the file's name
        reason = re.sub(r" <_io\.BytesIO.*?>", "", str(error))
        raise ValueError(f"{source} cannot be read as an image ({type(error).__name__}: {reason}).") from error
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"{source} has more than 16 bits per channel (mode {image.mode}). Convert it to 8 bits first.")
    return image


def _check_file(path: Path) -> None:
    """Refuse what cannot be read to its end: pipes, devices, and files that are larger than any picture."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is no regular file")
    if status.st_size > MOST_BYTES:
        raise OSError(f"{status.st_size:,} bytes are more than {MOST_BYTES:,}")


def _fit(image: Image.Image, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Scale an image until it covers a shape, and cut out the centre."""
    if image.mode in ("P", "PA", "LA"):
        image = image.convert("RGBA")
    channels, height, width = shape
    image = image.convert("RGB").convert(COLOURS[channels])  # grey to RGB and back changes no value
    scale = max(width / image.width, height / image.height)
    if scale > 1 and scale**2 * image.width * image.height > _LARGEST:
        # of a strip of 30,000 x 1 pixels, enlarged to gigabytes, the centre would be kept
        image = _centre(image, *(math.ceil(side / scale) + _MARGIN for side in (width, height)))
    if scale != 1:
        size = max(width, round(image.width * scale)), max(height, round(image.height * scale))
        image = image.resize(size, Image.Resampling.BICUBIC)
    pixels = np.asarray(_centre(image, width, height), dtype=np.uint8)
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)


def _centre(image: Image.Image, width: int, height: int) -> Image.Image:
    """Cut out the centre, or keep the whole."""
    width, height = min(width, image.width), min(height, image.height)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def decode_once(folder: Path, write: Callable[[Path], None], *, is_current: Callable[[], bool] | None = None) -> None:
    """Let `write` fill a folder of decoded images, unless it is there (and current); of two processes one does it."""

    def is_there() -> bool:
        return folder.is_dir() and (is_current is None or is_current())

    if is_there():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        for left in folder.parent.glob(f".{folder.name}.tmp-*"):  # of a process that was killed: the lock is ours
            shutil.rmtree(left)
        if not is_there():  # no other process made it in the meantime
            write_folder(folder, write)


def write_decoded(
    folder: Path,
    parts: Mapping[str, Sequence[Source]],
    size: int,
    facts: Mapping[str, Any],
    progress: Progress | None = None,
) -> list[ValueError]:
    """Decode the pictures of `train` and `test` into a folder and return the errors; `facts` go to `splits.json`."""
    total, done, errors = sum(map(len, parts.values())) * 3 * size * size, 0, list[ValueError]()
    if (free := shutil.disk_usage(folder).free) < total:
        raise OSError(f"{folder.parent} needs {total / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free.")
    for part, sources in parts.items():
        # written, not mapped: a full disk is an error then, and not the end of the process
        with (folder / f"{part}.npy").open("wb") as out:
            header = {"descr": "|u1", "fortran_order": False, "shape": (len(sources), 3, size, size)}
            np.lib.format.write_array_header_1_0(out, header)
            for start in range(0, len(sources), _BLOCK):
                block, broken = decode(sources[start : start + _BLOCK], (3, size, size))
                errors += [broken[i] for i in sorted(broken)]
                out.write(block.data)
                done += block.nbytes
                if progress is not None:
                    progress(done, total)
    (folder / "splits.json").write_text(json.dumps(facts), encoding="utf-8")
    return errors


def open_decoded(folder: Path) -> tuple[dict[str, ImageSet], dict[str, Any]]:
    """Verify a folder of decoded images and map it into memory: its splits, and the facts that were stored."""
    verify_folder(folder, _CACHED)
    facts = read_json(folder / "splits.json")
    return {part: _map(folder / f"{part}.npy", facts["classes"], facts[part]) for part in ("train", "test")}, facts


def _map(path: Path, classes: Sequence[str], counts: Sequence[int]) -> ImageSet:
    # a mapping that could be written to would have to fit into memory
    array = parse_file(path, lambda path: np.load(path, mmap_mode="r"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nobody writes to it
        images = torch.from_numpy(array)
    return ImageSet(images, labels_of(counts), tuple(classes), rows=torch.arange(len(images)))
