"""A user's own images: a folder with one sub-folder per class."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import torch

from maxsep.lab.data.decode import IMAGE_SUFFIXES, decode, warn_of_reduced
from maxsep.lab.data.images import ImageSet, Splits, held_counts, hold_out, labels_of

Unreadable = dict[Path, ValueError]
"""Files that were left out, and why; the reason is a sentence that names the file."""
SIZE = 32
TEST_FRACTION = 0.2
SPLITS = frozenset({"dev", "test", "testing", "train", "training", "val", "valid", "validation"})
"""Names of splits, of which train, test and val are understood; a folder with no others is not one of classes."""
IGNORED_SUFFIXES = frozenset({".csv", ".htm", ".html", ".json", ".md", ".rst", ".tsv", ".txt", ".xml", ".yaml", ".yml"})
IGNORED_NAMES = frozenset({"desktop.ini", "license", "readme", "thumbs.db"})
_LISTINGS: ContextVar[dict[Path, Listing] | None] = ContextVar("listings", default=None)


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
        """Files of every class."""
        return [len(paths) for paths in self.by_class]


@dataclass(frozen=True, eq=False)
class Listing:
    """The picture files of a folder, and their fingerprint."""

    folder: Path
    train: Pictures
    test: Pictures | None
    """None: a fifth of every class is held out of `train`."""

    @property
    def train_counts(self) -> list[int]:
        """Training images of every class."""
        held = [0] * len(self.train.counts) if self.test else held_counts(self.train.counts, TEST_FRACTION)
        return [count - out for count, out in zip(self.train.counts, held, strict=True)]

    @property
    def fingerprint(self) -> str:
        """Twelve digits of a digest of the names and sizes of all files.

        It stays where the folder is moved or renamed, and where text files come and go. A picture that is replaced by
        one of the same name and of as many bytes is not noticed.
        """
        return self._stat[0]

    @property
    def newest(self) -> int:
        """The latest time at which a file was changed, in nanoseconds."""
        return self._stat[1]

    @functools.cached_property
    def _stat(self) -> tuple[str, int]:
        digest, newest = hashlib.sha256(), 0
        for path in (path for split in (self.train, self.test) if split for path in split.files):
            name, stat = path.relative_to(self.folder).as_posix().encode("utf-8", "surrogateescape"), path.stat()
            digest.update(name + b"\0%d\0" % stat.st_size)
            newest = max(newest, stat.st_mtime_ns)
        return digest.hexdigest()[:12], newest


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

    If it has `train/` and one of `test/` and `val/`, these are the splits and hold the class folders. Classes are the
    sub-folder names in sorted order, images come in the sorted order of their paths; sub-folders of a class belong to
    it. A class without images, or a file of an unknown kind, is an error. Passed over are only hidden files, text files
    (.txt, .csv, .json, .md, .xml, ...), README, LICENSE, Thumbs.db and desktop.ini.
    """
    kept = _LISTINGS.get()
    key = folder.absolute()
    if kept is not None and key in kept:
        return kept[key]
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder. Expected a folder with one sub-folder per class.")
    own = own_test(folder)
    train = _list_split(folder if own is None else folder / "train")
    test = None if own is None else _list_split(own)
    if test is not None and train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))[0]
        raise ValueError(
            f"class {odd!r} is only in one of {folder / 'train'} and {own}. Both must have the same class folders."
        )
    listing = Listing(folder, train, test)
    if kept is not None:
        kept[key] = listing
    return listing


def read_folder(listing: Listing, size: int = SIZE, *, name: str | None = None) -> Splits:
    """Read listed pictures into memory as RGB images of size x size.

    Without a test split a fifth of every class is set aside for testing, by a fixed seed. The shorter side is scaled to
    `size` (bicubic) and the centre cut out. An image that cannot be read is an error.
    """
    name = f"folder:{listing.folder}" if name is None else name
    for label, count in enumerate(listing.train.counts):
        if listing.test is None and count < 2:
            raise ValueError(
                f"{listing.folder / listing.train.classes[label]} has only {count} image; a class needs 2, one to "
                "train and one to test. Add images or remove the class."
            )
    reduced: list[Path] = []
    train = _read_split(listing.train, size, reduced)
    test = None if listing.test is None else _read_split(listing.test, size, reduced)
    warn_of_reduced(reduced)
    if test is None:
        kept, held = hold_out(train.labels, TEST_FRACTION, seed=0)
        train, test = train.subset(kept), train.subset(held)
    return Splits(name, train, test, fingerprint=listing.fingerprint)


def own_test(folder: Path) -> Path | None:
    """Find the test split that a folder brings along, `test/` or `val/` beside `train/`; None if it has none.

    Then its sub-folders are the classes, and `read_folder` sets a fifth of each aside for testing.
    """
    parts = {path.name for path in _visible(folder) if path.is_dir()}
    tests = sorted(parts & {"test", "val"})
    if "train" not in parts or not tests:
        _check_not_half(folder, parts)
        return None
    if len(tests) > 1:
        raise ValueError(f"{folder} has train/, test/ and val/. Hide one of the last two (rename val to .val).")
    if others := sorted(parts - {"train", *tests}):
        raise ValueError(f"{folder} has train/ and {tests[0]}/, but also {others[0]}/. Move or hide it.")
    return folder / tests[0]


def _check_not_half(folder: Path, parts: set[str]) -> None:
    """Refuse a folder that has splits and nothing else, but not those that belong together."""
    if parts and parts <= SPLITS:
        there = " and ".join(f"{name}/" for name in sorted(parts))
        lacking = "test/ or val/" if "train" in parts else "train/"
        raise ValueError(
            f"{folder} has {there} but no {lacking}. Add (or rename) it: train/ and one of test/ and val/ hold the "
            f"same class folders. Or name {folder / min(parts)} alone, then a fifth of every class is set aside for "
            "testing."
        )


def read_images(
    folder: Path, size: int = SIZE, *, most: int | None = None, unreadable: Unreadable | None = None
) -> torch.Tensor:
    """Read every image below a folder, whatever its sub-folders mean, as uint8 (N, 3, size, size).

    Images come in the sorted order of their paths and are cut as in `read_folder`.

    Args:
        folder: The folder.
        size: Height and width of the images.
        most: If there are more images than this, a choice of so many by a fixed seed.
        unreadable: Gets the files that are no images or cannot be read, which are then left out. If it is not given,
            and also if no image is left, they are errors.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder. Expected a folder of images.")
    files = _few(_image_files(folder, unreadable), most)
    if unreadable is None:
        return _read_files(files, size)
    array, errors = decode(files, (3, size, size))
    unreadable |= {files[i]: errors[i] for i in sorted(errors)}
    if len(errors) == len(files):
        first = f" The first of {len(unreadable)}: {next(iter(unreadable.values()))}" if unreadable else ""
        raise ValueError(f"{folder} holds no image that can be read.{first}")
    return torch.from_numpy(array)[[i for i in range(len(files)) if i not in errors]]


def _few(files: list[Path], most: int | None) -> list[Path]:
    import numpy as np

    if most is None or len(files) <= most:
        return files
    chosen = np.random.RandomState(0).permutation(len(files))[:most]  # its stream never changes between versions
    return [files[i] for i in sorted(chosen)]


def _list_split(folder: Path) -> Pictures:
    classes = _class_folders(folder)
    return Pictures(tuple(item.name for item in classes), tuple(tuple(_image_files(item)) for item in classes))


def _read_split(split: Pictures, size: int, reduced: list[Path]) -> ImageSet:
    return ImageSet(_read_files(split.files, size, reduced), labels_of(split.counts), split.classes)


def _read_files(files: list[Path], size: int, reduced: list[Path] | None = None) -> torch.Tensor:
    array, errors = decode(files, (3, size, size), reduced)
    if errors:
        raise errors[min(errors)]
    return torch.from_numpy(array)


def _class_folders(folder: Path) -> list[Path]:
    items = _visible(folder)
    for path in items:
        if not path.is_dir() and not _ignored(path):
            raise ValueError(f"{path} lies outside any class folder. Move it into one, or away.")
    classes = [path for path in items if path.is_dir()]
    if len(classes) < 2:
        found = f"only {classes[0].name}/" if classes else "none"
        raise ValueError(f"{folder} needs at least two class folders with images in them, found {found}.")
    return classes


def _image_files(folder: Path, unreadable: Unreadable | None = None) -> list[Path]:
    """List the images of a class, those of sub-folders too; anything unknown is an error, or goes to `unreadable`."""
    found: list[Path] = []
    for path in _visible(folder):
        if path.is_dir() and not path.is_symlink():
            found += _image_files(path, unreadable)
        elif path.suffix.lower() in IMAGE_SUFFIXES and not path.is_dir():
            found.append(path)
        elif path.is_dir() or not _ignored(path):
            if unreadable is None:
                raise _unknown_kind(path)
            unreadable[path] = _unknown_kind(path)
    if not found and unreadable is None:
        raise ValueError(f"{folder} holds no image. Add images or remove the folder.")
    return found


def _unknown_kind(path: Path) -> ValueError:
    if path.is_dir():
        return ValueError(f"{path} is a link to a folder inside a class. Put the images there themselves.")
    return ValueError(
        f"{path} is neither an image nor a text file. Allowed images: {', '.join(sorted(IMAGE_SUFFIXES))}. "
        "Move it away, or hide it with a dot before its name."
    )


def _visible(folder: Path) -> list[Path]:
    return sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda p: p.name)


def _ignored(path: Path) -> bool:
    return path.suffix.lower() in IGNORED_SUFFIXES or path.name.lower() in IGNORED_NAMES
