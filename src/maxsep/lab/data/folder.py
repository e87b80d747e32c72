"""A user's own images: a folder with one sub-folder per class."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import torch

from maxsep.lab.data.decode import IMAGE_SUFFIXES, decode, warn_of_reduced
from maxsep.lab.data.imageset import Data, ImageSet, labels_of
from maxsep.lab.data.split import hold_out

Unreadable = dict[Path, ValueError]
"""Files that were left out, and why; the reason is a sentence that names the file."""
FOLDER = "folder:"
"""What a folder's path has before it where names of datasets are expected."""
SIZE = 32
TEST_FRACTION = 0.2
SPLITS = frozenset({"dev", "test", "testing", "train", "training", "val", "valid", "validation"})
"""Names of splits, of which train, test and val are understood; a folder with no others is not one of classes."""
IGNORED_SUFFIXES = frozenset({".csv", ".htm", ".html", ".json", ".md", ".rst", ".tsv", ".txt", ".xml", ".yaml", ".yml"})
IGNORED_NAMES = frozenset({"desktop.ini", "license", "readme", "thumbs.db"})


def parse_address(address: str) -> tuple[str, int]:
    """Split `PATH` or `PATH?size=N` into the path and the side of the square images.

    >>> parse_address("my/pictures?size=64")
    ('my/pictures', 64)
    >>> parse_address("my/pictures")
    ('my/pictures', 32)
    """
    match = re.fullmatch(r"(.+?)(?:\?size=(\d+))?", address)
    if match is None or (match[2] is not None and not 4 <= int(match[2]) <= 1024):
        raise ValueError(
            f"'folder:{address}' is no folder of images. Write folder:PATH, or folder:PATH?size=64 for another "
            "size than 32 (4 to 1024)."
        )
    return match[1], int(match[2] or SIZE)


def load_folder(folder: Path, size: int = SIZE, *, name: str | None = None) -> Data:
    """Read a folder of class folders into memory as RGB images of size x size.

    If it has `train/` and one of `test/` and `val/`, these are the splits and hold the class folders; otherwise a
    fifth of every class is set aside for testing, by a fixed seed. Classes are the sub-folder names in sorted order,
    images come in the sorted order of their paths; sub-folders of a class belong to it.

    The shorter side is scaled to `size` (bicubic) and the centre cut out. Nothing is dropped silently: an image that
    cannot be read, a class without images, or a file of an unknown kind is an error. Passed over are only hidden
    files, text files (.txt, .csv, .json, .md, .xml, ...), README, LICENSE, Thumbs.db and desktop.ini.

    Args:
        folder: The folder.
        size: Height and width of the images.
        name: Name of the result; by default `folder:` and the path.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder. Expected a folder with one sub-folder per class.")
    name = f"folder:{folder}" if name is None else name
    own, files = own_test(folder), files_mark(folder)
    reduced: list[Path] = []
    splits = [_read_split(part, size, reduced) for part in ([folder] if own is None else [folder / "train", own])]
    warn_of_reduced(reduced)
    if own is None:
        return _split(name, splits[0], folder, files)
    train, test = splits
    if train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))[0]
        raise ValueError(
            f"class {odd!r} is only in one of {folder / 'train'} and {own}. Both must have the same class folders."
        )
    return Data(name, train, test, files=files)


def own_test(folder: Path) -> Path | None:
    """Find the test split that a folder brings along, `test/` or `val/` beside `train/`; None if it has none.

    Then its sub-folders are the classes, and `load_folder` sets a fifth of each aside for testing.
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


def train_counts(folder: Path) -> list[int]:
    """Count the training images of every class as `load_folder` would cut them, without reading a pixel."""
    own = own_test(folder)
    classes = _class_folders(folder if own is None else folder / "train")
    sizes = [len(_image_files(item)) for item in classes]
    if own is not None:
        return sizes
    kept, _ = hold_out(labels_of(sizes), TEST_FRACTION, seed=0)
    return torch.bincount(labels_of(sizes)[kept], minlength=len(sizes)).tolist()


def files_mark(folder: Path) -> str:
    """Digest the names and sizes of the images that `load_folder` reads: twelve digits, without reading a pixel.

    It stays where the folder is moved or renamed, and where text files come and go. A picture that is replaced by one
    of the same name and of as many bytes is not noticed.
    """
    own = own_test(folder)
    parts = [folder] if own is None else [folder / "train", own]
    digest = hashlib.sha256()
    for path in (path for part in parts for item in _class_folders(part) for path in _image_files(item)):
        name = path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape")
        digest.update(name + b"\0%d\0" % path.stat().st_size)
    return digest.hexdigest()[:12]


def read_images(
    folder: Path, size: int = SIZE, *, most: int | None = None, unreadable: Unreadable | None = None
) -> torch.Tensor:
    """Read every image below a folder, whatever its sub-folders mean, as uint8 (N, 3, size, size).

    Images come in the sorted order of their paths and are cut as in `load_folder`.

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


def _split(name: str, images: ImageSet, folder: Path, files: str) -> Data:
    for label, count in enumerate(images.class_counts):
        if count < 2:
            raise ValueError(
                f"{folder / images.classes[label]} has only {count} image; a class needs 2, one to train and one to "
                "test. Add images or remove the class."
            )
    kept, held = hold_out(images.labels, TEST_FRACTION, seed=0)
    return Data(name, images.subset(kept), images.subset(held), files=files)


def _read_split(folder: Path, size: int, reduced: list[Path]) -> ImageSet:
    classes = _class_folders(folder)
    files = [(path, label) for label, item in enumerate(classes) for path in _image_files(item)]
    images = _read_files([path for path, _ in files], size, reduced)
    labels = torch.tensor([label for _, label in files], dtype=torch.int64)
    return ImageSet(images, labels, tuple(item.name for item in classes))


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
