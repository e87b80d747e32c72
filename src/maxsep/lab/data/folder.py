"""Pictures: folders of class folders, ImageNet and its lists; listing, decoding, and images decoded once."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image, ImageOps

from maxsep.files import parse_file, read_json, verify_folder, write_folder
from maxsep.lab.data.download import Progress
from maxsep.lab.data.images import ImageSet, Splits, held_counts, hold_out, labels_of

Unreadable = dict[Path, ValueError]  # files that were left out, each with an error that names it
IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
IGNORED_SUFFIXES = frozenset({".csv", ".htm", ".html", ".json", ".md", ".rst", ".tsv", ".txt", ".xml", ".yaml", ".yml"})
IGNORED_NAMES = frozenset({"desktop.ini", "license", "readme", "thumbs.db"})
SPLITS = frozenset({"dev", "test", "testing", "train", "training", "val", "valid", "validation"})
COLOURS = {1: "L", 3: "RGB"}  # Pillow's mode by number of channels
TEST_FRACTION = 0.2
LEAST_TEST = 2  # of a class with four images or more
_BLOCK = 1024  # files decoded at a time
_CACHED = ("splits.json", "test.npy", "train.npy")


@dataclass(frozen=True)
class Pictures:
    """The picture files of a split, class by class."""

    classes: tuple[str, ...]
    by_class: tuple[tuple[Path, ...], ...]

    @property
    def files(self) -> list[Path]:
        """All files, in the order of their labels."""
        return [path for paths in self.by_class for path in paths]

    @property
    def counts(self) -> list[int]:
        """The number of files of every class."""
        return list(map(len, self.by_class))

    def read(self, size: int) -> ImageSet:
        """Read all files into memory as RGB images of size x size; one that cannot be read is an error."""
        array, errors = decode(self.files, (3, size, size))
        _check_readable([errors[i] for i in sorted(errors)])
        return ImageSet(torch.from_numpy(array), labels_of(self.counts), self.classes)


@dataclass(frozen=True, eq=False)
class Listing:
    """The picture files of a dataset, and their fingerprint."""

    folder: Path
    train: Pictures
    test: Pictures | None  # None: a fifth of every class is held out of `train`

    def __post_init__(self) -> None:
        """Refuse splits of different classes."""
        if self.test is not None and self.train.classes != self.test.classes:
            odd = sorted({*self.train.classes} ^ {*self.test.classes})[0]
            raise ValueError(f"{self.folder}: class {odd!r} is only in one of the training and the test folder.")

    @property
    def train_counts(self) -> list[int]:
        """Training images of every class."""
        held = [0] * len(self.train.counts) if self.test else held_counts(self.train.counts, TEST_FRACTION, LEAST_TEST)
        return [count - out for count, out in zip(self.train.counts, held, strict=True)]

    @property
    def fingerprint(self) -> str:
        """Twelve digits of a digest of the names and sizes of all files; where the folder lies does not matter."""
        return self.state[0]

    @functools.cached_property
    def state(self) -> tuple[str, int]:
        """The fingerprint, and the sum of the times at which files were changed."""
        digest, times = hashlib.sha256(), 0
        for path in (path for split in (self.train, self.test) if split for path in split.files):
            name, stat = path.relative_to(self.folder).as_posix().encode("utf-8", "surrogateescape"), path.stat()
            digest.update(name + b"\0%d\0" % stat.st_size)
            times += stat.st_mtime_ns
        return digest.hexdigest()[:12], times


_LISTINGS: ContextVar[dict[Path, Listing] | None] = ContextVar("listings", default=None)


@contextlib.contextmanager
def list_once() -> Iterator[None]:
    """List every folder at most once inside this block: what is planned and what is read are the same files."""
    token = _LISTINGS.set({})
    try:
        yield
    finally:
        _LISTINGS.reset(token)


def list_folder(folder: Path) -> Listing:
    """List the pictures of a folder of class folders, without opening one.

    If it has `train/` and one of `test/` and `val/`, these are the splits and hold the class folders. Classes and
    images are sorted by name; sub-folders of a class belong to it. A class without images, or a file of an unknown
    kind, is an error. Passed over are only hidden files, text files, README, LICENSE, Thumbs.db and desktop.ini.
    """
    kept, key = _LISTINGS.get(), folder.absolute()
    if kept is not None and key in kept:
        return kept[key]
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder. Expected a folder with one sub-folder per class.")
    own = own_test(folder)
    train = _list_split(folder if own is None else folder / "train")
    listing = Listing(folder, train, None if own is None else _list_split(own))
    if kept is not None:
        kept[key] = listing
    return listing


def own_test(folder: Path) -> Path | None:
    """Find the test split that a folder brings along, `test/` or `val/` beside `train/`; None if it has none."""
    parts = {path.name for path in _visible(folder) if path.is_dir()}
    tests = sorted(parts & {"test", "val"})
    if "train" not in parts or not tests:
        if parts and parts <= SPLITS:
            names = " and ".join(f"{name}/" for name in sorted(parts))
            missing = "test/ or val/" if "train" in parts else "train/"
            raise ValueError(
                f"{folder} has {names} but no {missing}. Add it, with the same class folders. Or name "
                f"{folder / min(parts)} alone, then a fifth of every class is set aside for testing."
            )
        return None
    if len(tests) > 1:
        raise ValueError(f"{folder} has train/, test/ and val/. Hide one of the last two (rename val to .val).")
    if others := sorted(parts - {"train", *tests}):
        raise ValueError(f"{folder} has train/ and {tests[0]}/, but also {others[0]}/. Move or hide it.")
    return folder / tests[0]


def list_imagenet(source: str, root: Path) -> Listing:
    """List ImageNet, or the part that ImageNet-LT names (Liu et al., Recognition in an open world, CVPR 2019)."""
    pictures = root / "imagenet"
    for folder in (pictures / "train", pictures / "val"):
        if not folder.is_dir():
            raise FileNotFoundError(f"{source} is not in {root}: {folder} is no folder. See image-net.org for access.")
    if source == "imagenet":
        return Listing(pictures, _list_split(pictures / "train"), _list_split(pictures / "val"))
    lists = [_read_list(root / "imagenet-lt" / f"ImageNet_LT_{part}.txt", pictures) for part in ("train", "test")]
    names = {label: path.parent.name for path, label in lists[0]}
    if sorted(names) != list(range(len(names))) or not {label for _, label in lists[1]} <= set(names):
        raise ValueError(f"{root / 'imagenet-lt'}: the labels must be 0 to {len(names) - 1}, all in the train list.")
    train, test = (_by_class(entries, tuple(names[label] for label in range(len(names)))) for entries in lists)
    return Listing(pictures, train, test)


def _by_class(entries: list[tuple[Path, int]], classes: tuple[str, ...]) -> Pictures:
    paths: list[list[Path]] = [[] for _ in classes]
    for path, label in entries:
        paths[label].append(path)
    return Pictures(classes, tuple(map(tuple, paths)))


def _read_list(path: Path, pictures: Path) -> list[tuple[Path, int]]:
    if not path.is_file():
        raise FileNotFoundError(f"imagenet_lt needs the published list {path}.")
    matches = [re.fullmatch(r"(\S.*)\s+(\d+)", line.strip()) for line in path.read_text(encoding="utf-8").splitlines()]
    if not matches or None in matches:
        raise ValueError(f"{path} must have a path and a label in every line.")
    return [(pictures / match[1], int(match[2])) for match in matches if match]


def read_folder(listing: Listing, size: int, *, name: str) -> Splits:
    """Read listed pictures into memory; without a test split a fifth of every class is set aside by a fixed seed."""
    if listing.test is None and min(listing.train.counts) < 2:
        odd = listing.train.classes[listing.train.counts.index(1)]
        raise ValueError(f"{listing.folder / odd} has one image; a class needs 2, one to train and one to test.")
    train = listing.train.read(size)
    if listing.test is not None:
        return Splits(name, train, listing.test.read(size), fingerprint=listing.fingerprint)
    kept, held = hold_out(train.labels, TEST_FRACTION, least=LEAST_TEST)
    return Splits(name, train.subset(kept), train.subset(held), fingerprint=listing.fingerprint)


def read_imagenet(name: str, source: str, folder: Path, size: int, progress: Progress | None = None) -> Splits:
    """Read ImageNet or ImageNet-LT as RGB images of size x size, decoded into a folder at the first call.

    From then on that folder is the dataset: the pictures are not opened again, and need not be there. To decode anew,
    delete it. Its SHA-256 are checked whenever it is opened: minutes for 200 GB. The images are mapped into memory:
    writing to them ends the process.
    """
    if not folder.is_dir():
        listing = list_imagenet(source, folder.parent.parent)
        folder.parent.mkdir(exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            for left in folder.parent.glob(f".{folder.name}.tmp-*"):  # of a process that was killed: the lock is ours
                shutil.rmtree(left)
            if not folder.is_dir():  # no other process made it in the meantime
                write_folder(folder, lambda new: _decode_into(new, listing, size, progress))
    verify_folder(folder, _CACHED)
    facts = read_json(folder / "splits.json")
    train, test = (_map(folder / f"{part}.npy", facts["classes"], facts[part]) for part in ("train", "test"))
    return Splits(name, train, test, fingerprint=facts["fingerprint"])


def _decode_into(folder: Path, listing: Listing, size: int, progress: Progress | None) -> None:
    assert listing.test is not None
    splits = {"train": listing.train, "test": listing.test}
    total, done, errors = sum(len(split.files) for split in splits.values()) * 3 * size * size, 0, []
    if (free := shutil.disk_usage(folder).free) < total:
        raise OSError(f"{folder.parent} needs {total / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free.")
    for part, files in ((part, split.files) for part, split in splits.items()):
        # written, not mapped: a full disk is an error then, and not the end of the process
        with (folder / f"{part}.npy").open("wb") as out:
            header = {"descr": "|u1", "fortran_order": False, "shape": (len(files), 3, size, size)}
            np.lib.format.write_array_header_1_0(out, header)
            for start in range(0, len(files), _BLOCK):
                block, broken = decode(files[start : start + _BLOCK], (3, size, size))
                errors += [broken[i] for i in sorted(broken)]
                out.write(block.data)
                done += block.nbytes
                if progress is not None:
                    progress(done, total)
    _check_readable(errors)
    counts = {part: split.counts for part, split in splits.items()}
    facts = {"classes": listing.train.classes, "fingerprint": listing.fingerprint, **counts}
    (folder / "splits.json").write_text(json.dumps(facts), encoding="utf-8")


def _map(path: Path, classes: Sequence[str], counts: Sequence[int]) -> ImageSet:
    # a mapping that could be written to would have to fit into memory
    array = parse_file(path, lambda path: np.load(path, mmap_mode="r"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nobody writes to it
        return ImageSet(torch.from_numpy(array), labels_of(counts), tuple(classes))


def read_images(
    folder: Path, size: int, *, most: int | None = None, unreadable: Unreadable | None = None
) -> torch.Tensor:
    """Read every image below a folder, in the sorted order of their paths, as uint8 (N, 3, size, size).

    `most` limits their number, by a fixed seed. `unreadable` gets the files that cannot be read, which are left out;
    without it they are errors.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder. Expected a folder of images.")
    files = _list_images(folder, unreadable)
    if most is not None and len(files) > most:
        files = [files[i] for i in sorted(np.random.RandomState(0).permutation(len(files))[:most])]
    array, errors = decode(files, (3, size, size))
    if unreadable is None or len(errors) == len(files):
        _check_readable([errors[i] for i in sorted(errors)])
    if not files:
        raise ValueError(f"{folder} holds no image.")
    if unreadable is not None:
        unreadable |= {files[i]: errors[i] for i in sorted(errors)}
    return torch.from_numpy(array)[[i for i in range(len(files)) if i not in errors]]


def decode(paths: Sequence[Path], shape: tuple[int, int, int]) -> tuple[NDArray[np.uint8], dict[int, ValueError]]:
    """Read image files, each by itself, as `shape`: (channels, height, width), with 1 channel (grey) or 3 (RGB).

    An image is turned upright and scaled (bicubic) until it just covers height and width, and the centre is cut out.
    Transparent pixels keep their colour. Grey images of more than 8 bits, whose values often fill a small part of the
    range, are refused. Returned are uint8 (N, C, H, W), and by position the errors, whose rows have no meaning.
    """
    if shape[0] not in COLOURS:
        raise ValueError(f"image files have 1 channel (grey) or 3 (RGB), got {shape[0]}.")
    array = np.empty((len(paths), *shape), dtype=np.uint8)
    errors: dict[int, ValueError] = {}

    def read(position: int) -> None:
        try:
            array[position] = _decode(paths[position], shape)
        except ValueError as error:
            errors[position] = error

    with warnings.catch_warnings(), ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        # A picture so large that Pillow warns of a decompression bomb is an error that names the file.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        list(pool.map(read, range(len(paths))))
    return array, errors


def _decode(path: Path, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as opened:
            image: Image.Image = ImageOps.exif_transpose(opened)
            image.load()
    except Exception as error:  # Pillow's decoders raise what they like; the user needs the file's name
        raise ValueError(f"{path} cannot be read as an image ({type(error).__name__}: {error}).") from error
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"{path} has more than 8 bits per channel (mode {image.mode}). Convert it to 8 bits first.")
    if image.mode in ("P", "PA", "LA"):
        image = image.convert("RGBA")
    channels, height, width = shape
    image = image.convert("RGB").convert(COLOURS[channels])  # grey to RGB and back changes no value
    scale = max(width / image.width, height / image.height)
    if scale != 1:
        size = max(width, round(image.width * scale)), max(height, round(image.height * scale))
        image = image.resize(size, Image.Resampling.BICUBIC)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    pixels = np.asarray(image.crop((left, top, left + width, top + height)), dtype=np.uint8)
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)


def _check_readable(errors: list[ValueError]) -> None:
    """Name the first files that cannot be read, and count the others: one at a time would take days."""
    if errors:
        more = [f"and {len(errors) - 10} more."] if len(errors) > 10 else []
        raise ValueError("\n".join([*map(str, errors[:10]), *more]))


def _list_split(folder: Path) -> Pictures:
    items = _visible(folder)
    for path in items:
        if not path.is_dir() and not _is_ignored(path):
            raise ValueError(f"{path} lies outside any class folder. Move it into one, or away.")
    classes = [path for path in items if path.is_dir()]
    if len(classes) < 2:
        names = ", ".join(path.name for path in classes) or "none"
        raise ValueError(f"{folder} needs at least two class folders with images in them, got {names}.")
    return Pictures(tuple(item.name for item in classes), tuple(tuple(_list_images(item)) for item in classes))


def _list_images(folder: Path, unreadable: Unreadable | None = None) -> list[Path]:
    """List the images of a class, those of sub-folders too; anything unknown is an error, or goes to `unreadable`."""
    images: list[Path] = []
    for path in _visible(folder):
        if path.is_dir() and not path.is_symlink():
            images += _list_images(path, unreadable)
        elif path.suffix.lower() in IMAGE_SUFFIXES and not path.is_dir():
            images.append(path)
        elif path.is_dir() or not _is_ignored(path):
            kind = "a link to a folder" if path.is_dir() else "neither an image nor a text file"
            error = ValueError(f"{path} is {kind}. Move it away, or hide it with a dot before its name.")
            if unreadable is None:
                raise error
            unreadable[path] = error
    if not images and unreadable is None:
        raise ValueError(f"{folder} holds no image. Add images or remove the folder.")
    return images


def _visible(folder: Path) -> list[Path]:
    return sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda p: p.name)


def _is_ignored(path: Path) -> bool:
    return path.suffix.lower() in IGNORED_SUFFIXES or path.name.lower() in IGNORED_NAMES
