"""ImageNet and its long-tailed subset ImageNet-LT, from the official pictures and the published lists."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from maxsep.lab.data.decode import IMAGE_SUFFIXES
from maxsep.lab.data.decoded import Listed, mark_of, read_decoded
from maxsep.lab.data.images import Splits

if TYPE_CHECKING:
    from maxsep.lab.data.download import Progress

IMAGENET, IMAGENET_LT = NAMES = ("imagenet", "imagenet_lt")
LISTS = {"train": "ImageNet_LT_train.txt", "test": "ImageNet_LT_test.txt"}
"""The lists of Liu et al. (2019), a path and a label a line. The subset follows from no formula: they are needed."""


def load_imagenet(dataset: str, name: str, root: Path, size: int, *, progress: Progress | None = None) -> Splits:
    """Read ImageNet or ImageNet-LT as RGB images of size x size, decoded at the first call (see `read_decoded`).

    The shorter side is scaled to `size` and the centre cut out, for training too: random crops are taken from that
    square on the device. ImageNet is tested on its validation set, and ImageNet-LT on the same pictures, which its
    list of test images names.

    Args:
        dataset: Name of the result.
        name: `imagenet`, from `imagenet/train/CLASS/*` and `imagenet/val/CLASS/*`; or `imagenet_lt`, from the lists
            `imagenet-lt/ImageNet_LT_{train,test}.txt`, whose paths are below `imagenet/`. Decoded images are kept in
            `decoded/` beside both.
        root: Folder of the datasets.
        size: Height and width of the images.
        progress: Called with (bytes so far, bytes in all) while decoding.
    """
    splits = [
        read_decoded(_place(name, root, split), size, listing, census, progress)
        for split, (listing, census) in _sources(name, root).items()
    ]
    (train, _), (test, _) = splits
    files = "-".join(mark for _, mark in splits)
    return Splits(dataset, train, test, fingerprint=files)


def imagenet_files(name: str, size: int, root: Path) -> str | None:
    """Return the fingerprint of decoded images without opening them; None before they are decoded."""
    marks = [mark_of(_place(name, root, split), size) for split in ("train", "test")]
    return None if None in marks else "-".join(map(str, marks))


def _place(name: str, root: Path, split: str) -> Path:
    return root / "decoded" / f"{name}-{split}"


def _sources(name: str, root: Path) -> dict[str, tuple[Callable[[], Listed], Callable[[], dict[str, int] | None]]]:
    """For each split, what lists its pictures, and what counts those that are there."""
    pictures, lists = root / "imagenet", root / "imagenet-lt"
    if name == IMAGENET_LT:
        return {
            split: (partial(_read_list, lists, split, pictures), partial(_count_list, lists, split)) for split in LISTS
        }
    folders = {"train": pictures / "train", "test": pictures / "val"}
    return {split: (partial(_list_folders, path), partial(_count_folders, path)) for split, path in folders.items()}


def _count_folders(folder: Path) -> dict[str, int] | None:
    """Count the pictures of every class without a look at any."""
    if not folder.is_dir():
        return None
    found = {}
    for item in _classes(folder):
        with os.scandir(item) as entries:
            found[item.name] = sum(Path(entry.name).suffix.lower() in IMAGE_SUFFIXES for entry in entries)
    return {name: count for name, count in found.items() if count}


def _count_list(lists: Path, split: str) -> dict[str, int] | None:
    if not all((lists / name).is_file() for name in LISTS.values()):
        return None
    names = _class_names(lists)
    return dict(Counter(names.get(label, str(label)) for _, label in _entries(lists / LISTS[split])))


def _list_folders(folder: Path) -> Listed:
    """List the pictures of a split, a folder for each class."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"imagenet is not in {folder.parent.parent}: expected {folder.parent.name}/train/CLASS/* and "
            f"{folder.parent.name}/val/CLASS/* there, and {folder} is no folder. Its pictures are to be had from "
            "image-net.org only, after registration."
        )
    classes = _classes(folder)
    if not classes:
        raise ValueError(
            f"{folder} has no class folders. Sort its pictures into one folder for each class, named as those of "
            "train/."
        )
    return Listed(tuple(path.name for path in classes), tuple(map(_pictures, classes)))


def _classes(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pictures(folder: Path) -> tuple[Path, ...]:
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise ValueError(f"{folder} holds no image. Unpack its archive again, or remove the folder.")
    return tuple(found)


def _read_list(lists: Path, split: str, pictures: Path) -> Listed:
    """List the pictures that a list names; classes are named by the folders of the training pictures."""
    if not pictures.is_dir():
        raise FileNotFoundError(
            f"imagenet_lt needs the pictures of ImageNet, and {pictures} is no folder. They are to be had from "
            "image-net.org only, after registration."
        )
    entries, names = _entries(lists / LISTS[split]), _class_names(lists)
    if sorted(names) != list(range(len(names))):
        missing = min(set(range(max(names))) - set(names))
        raise ValueError(f"{lists / LISTS['train']} has no picture of class {missing}. Take the published list.")
    by_class: list[list[Path]] = [[] for _ in names]
    for path, label in entries:
        if label not in names:
            raise ValueError(
                f"{lists / LISTS[split]} has label {label}, and the training list has {len(names)} classes. "
                "Take the published lists."
            )
        by_class[label].append(pictures / path)
    return Listed(tuple(names[label] for label in range(len(names))), tuple(map(tuple, by_class)))


def _class_names(lists: Path) -> dict[int, str]:
    return {label: Path(path).parent.name for path, label in _entries(lists / LISTS["train"])}


def _entries(path: Path) -> list[tuple[str, int]]:
    if not path.is_file():
        raise FileNotFoundError(
            f"imagenet_lt is not in {path.parent.parent}: expected the list {path}. Put the published lists "
            f"{' and '.join(LISTS.values())} there, and the pictures of ImageNet into imagenet/ beside it."
        )
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = re.fullmatch(r"(\S.*)\s+(\d+)", line.strip())
        if match is None:
            raise ValueError(
                f"line {number} of {path} is {line!r}; expected a path and a label, as in the published list."
            )
        entries.append((match[1], int(match[2])))
    if not entries:
        raise ValueError(f"{path} is empty. Take the published list.")
    return entries
