"""CIFAR-10 and CIFAR-100 as their authors distribute them: folders of pickled python batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maxsep.lab.data.checksums import verify
from maxsep.lab.data.images import ImageSet, Splits
from maxsep.lab.data.unpickle import RefusedError, read_data, shown

_PIXELS = 3 * 32 * 32
_SIZE_KEY = "num_cases_per_batch"


@dataclass(frozen=True)
class Layout:
    """Where one of the two datasets keeps its parts."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels_key: str
    names_key: str
    num_classes: int


LAYOUTS = {
    "cifar10": Layout(
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test=("test_batch",),
        meta="batches.meta",
        labels_key="labels",
        names_key="label_names",
        num_classes=10,
    ),
    "cifar100": Layout(
        folder="cifar-100-python",
        train=("train",),
        test=("test",),
        meta="meta",
        labels_key="fine_labels",
        names_key="fine_label_names",
        num_classes=100,
    ),
}


def load_cifar(name: str, root: Path) -> Splits:
    """Read `cifar10` or `cifar100` from its official folder below root.

    The batches are decoded by a reader that executes nothing of the file (see `unpickle`). Any damage is one
    ValueError, a missing part one FileNotFoundError; both name the file.

    Missing images are damage, too. CIFAR-10's meta file says how many a batch has; where it does not, all batches must
    have as many. CIFAR-100 says nothing, but has equally many images of every class in each of its two files.
    """
    layout = LAYOUTS[name]
    folder = root / layout.folder
    for part in (layout.meta, *layout.train, *layout.test):
        if not (folder / part).is_file():
            raise FileNotFoundError(
                f"{folder / part} is missing. {layout.folder}/ must hold "
                f"{', '.join((layout.meta, *layout.train, *layout.test))}: delete it and unpack the archive again."
            )
    meta = _read(folder / layout.meta)
    classes = _class_names(folder / layout.meta, meta, layout)
    batches = {part: _read_batch(folder / part, layout) for part in (*layout.train, *layout.test)}
    train, test = (_join([batches[part] for part in parts], classes) for parts in (layout.train, layout.test))
    for label, count in enumerate(train.class_counts):
        if count == 0:
            raise ValueError(
                f"{folder}: class {label} ({classes[label]}) has no training image in "
                f"{', '.join(layout.train)}. {_ADVICE}"
            )
    if len(layout.train) > 1:
        _check_sizes(folder, layout, meta, {part: len(labels) for part, (_, labels) in batches.items()})
    else:
        _check_classes(folder / layout.train[0], train)
        _check_classes(folder / layout.test[0], test)
    return Splits(name, train, test)


def _join(batches: list[tuple[Tensor, Tensor]], classes: tuple[str, ...]) -> ImageSet:
    images = torch.cat([images for images, _ in batches])
    labels = torch.cat([labels for _, labels in batches])
    return ImageSet(images, labels, classes)


def _check_sizes(folder: Path, layout: Layout, meta: dict[str, Any], found: dict[str, int]) -> None:
    expected, source = meta.get(_SIZE_KEY), f"{layout.meta} says"
    if _SIZE_KEY not in meta:
        expected, source = found[layout.train[0]], f"{layout.train[0]} has"
    elif type(expected) is not int or expected < 1:
        raise ValueError(
            f"{folder / layout.meta}: {_SIZE_KEY!r} must be the number of images in a batch, got {shown(expected)}. "
            f"{_ADVICE}"
        )
    for part, size in found.items():
        if size != expected:
            raise ValueError(f"{folder / part}: expected {expected} images, as {source}, found {size}. {_ADVICE}")


def _check_classes(path: Path, images: ImageSet) -> None:
    counts = images.class_counts
    expected = max(counts)
    for label, count in enumerate(counts):
        if count != expected:
            raise ValueError(
                f"{path}: expected {expected} images of every class, found {count} of class {label} "
                f"({images.classes[label]}), {len(images)} in all. {_ADVICE}"
            )


def _read_batch(path: Path, layout: Layout) -> tuple[Tensor, Tensor]:
    import numpy as np

    batch = _read(path)
    array, labels = _entry(path, batch, "data"), _entry(path, batch, layout.labels_key)
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.shape[1] != _PIXELS or not len(array):
        given = getattr(array, "shape", type(array).__name__)
        raise ValueError(f"{path}: 'data' must be a uint8 array of shape (N, {_PIXELS}), got {given}. {_ADVICE}")
    if not isinstance(labels, list) or len(labels) != len(array):
        given = f"{len(labels)} labels" if isinstance(labels, list) else type(labels).__name__
        raise ValueError(
            f"{path}: {layout.labels_key!r} must be a list of {len(array)} labels, one per image, got {given}. "
            f"{_ADVICE}"
        )
    for position, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < layout.num_classes:
            raise ValueError(
                f"{path}: label {shown(label)} of image {position} is out of range: labels are whole numbers from 0 to "
                f"{layout.num_classes - 1}. {_ADVICE}"
            )
    images = torch.from_numpy(np.array(array, order="C")).view(-1, 3, 32, 32)
    return images, torch.tensor(labels, dtype=torch.int64)


def _class_names(path: Path, meta: dict[str, Any], layout: Layout) -> tuple[str, ...]:
    names = _entry(path, meta, layout.names_key)
    if not isinstance(names, list) or len(names) != layout.num_classes:
        raise ValueError(f"{path}: {layout.names_key!r} must list {layout.num_classes} class names. {_ADVICE}")
    if not all(isinstance(name, str | bytes) for name in names):
        raise ValueError(f"{path}: {layout.names_key!r} must hold text only. {_ADVICE}")
    return tuple(name.decode("latin1") if isinstance(name, bytes) else name for name in names)


def _read(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary; keys come back as str whichever Python wrote them."""
    content = path.read_bytes()
    verify(path, content)
    try:
        batch = read_data(content)
    except RefusedError as error:
        raise ValueError(f"{path} was not read: {error}. {_ADVICE}") from error
    if not isinstance(batch, dict):
        raise ValueError(f"{path} must hold a dictionary, got {type(batch).__name__}. {_ADVICE}")
    return {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}


def _entry(path: Path, batch: dict[str, Any], key: str) -> Any:
    if key not in batch:
        raise ValueError(f"{path} has no entry {key!r}; it has {shown(sorted(batch))}. {_ADVICE}")
    return batch[key]


_ADVICE = "Delete the folder and fetch the official archive again."
