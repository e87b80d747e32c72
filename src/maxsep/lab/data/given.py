"""Data as a user names them, a known dataset or a folder of pictures: what they are called, how they are tested."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from maxsep.lab.data.folder import FOLDER, files_mark, own_test, parse_address, train_counts
from maxsep.lab.data.imagenet import NAMES as IMAGENET_NAMES
from maxsep.lab.data.imagenet import imagenet_files, parse_imagenet
from maxsep.lab.data.locations import ROOT_VARIABLE, find_folder

NAMES = ("digits", "cifar10", "cifar100", "svhn", *IMAGENET_NAMES)
"""Datasets that are known by name."""
_T = TypeVar("_T")


def is_known(dataset: str) -> bool:
    """Whether a dataset is known by name; that of an open-set split is none of these.

    >>> is_known("cifar10"), is_known("imagenet?size=64"), is_known("folder:photos")
    (True, True, False)
    """
    return dataset in NAMES or parse_imagenet(dataset) is not None


def name_data(given: str, root: str | Path | None = None, size: int | None = None) -> str:
    """Give the name of a dataset under which `load` finds what a user asked for.

    Args:
        given: A known name, or the path of a folder of class folders, with or without `folder:` before it.
        root: Where a relative path is looked for if it is not in the working directory.
        size: Side of the square images that pictures are cut to; 32 by default, and 224 for ImageNet.

    >>> name_data("digits"), name_data("imagenet", size=64)
    ('digits', 'imagenet?size=64')
    """
    if given in IMAGENET_NAMES and size is not None:
        given, size = f"{given}?size={size}", None
    if given.partition("?")[0] in IMAGENET_NAMES and not is_known(given):
        raise ValueError(
            f"the images of ImageNet can have sizes from 32 to 512, such as imagenet?size=64, got {given!r}."
        )
    if is_known(given):
        if size is not None:
            raise ValueError(f"the images of {given} have a size of their own, got --size {size}. Leave it out.")
        return given
    address = given.removeprefix(FOLDER)
    if size is not None:
        if "?size=" in address:
            raise ValueError(f"the size was given twice, in {given!r} and as --size {size}. Leave one of them out.")
        address = f"{address}?size={size}"
    path, _ = parse_address(address)
    folder = _folder(address, root)
    if not folder.is_dir():
        raise ValueError(
            f"{path!r} is neither a known dataset ({', '.join(NAMES)}) nor a folder. Give a folder with one "
            "sub-folder per class."
        )
    train_counts(folder)  # what has no classes is refused before anything is planned for it
    return f"{FOLDER}{folder}{address.removeprefix(path)}"


def is_folder(given: str, root: str | Path | None = None) -> bool:
    """Whether a name that says no dataset already is the path of a folder, here or in the data folder.

    >>> is_folder("digits"), is_folder("no/such/folder")
    (False, False)
    """
    said = not given or is_known(given) or given.startswith((FOLDER, "osr_"))
    return not said and _folder(given, root).is_dir()


def describe_test(dataset: str) -> str:
    """Say where the test images of a dataset come from, to be put behind their number.

    >>> describe_test("digits")
    'a third of every class, set aside by a fixed seed'
    """
    if dataset == "digits":
        return "a third of every class, set aside by a fixed seed"
    if not dataset.startswith(FOLDER):
        return "the dataset's own"
    own = own_test(_folder(dataset.removeprefix(FOLDER)))
    return "a fifth of every class, set aside by a fixed seed" if own is None else f"those of {own}"


def is_set_aside(dataset: str, root: str | Path | None = None) -> bool:
    """Whether the test images are a part of a folder's own, which is drawn anew where pictures come or go.

    >>> is_set_aside("digits")
    False
    """
    return dataset.startswith(FOLDER) and _of_folder(dataset, own_test, root) is None


def given_counts(dataset: str) -> list[int] | None:
    """Count the training images of every class of a folder by its files; None for what is no folder of pictures.

    A folder that is missing or cannot be used is an error when it is read, not here, where it only has no counts.
    """
    return _of_folder(dataset, train_counts)


def given_files(dataset: str, root: str | Path | None = None) -> str | None:
    """Digest the names and sizes of a folder's pictures, as `Data.files` of what `load` reads; else as `given_counts`.

    >>> given_files("digits") is None
    True
    """
    if parse_imagenet(dataset) is not None:
        base = root if root is not None else os.environ.get(ROOT_VARIABLE)
        return imagenet_files(dataset, Path(base).expanduser()) if base else None
    return _of_folder(dataset, files_mark, root)


def files_differ(*marks: str | None) -> bool:
    """Say whether marks such as `given_files` are of different files; what is not known says nothing.

    >>> files_differ("a", "a", None), files_differ("a", "b")
    (False, True)
    """
    return len({*marks} - {None}) > 1


def _of_folder(dataset: str, ask: Callable[[Path], _T], root: str | Path | None = None) -> _T | None:
    if not dataset.startswith(FOLDER):
        return None
    try:
        return ask(_folder(dataset.removeprefix(FOLDER), root))
    except (OSError, ValueError):
        return None


def _folder(address: str, root: str | Path | None = None) -> Path:
    path, _ = parse_address(address)
    try:
        return find_folder(path, root)
    except FileNotFoundError:
        return Path(path)
