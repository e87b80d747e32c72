"""ImageNet and its long-tailed subset ImageNet-LT, from the official pictures and the published lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from maxsep.lab.data.decode import IMAGE_SUFFIXES
from maxsep.lab.data.decoded import Listed, read_decoded
from maxsep.lab.data.imageset import Data

if TYPE_CHECKING:
    from maxsep.lab.data.download import Progress

SIZE = 224
IMAGENET, IMAGENET_LT = NAMES = ("imagenet", "imagenet_lt")
LISTS = {"train": "ImageNet_LT_train.txt", "test": "ImageNet_LT_test.txt"}
"""The lists of Liu et al. (2019), a path and a label a line. The subset follows from no formula: they are needed."""


def parse_imagenet(dataset: str) -> tuple[str, int] | None:
    """Split `imagenet`, `imagenet_lt` or either with `?size=N` into the name and the side of the images.

    >>> parse_imagenet("imagenet_lt?size=64"), parse_imagenet("imagenet"), parse_imagenet("cifar10")
    (('imagenet_lt', 64), ('imagenet', 224), None)
    """
    match = re.fullmatch(rf"({'|'.join(NAMES)})(?:\?size=(\d+))?", dataset)
    if match is None or not 32 <= int(match[2] or SIZE) <= 512:
        return None
    return match[1], int(match[2] or SIZE)


def load_imagenet(name: str, root: Path, size: int = SIZE, *, progress: Progress | None = None) -> Data:
    """Read ImageNet or ImageNet-LT as RGB images of size x size, decoded at the first call (see `read_decoded`).

    The shorter side is scaled to `size` and the centre cut out, for training too: random crops are taken from that
    square on the device. ImageNet is tested on its validation set, and ImageNet-LT on the same pictures, which its
    list of test images names.

    Args:
        name: `imagenet`, from `imagenet/train/CLASS/*` and `imagenet/val/CLASS/*`; or `imagenet_lt`, from the lists
            `imagenet-lt/ImageNet_LT_{train,test}.txt`, whose paths are below `imagenet/`. Decoded images are kept in
            `decoded/` beside either.
        root: Folder of the datasets.
        size: Height and width of the images.
        progress: Called with (bytes so far, bytes in all) while decoding.
    """
    pictures = root / "imagenet"
    if name == IMAGENET:
        kept = pictures / "decoded"
        train = read_decoded(kept / "train", size, lambda: _list_folders(pictures / "train"), progress)
        test = read_decoded(kept / "val", size, lambda: _list_folders(pictures / "val"), progress)
    else:
        lists = root / "imagenet-lt"
        kept = lists / "decoded"
        train = read_decoded(kept / "train", size, lambda: _read_list(lists, "train", pictures), progress)
        test = read_decoded(kept / "test", size, lambda: _read_list(lists, "test", pictures), progress)
    return Data(name if size == SIZE else f"{name}?size={size}", train, test)


def _list_folders(folder: Path) -> Listed:
    """List the pictures of a split, a folder for each class."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"imagenet is not in {folder.parent.parent}: expected {folder.parent.name}/train/CLASS/* and "
            f"{folder.parent.name}/val/CLASS/* there, and {folder} is no folder. Its pictures are to be had from "
            "image-net.org only, after registration."
        )
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise ValueError(
            f"{folder} has no class folders. Sort its pictures into one folder for each class, named as those of "
            "train/."
        )
    return Listed(tuple(path.name for path in classes), tuple(map(_pictures, classes)))


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
    entries = _entries(lists / LISTS[split])
    training = entries if split == "train" else _entries(lists / LISTS["train"])
    names = {label: Path(path).parent.name for path, label in training}
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
