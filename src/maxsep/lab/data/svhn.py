"""SVHN's cropped digits as distributed: svhn/train_32x32.mat and svhn/test_32x32.mat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from maxsep.lab.data.checksums import verify
from maxsep.lab.data.images import ImageSet, Splits

FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
_ADVICE = "Delete the file and fetch the official one again."


def load_svhn(root: Path) -> Splits:
    """Read SVHN's two files; the digit 0, which they label 10, gets label 0.

    Shapes and types are checked in the headers, before any image is unpacked.
    """
    train, test = (_read(root / "svhn" / FILES[part]) for part in ("train", "test"))
    return Splits("svhn", train, test)


def load_svhn_test(root: Path) -> ImageSet:
    """Read SVHN's test digits alone, which is all that outlier detection needs."""
    return _read(root / "svhn" / FILES["test"])


def _read(path: Path) -> ImageSet:
    import numpy as np

    scipy_io = _scipy_io()
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. Both {' and '.join(FILES.values())} belong in {path.parent}.")
    verify(path)
    try:
        _check_headers(path, {name: (shape, kind) for name, shape, kind in scipy_io.whosmat(path)})
        content = scipy_io.loadmat(path, variable_names=["X", "y"])
        pixels, digits = np.asarray(content["X"]), np.asarray(content["y"]).astype(np.int64).ravel()
    except _BadHeaderError:
        raise
    except Exception as error:  # scipy reports damage through a dozen types
        raise ValueError(f"{path} was not read: {type(error).__name__}: {error}. {_ADVICE}") from error
    wrong = np.flatnonzero((digits < 1) | (digits > 10))
    if len(wrong):
        raise ValueError(
            f"{path}: label {digits[wrong[0]]} of image {wrong[0]} is out of range: SVHN's labels are 1 to 10 "
            f"(10 is the digit 0). {_ADVICE}"
        )
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
    labels = torch.from_numpy(digits % 10)
    classes = tuple(str(digit) for digit in range(10))
    result = ImageSet(images, labels, classes)
    if 0 in result.class_counts:
        raise ValueError(f"{path}: no image of the digit {result.class_counts.index(0)}. {_ADVICE}")
    return result


class _BadHeaderError(ValueError):
    pass


def _check_headers(path: Path, variables: dict[str, tuple[tuple[int, ...], str]]) -> None:
    for name in ("X", "y"):
        if name not in variables:
            raise _BadHeaderError(f"{path} has no variable {name!r}; it has {sorted(variables)}. {_ADVICE}")
    shape, kind = variables["X"]
    if len(shape) != 4 or shape[:3] != (32, 32, 3) or shape[3] < 1 or kind != "uint8":
        raise _BadHeaderError(f"{path}: X must be uint8 of shape (32, 32, 3, N), got {kind} {shape}. {_ADVICE}")
    label_shape, label_kind = variables["y"]
    if label_shape not in ((shape[3], 1), (1, shape[3])) or not label_kind.lstrip("u").startswith(("int", "double")):
        raise _BadHeaderError(
            f"{path}: y must hold {shape[3]} numbers, one per image, got {label_kind} {label_shape}. {_ADVICE}"
        )


def _scipy_io() -> Any:
    try:
        import scipy.io
    except ImportError as error:
        raise ImportError('SVHN files are read with scipy, which is missing: pip install "maxsep[lab]"') from error
    return scipy.io
