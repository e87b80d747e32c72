"""Images from outside a dataset's classes, by name, and what they really are."""

from __future__ import annotations

import contextlib
import difflib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maxsep.lab.data import sources
from maxsep.lab.data.cifar import load_cifar
from maxsep.lab.data.datasets import FOLDER, Dataset, data_root, find_folder
from maxsep.lab.data.folder import Unreadable, read_images
from maxsep.lab.data.images import ImageSet
from maxsep.lab.data.open_set import OpenSetSplit, keep_classes
from maxsep.lab.data.open_set_splits import UNKNOWN_OF_CIFAR100
from maxsep.lab.data.svhn import FILES, load_svhn_test

UNKNOWN = ("unknown", *UNKNOWN_OF_CIFAR100)
"""Unknown sets of open-set splits: the classes that were left out, or classes of CIFAR-100."""
OUTLIERS = ("svhn", "places", "cifar10", "cifar100", *UNKNOWN)
PLACES = 10_000
"""Images of Places that are taken, by a fixed seed, if there are more."""
ORIGIN = "ORIGIN.txt"
"""A line in a dataset's folder that says what its images are, where they are not the official ones."""
_TEXT = {"cifar10": "CIFAR-10 test", "cifar100": "CIFAR-100 test"}


def name_outliers(given: str, root: str | Path | None = None) -> str:
    """Return the name of what a user means: a set by its name, or any folder of images, as folder:PATH; reads nothing.

    >>> import tempfile
    >>> name_outliers("svhn"), name_outliers(tempfile.gettempdir()).startswith("folder:")
    ('svhn', True)
    """
    if given in OUTLIERS or given.startswith(FOLDER):
        return given
    with contextlib.suppress(ValueError):
        if find_folder(Dataset.parse(f"{FOLDER}{given}").path, root).is_dir():
            return f"{FOLDER}{given}"
    raise ValueError(
        f"{given!r} is neither a folder nor a known set of outliers.{_nearest(given)} Known: {', '.join(OUTLIERS)}. "
        "Give one of these, or the path of a folder of images."
    )


def _nearest(given: str) -> str:
    found = difflib.get_close_matches(given.lower(), OUTLIERS, n=1)
    return f" Did you mean {found[0]}?" if found else ""


def check_outliers(name: str, like: str = "") -> None:
    """Raise if there is no set of outliers of this name for this dataset; reads nothing.

    >>> check_outliers("svhn")
    >>> check_outliers("svhn", like="svhn")
    Traceback (most recent call last):
        ...
    ValueError: svhn cannot be outliers of itself. Choose another set, or folder:PATH.
    """
    if name.startswith(FOLDER):
        Dataset.parse(name)
    elif name not in OUTLIERS:
        raise ValueError(f"unknown outliers {name!r}.{_nearest(name)} Known: {', '.join(OUTLIERS)}, {FOLDER}PATH.")
    elif name == like:
        raise ValueError(f"{name} cannot be outliers of itself. Choose another set, or folder:PATH.")
    elif name in UNKNOWN:
        split = OpenSetSplit.parse(like)
        if split is None or name not in split.unknown:
            told = f"{like} has {', '.join(split.unknown)}" if split else f"{like!r} is no split such as osr_cifar10_0"
            raise ValueError(f"outliers {name!r} are the unknown classes of an open-set split, and {told}.")


def load_outliers(
    name: str,
    root: str | Path | None = None,
    *,
    like: str = "",
    shape: tuple[int, int, int] = (3, 32, 32),
    unreadable: Unreadable | None = None,
) -> ImageSet:
    """Load images from outside a dataset; their labels mean nothing to it.

    Args:
        name: `svhn`, `cifar10`, `cifar100` (test images); `places` (10,000 images of `places365/`, any tree, or of
            `places365.npz`: shorter side 32, centre cut out); `unknown`, `cifar+10`, `cifar+50` (test images of the
            classes that the split `like` does not know); or `folder:PATH`, any tree of images.
        root: The data folder; by default $MAXSEP_DATA.
        like: The dataset that they are outside of.
        shape: (channels, height, width) of its images.
        unreadable: Gets the files of `folder:PATH` that cannot be read, which are then left out; without it the first
            of them is an error, as it always is in a set that has a name.

    >>> import tempfile
    >>> from PIL import Image
    >>> folder = tempfile.mkdtemp()
    >>> Image.new("RGB", (40, 50)).save(f"{folder}/grey.png")
    >>> load_outliers(f"folder:{folder}").shape
    (3, 32, 32)
    """
    check_outliers(name, like)
    images = _load(name, root, like, shape[1], unreadable)
    if images.shape[2:] != shape[1:]:
        raise ValueError(
            f"the images of {name} are {tuple(images.shape[2:])}, those of {like or 'the dataset'} {shape[1:]} "
            "(height, width). Give them as folder:PATH, which is read at the right size."
        )
    return ImageSet(_channels(images, shape[0]), torch.zeros(len(images), dtype=torch.int64), (name,))


def origin(name: str, root: str | Path | None = None, *, like: str = "") -> str:
    """Say in words what a set of outliers is: stand-ins are named as such.

    The first line of `ORIGIN.txt` in a dataset's folder (`svhn/`, `places365/`) is believed, and for `places365.npz`
    its entry `origin` or the first line of `places365.txt`. Without it, SVHN is called official if its test file is,
    byte for byte, and Places if its files are named as in the release.

    >>> origin("unknown", like="osr_cifar10_0")
    'CIFAR-10 test, unknown classes'
    """
    if name in UNKNOWN:
        split = OpenSetSplit.parse(like)
        base = origin(split.unknown_source, root) if split else name
        return f"{base}, {'unknown' if name == 'unknown' else name.removeprefix('cifar+')} classes"
    if name == "svhn":
        return _told(root, "svhn") or ("SVHN test" if _is_official(root) else "SVHN test, not the official file")
    if name == "places":
        return _told(root, "places365") or _told_by_array(root) or _places(root)
    return _TEXT.get(name, name.removeprefix(FOLDER))


def _load(name: str, root: str | Path | None, like: str, size: int, unreadable: Unreadable | None) -> Tensor:
    if name.startswith(FOLDER):
        return read_images(find_folder(Dataset.parse(name).path, root), size, unreadable=unreadable)
    base = data_root(name, root)
    if name == "places":
        return _read_places(base)
    split = OpenSetSplit.parse(like)
    if name in UNKNOWN and split is not None:
        return keep_classes(_test(split.unknown_source, base), split.unknown[name]).images
    return _test(name, base).images


def _test(dataset: str, base: Path) -> ImageSet:
    if dataset == "svhn" and (base / "svhn" / FILES["test"]).is_file():
        return load_svhn_test(base)  # the training digits are not needed
    sources.ensure(dataset, base)
    return load_svhn_test(base) if dataset == "svhn" else load_cifar(dataset, base).test


def _read_places(base: Path) -> Tensor:
    import numpy as np

    if (base / "places365").is_dir():
        return read_images(base / "places365", 32, most=PLACES)
    array = base / "places365.npz"
    if not array.is_file():
        raise FileNotFoundError(
            f"places is not in {base}: expected places365/ (any tree of images) or places365.npz (an array `images`, "
            "uint8, N x 32 x 32 x 3) there. Put one of them there, or leave the set out."
        )
    with np.load(array, allow_pickle=False) as content:
        key = next((key for key in ("images", "test_x") if key in content), None)
        pixels: Any = content[key] if key else np.empty(0)
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[3] != 3 or not len(pixels):
        raise ValueError(
            f"{array} must hold `images`, uint8 of shape (N, 32, 32, 3), got {pixels.dtype} {pixels.shape}."
        )
    if len(pixels) > PLACES:
        pixels = pixels[np.sort(np.random.RandomState(0).permutation(len(pixels))[:PLACES])]
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


def _channels(images: Tensor, count: int) -> Tensor:
    """Turn colour to grey, weighing channels as the eye does, or grey to colour."""
    if images.shape[1] == count:
        return images
    if count == 1:
        weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
        return (images * weights).sum(1, keepdim=True).round().to(torch.uint8)
    return images.expand(-1, count, -1, -1).contiguous()


def _told(root: str | Path | None, folder: str) -> str:
    return _first_line(data_root(folder, root) / folder / ORIGIN)


def _told_by_array(root: str | Path | None) -> str:
    import numpy as np

    array = data_root("places", root) / "places365.npz"
    if not array.is_file():
        return ""
    with np.load(array, allow_pickle=False) as content:
        told = str(content["origin"]) if "origin" in content else ""
    return told or _first_line(array.with_suffix(".txt")) or "images of places365.npz, source not told"


def _first_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").strip().splitlines() if path.is_file() else []
    return lines[0].strip() if lines else ""


def _is_official(root: str | Path | None) -> bool:
    test = next(file for file in sources.SVHN if file.name.startswith("test"))
    return not test.difference(data_root("svhn", root) / "svhn" / test.name)


def _places(root: str | Path | None) -> str:
    folder = data_root("places", root) / "places365"
    first = next(iter(sorted(folder.rglob("*.jp*g"))), Path())
    return "Places365" if first.name.startswith("Places365_") else "images of places365/, not named as in Places365"
