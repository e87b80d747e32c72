"""Image files decoded once, into one file that is mapped into memory: what does not fit there is read as it is used."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from maxsep.durable import replace_file, sync_file
from maxsep.lab.data.decode import decode, warn_of_reduced
from maxsep.lab.data.imageset import ImageSet
from maxsep.lab.data.lock import locked

if TYPE_CHECKING:
    from maxsep.lab.data.download import Progress

BLOCK = 1024
"""Files that are decoded at a time."""


@dataclass(frozen=True)
class Listed:
    """The files of a split, class by class, and the names of its classes.

    >>> split = Listed(("cat", "dog"), ((Path("a.jpg"), Path("b.jpg")), (Path("c.jpg"),)))
    >>> len(split.files), split.counts
    (3, [2, 1])
    """

    classes: tuple[str, ...]
    by_class: tuple[tuple[Path, ...], ...]

    @property
    def files(self) -> list[Path]:
        """All files, in the order of their labels."""
        return [path for paths in self.by_class for path in paths]

    @property
    def counts(self) -> list[int]:
        """Files of every class."""
        return [len(paths) for paths in self.by_class]


def read_decoded(place: Path, size: int, listing: Callable[[], Listed], progress: Progress | None = None) -> ImageSet:
    """Read a split as RGB images of size x size from its decoded file, which is made if it is not there.

    Decoding a million photographs takes longer than many an epoch, so it is done once. From then on the two files
    `PLACE-SIZE.npy` (uint8, (N, 3, size, size), in the order of labels) and `PLACE-SIZE.json` (class names and counts)
    are the split: the pictures are not looked at again, and need not be there. To decode anew, delete the two.

    The images lie in a mapping of the file: memory is taken as they are used, and other processes share it.

    Args:
        place: Folder and name of the files, without size and ending.
        size: Height and width; pictures are scaled and cut as in `decode`.
        listing: Lists the pictures; only called if they have to be decoded.
        progress: Called with (bytes so far, bytes in all) while decoding.

    Raises:
        ValueError: A picture cannot be read; nothing is left behind.
        OSError: The disk is too full.
    """
    images, about = _names(place, size)
    if not about.is_file():
        with locked(place.with_name(f".{place.name}-{size}.lock")):
            if not about.is_file():  # nobody else made it in the meantime
                _decode(listing(), size, images, about, progress)
    return _open(images, about, size)


def _names(place: Path, size: int) -> tuple[Path, Path]:
    return place.with_name(f"{place.name}-{size}.npy"), place.with_name(f"{place.name}-{size}.json")


def _decode(split: Listed, size: int, images: Path, about: Path, progress: Progress | None) -> None:
    import numpy as np

    for left in images.parent.glob(f".{images.name}.tmp-*"):  # by a process that was killed: the lock is ours
        left.unlink()
    files, shape = split.files, (3, size, size)
    _check_room(images, len(files) * 3 * size * size)
    temporary = images.with_name(f".{images.name}.tmp-{os.getpid()}")
    reduced: list[Path] = []
    try:
        array = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=(len(files), *shape))
        for start in range(0, len(files), BLOCK):
            block, errors = decode(files[start : start + BLOCK], shape, reduced)
            if errors:
                raise errors[min(errors)]
            array[start : start + len(block)] = block
            if progress is not None:
                progress((start + len(block)) * block[0].nbytes, array.nbytes)
        array.flush()
        del array
        sync_file(temporary)
        temporary.replace(images)
    finally:
        temporary.unlink(missing_ok=True)
    warn_of_reduced(reduced)
    # last: where it is, the images are whole
    replace_file(about, json.dumps({"classes": split.classes, "counts": split.counts}).encode())


def _check_room(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise OSError(
            f"{path} will have {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free there. Make room, or name a "
            "smaller size of the images, such as imagenet?size=64."
        )


def _open(images: Path, about: Path, size: int) -> ImageSet:
    import numpy as np

    try:
        told: dict[str, Any] = json.loads(about.read_text(encoding="utf-8"))
        classes, counts = told["classes"], told["counts"]
        array = np.load(images, mmap_mode="c")  # copied where written to, which nobody does; torch warns of read-only
        whole = array.shape == (sum(counts), 3, size, size) and array.dtype == np.uint8 and len(classes) == len(counts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _broken(images, about, f"{type(error).__name__}: {error}") from error
    if not whole:
        raise _broken(images, about, f"an array {array.dtype} {array.shape} for {sum(counts)} images")
    return ImageSet(torch.from_numpy(array), labels_of(counts), tuple(classes))


def labels_of(counts: Sequence[int]) -> torch.Tensor:
    """Give the labels of images that lie class by class.

    >>> labels_of([2, 1]).tolist()
    [0, 0, 1]
    """
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


def _broken(images: Path, about: Path, reason: str) -> ValueError:
    return ValueError(
        f"{images} and {about.name} beside it are not what was decoded ({reason}). Delete both, and they are made anew."
    )
