"""Images from outside a dataset's classes, by name, and what they are."""

from __future__ import annotations

import contextlib
import difflib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maxsep.files import parse_file
from maxsep.lab.data.datasets import FOLDER, Dataset, data_root, find_folder
from maxsep.lab.data.download import SOURCES, ensure
from maxsep.lab.data.folder import Unreadable, read_images
from maxsep.lab.data.images import ImageSet
from maxsep.lab.data.official import read_parts
from maxsep.lab.data.open_set import UNKNOWN_OF_CIFAR100, OpenSetSplit, keep_classes

UNKNOWN = ("unknown", *UNKNOWN_OF_CIFAR100)  # of open-set splits
OUTLIERS = ("svhn", "places", "cifar10", "cifar100", *UNKNOWN)
PLACES = 10_000  # images of Places that are taken, by a fixed seed, if there are more
_LABELS = {"svhn": "SVHN test", "places": "Places365", "cifar10": "CIFAR-10 test", "cifar100": "CIFAR-100 test"}


def name_outliers(typed: str, root: str | Path | None = None) -> str:
    """Return the name of what a user typed: the name of a set, or any folder of images as folder:PATH."""
    if typed in OUTLIERS or typed.startswith(FOLDER):
        return typed
    with contextlib.suppress(ValueError):
        if find_folder(Dataset.parse(f"{FOLDER}{typed}").path, root).is_dir():
            return f"{FOLDER}{typed}"
    raise ValueError(f"{typed!r} is no folder of images and no set of outliers.{_nearest(typed)}")


def check_outliers(name: str, like: str = "") -> None:
    """Raise if there is no set of outliers of this name for the dataset `like`; reads nothing."""
    if name.startswith(FOLDER):
        Dataset.parse(name)
    elif name not in OUTLIERS:
        raise ValueError(f"unknown outliers {name!r}.{_nearest(name)}")
    elif name == like:
        raise ValueError(f"{name} cannot be outliers of itself. Choose another set, or {FOLDER}PATH.")
    elif name in UNKNOWN:
        split = OpenSetSplit.parse(like)
        if split is None or name not in split.unknown:
            known = ", ".join(split.unknown) if split else "none"
            raise ValueError(f"{like!r} has no unknown classes of the name {name!r}. It has: {known}.")


def _nearest(name: str) -> str:
    matches = difflib.get_close_matches(name.lower(), OUTLIERS, n=1)
    return (f" Did you mean {matches[0]}?" if matches else "") + f" Known: {', '.join(OUTLIERS)}, {FOLDER}PATH."


def load_outliers(
    name: str, root: str | Path | None = None, *, like: str = "", shape: tuple[int, int, int] = (3, 32, 32),
    unreadable: Unreadable | None = None,
) -> ImageSet:  # fmt: skip
    """Load images from outside the dataset `like`, in the `shape` of its images; their labels mean nothing to it.

    They are the test images of `svhn`, `cifar10` or `cifar100`; `places` (10,000 images of `places365/`, any tree, or
    of `places365.npz`); `unknown`, `cifar+10`, `cifar+50` (test images of the classes that the open-set split `like`
    does not know); or `folder:PATH`, any tree of images, where `unreadable` gets the files that cannot be read.
    """
    check_outliers(name, like)
    channels, height, width = shape
    if name.startswith(FOLDER):
        images = read_images(find_folder(Dataset.parse(name).path, root), height, unreadable=unreadable)
    elif name == "places":
        images = _read_places(data_root(name, root))
    elif name in UNKNOWN and (split := OpenSetSplit.parse(like)):
        images = keep_classes(_read_test(split.unknown_source, data_root(name, root)), split.unknown[name]).images
    else:
        images = _read_test(name, data_root(name, root)).images
    if images.shape[2:] != (height, width):
        size = tuple(images.shape[2:])
        raise ValueError(f"the images of {name} are {size}, those of {like or 'the dataset'} {(height, width)}.")
    if images.shape[1] > channels:  # grey as the eye sees colours
        images = (images * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True).round().byte()
    images = images.expand(-1, channels, -1, -1).contiguous()
    return ImageSet(images, torch.zeros(len(images), dtype=torch.int64), (name,))


def origin(name: str, root: str | Path | None = None, *, like: str = "") -> str:
    """Return what a set of outliers is: the first line of `ORIGIN.txt` in its folder, or else its usual name."""
    split = OpenSetSplit.parse(like)
    if name in UNKNOWN and split:
        count = "unknown" if name == "unknown" else name.removeprefix("cifar+")
        return f"{origin(split.unknown_source, root)}, {count} classes"
    if name not in _LABELS:
        return name.removeprefix(FOLDER)
    folder = "places365" if name == "places" else SOURCES[name].folder
    path = data_root(name, root) / folder / "ORIGIN.txt"
    lines = path.read_text(encoding="utf-8").strip().splitlines() if path.is_file() else []
    return lines[0].strip() if lines else _LABELS[name]


def _read_test(source: str, root: Path) -> ImageSet:
    if source != "svhn" or not (root / "svhn" / "test_32x32.mat").is_file():  # the training digits are not needed
        ensure(source, root)
    return read_parts(source, root, "test")[0]


def _read_npz(path: Path) -> Any:
    with np.load(path, allow_pickle=False) as content:
        return content["images"] if "images" in content else np.empty(0)


def _read_places(root: Path) -> Tensor:
    if (root / "places365").is_dir():
        return read_images(root / "places365", 32, most=PLACES)
    path = root / "places365.npz"
    if not path.is_file():
        raise FileNotFoundError(f"places is not in {root}: expected places365/ (any tree of images) or {path.name}.")
    pixels = parse_file(path, _read_npz)
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (32, 32, 3):
        raise ValueError(f"{path} must hold `images`, uint8 (N, 32, 32, 3), got {pixels.dtype} {pixels.shape}.")
    if len(pixels) > PLACES:
        pixels = pixels[np.sort(np.random.RandomState(0).permutation(len(pixels))[:PLACES])]
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
