"""Readers of the official files: digits (scikit-learn), CIFAR-10, CIFAR-100 and SVHN."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from maxsep.files import MANIFEST, check_first_read, keep_first_read
from maxsep.lab.data.download import SOURCES
from maxsep.lab.data.images import ImageSet, Splits, hold_out
from maxsep.packages import load_package

DIGITS = tuple(str(digit) for digit in range(10))
_PIXELS = 3 * 32 * 32


class DataError(ValueError):
    """Raised when an official file is damaged."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}. Delete {path.parent} and fetch the official files again.")


_BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
_CIFAR = {  # files of each part, the file of class names, keys of labels and names, number of classes
    "cifar10": (_BATCHES, "batches.meta", "labels", "label_names", 10),
    "cifar100": ({"train": ["train"], "test": ["test"]}, "meta", "fine_labels", "fine_label_names", 100),
}


def read_official(source: str, root: Path) -> Splits:
    """Read CIFAR or SVHN."""
    train, test = read_parts(source, root, "train", "test")
    return Splits(source, train, test)


def read_parts(source: str, root: Path, *parts: str) -> list[ImageSet]:
    """Read `train` or `test` images of CIFAR or SVHN.

    Their files are compared with the manifest that unpacking left; without one it is written after the first read.
    """
    folder, is_svhn = root / SOURCES[source].folder, source == "svhn"
    names = [file for part in parts for file in ([f"{part}_32x32.mat"] if is_svhn else _CIFAR[source][0][part])]
    names += [] if is_svhn else [_CIFAR[source][1]]
    for name in names:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing. Delete {folder} and fetch the official files again.")
    try:
        sums = check_first_read(folder, names)
    except ValueError as error:
        raise DataError(folder / MANIFEST, str(error)) from error
    if is_svhn:
        images = [_read_svhn(folder / name) for name in names]
    else:
        images = [_read_cifar(folder, part, *_CIFAR[source]) for part in parts]
    keep_first_read(folder, sums)
    return images


def read_digits() -> Splits:
    """Read scikit-learn's 1,797 digits as (N, 1, 8, 8) uint8, a third of every class set aside by a fixed seed.

    The original grey levels 0 to 16 are stretched to 0 to 255.
    """
    bunch = load_package("sklearn.datasets", "train").load_digits()
    images = (torch.from_numpy(bunch.images) * 255 / 16).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    everything = ImageSet(images, labels, DIGITS)
    kept, held = hold_out(labels, 1 / 3, seed=0)
    return Splits("digits", everything.subset(kept), everything.subset(held))


def _read_cifar(
    folder: Path, part: str, files: dict[str, list[str]], meta: str, key: str, title: str, num: int
) -> ImageSet:
    """Read pickled batches. Missing images are damage too: every class has equally many."""
    names = _unpickle(folder / meta).get(title)
    if not isinstance(names, list) or len(names) != num or not all(isinstance(name, str) for name in names):
        raise DataError(folder / meta, f"{title!r} must list {num} class names")
    pixels: list[Any] = []
    labels: list[int] = []
    for file in files[part]:
        batch = _unpickle(folder / file)
        rows: Any = batch.get("data")
        batch_labels: Any = batch.get(key)
        if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.shape[1:] != (_PIXELS,):
            raise DataError(folder / file, f"'data' must be a uint8 array of shape (N, {_PIXELS})")
        is_list = isinstance(batch_labels, list) and len(batch_labels) == len(rows)
        if not is_list or not all(type(label) is int and 0 <= label < num for label in batch_labels):
            raise DataError(folder / file, f"{key!r} must be {len(rows)} labels from 0 to {num - 1}")
        pixels.append(rows)
        labels += batch_labels
    images = torch.from_numpy(np.concatenate(pixels)).view(-1, 3, 32, 32)
    result = ImageSet(images, torch.tensor(labels, dtype=torch.int64), tuple(names))
    if len(set(result.class_counts)) > 1:
        raise DataError(folder / file, f"classes must have equally many images, got {result.class_counts}")
    return result


class _DataOnly(pickle.Unpickler):
    """Builds containers, numbers, text and arrays; any other name is refused before it is looked up."""

    ALLOWED = (
        *("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"),
        *("_codecs.encode", "builtins.bytes", "__builtin__.bytes"),
    )

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which image data does not need")
        return super().find_class(module, name)


def _unpickle(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary without running code."""
    stream = io.BytesIO(path.read_bytes())
    try:
        content = _DataOnly(stream, encoding="latin1").load()  # as Python 2 wrote text and arrays
    except Exception as error:  # damaged pickles raise what they like
        raise DataError(path, f"cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(content, dict) or stream.read(1):
        raise DataError(path, "must hold one dictionary and nothing else")
    return content


def _read_svhn(path: Path) -> ImageSet:
    """Read one of SVHN's files; the digit 0, which they label 10, gets label 0."""
    try:
        content = load_package("scipy.io", "train").loadmat(path, variable_names=["X", "y"])
        pixels, digits = np.asarray(content["X"]), np.asarray(content["y"]).astype(np.int64).ravel()
    except ImportError:
        raise
    except Exception as error:  # scipy reports damage through a dozen types
        raise DataError(path, f"cannot be read ({type(error).__name__}: {error})") from error
    if pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3) or pixels.dtype != np.uint8:
        raise DataError(path, f"X must be uint8 of shape (32, 32, 3, N), got {pixels.dtype} {pixels.shape}")
    if len(digits) != pixels.shape[3] or set(digits) != set(range(1, 11)):
        raise DataError(path, f"y must be {pixels.shape[3]} labels, all of 1 to 10 (10 is the digit 0)")
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
    return ImageSet(images, torch.from_numpy(digits % 10), DIGITS)
