"""Folders of class folders, ImageNet and its lists: which pictures they have, and what is odd in them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from maxsep.files import parse_file
from maxsep.lab.data.decoding import HEIC_SUFFIXES, IMAGE_SUFFIXES, decode, decode_once, open_decoded
from maxsep.lab.data.download import Progress
from maxsep.lab.data.images import Splits
from maxsep.lab.data.listing import FolderError, Listing, Pictures, clean_listing

Unreadable = dict[Path, ValueError]  # files that were left out, each with an error that names it
IGNORED_SUFFIXES = frozenset({".csv", ".htm", ".html", ".json", ".md", ".rst", ".tsv", ".txt", ".xml", ".yaml", ".yml"})
IGNORED_NAMES = frozenset({"desktop.ini", "license", "readme", "thumbs.db"})
SPLITS = frozenset({"dev", "test", "testing", "train", "training", "val", "valid", "validation"})


def list_folder(folder: Path) -> Listing:
    """List the pictures of a folder of class folders, without opening one.

    If it has `train/` and one of `test/` and `val/`, these are the splits and hold the class folders. Classes and
    images are sorted by name; sub-folders of a class belong to it. A class without images, or a file of an unknown
    kind, is a problem. Passed over are only hidden files, text files, README, LICENSE, Thumbs.db and desktop.ini, and
    with a warning HEIC files where pillow-heif is missing.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder. Expected a folder with one sub-folder per class.")
    test_folder, odd = own_test(folder), _Odd()
    train = _list_split(folder if test_folder is None else folder / "train", odd)
    test = None if test_folder is None else _list_split(test_folder, odd)
    if odd.heic:
        warnings.warn(f"{odd.heic} HEIC files in {folder} are skipped: pillow-heif is not installed.", stacklevel=2)
    return clean_listing(folder, train, test, [*odd.problems.values()])


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
        odd = _Odd()
        train, test = _list_split(pictures / "train", odd), _list_split(pictures / "val", odd)
        listing = clean_listing(pictures, train, test, [*odd.problems.values()])
        if listing.problems:
            raise FolderError(pictures, listing.problems)
        return listing
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
    lines = parse_file(path, lambda path: path.read_text(encoding="utf-8")).splitlines()
    matches = [re.fullmatch(r"(\S.*)\s+(\d+)", line.strip()) for line in lines]
    if not matches or None in matches:
        raise ValueError(f"{path} must have a path and a label in every line.")
    return [(pictures / match[1], int(match[2])) for match in matches if match]


def read_imagenet(name: str, source: str, folder: Path, size: int, progress: Progress | None = None) -> Splits:
    """Read ImageNet or ImageNet-LT as RGB images of size x size, decoded into a folder at the first call.

    From then on that folder is the dataset: the pictures are not opened again, and need not be there. To decode anew,
    delete it. Its SHA-256 are checked whenever it is opened: minutes for 200 GB. The images are mapped into memory:
    writing to them ends the process.
    """
    if not folder.is_dir():
        listing = list_imagenet(source, folder.parent.parent)
        decode_once(folder, lambda new: check_readable(listing.write(new, size, progress)))
    splits, facts = open_decoded(folder)
    return Splits(name, splits["train"], splits["test"], fingerprint=facts["fingerprint"])


def read_images(
    folder: Path, size: int, *, most: int | None = None, unreadable: Unreadable | None = None
) -> torch.Tensor:
    """Read every image below a folder, in the sorted order of their paths, as uint8 (N, 3, size, size).

    `most` limits their number, by a fixed seed. `unreadable` gets the files that cannot be read, which are left out;
    without it they are errors.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder. Expected a folder of images.")
    odd = _Odd()
    files = _list_images(folder, odd)
    if unreadable is None and odd.problems:
        raise FolderError(folder, [*odd.problems.values()])
    if most is not None and len(files) > most:
        files = [files[i] for i in sorted(np.random.RandomState(0).permutation(len(files))[:most])]
    array, errors = decode(files, (3, size, size))
    if unreadable is None or len(errors) == len(files):
        check_readable([errors[i] for i in sorted(errors)])
    if not files:
        raise ValueError(f"{folder} holds no image.")
    if unreadable is not None:
        unreadable |= {path: ValueError(text) for path, text in odd.problems.items()}
        unreadable |= {files[i]: errors[i] for i in sorted(errors)}
    return torch.from_numpy(array)[[i for i in range(len(files)) if i not in errors]]


def check_readable(errors: Sequence[ValueError]) -> None:
    """Name the first files that cannot be read, and count the others: one at a time would take days."""
    if errors:
        more = [f"and {len(errors) - 10} more."] if len(errors) > 10 else []
        raise ValueError("\n".join([*map(str, errors[:10]), *more]))


@dataclass
class _Odd:
    """What was found between the pictures of a folder."""

    problems: dict[Path, str] = field(default_factory=dict)
    heic: int = 0


def _list_split(folder: Path, odd: _Odd) -> Pictures:
    items = _visible(folder)
    for path in items:
        if not path.is_dir() and not _is_ignored(path):
            odd.problems[path] = f"{path} lies outside any class folder"
    classes = [path for path in items if path.is_dir()]
    by_class = tuple(tuple(_list_images(item, odd)) for item in classes)
    odd.problems |= {item: f"{item} holds no image" for item, some in zip(classes, by_class, strict=True) if not some}
    return Pictures(tuple(item.name for item in classes), by_class)


def _list_images(folder: Path, odd: _Odd) -> list[Path]:
    """List the images of a class, those of sub-folders too, and note what is unknown."""
    images: list[Path] = []
    for path in _visible(folder):
        suffix = path.suffix.lower()
        if path.is_dir() and not path.is_symlink():
            images += _list_images(path, odd)
        elif suffix in IMAGE_SUFFIXES and path.is_file():
            images.append(path)
        elif suffix in HEIC_SUFFIXES:
            odd.heic += 1
        elif path.is_dir() or not _is_ignored(path):
            kind = "a link to a folder" if path.is_dir() else "neither an image nor a text file"
            odd.problems[path] = f"{path} is {kind}" if path.exists() else f"{path} is a link to nothing"
    return images


def _visible(folder: Path) -> list[Path]:
    return sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda p: p.name)


def _is_ignored(path: Path) -> bool:
    return path.suffix.lower() in IGNORED_SUFFIXES or path.name.lower() in IGNORED_NAMES
