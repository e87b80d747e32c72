"""Image files decoded once, into one file that is mapped into memory: what does not fit there is read as it is used."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from maxsep.files import replace_file, sync_file
from maxsep.lab.data.decode import decode, warn_of_reduced
from maxsep.lab.data.images import ImageSet, labels_of
from maxsep.lab.data.lock import locked

if TYPE_CHECKING:
    from maxsep.lab.data.download import Progress

BLOCK = 1024
"""Files that are decoded at a time."""
_SHOWN = 10
"""Files named in an error."""


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

    @property
    def mark(self) -> str:
        """Digest the names and sizes of all files: twelve digits."""
        digest = hashlib.sha256()
        for name, paths in zip(self.classes, self.by_class, strict=True):
            for path in paths:
                digest.update(f"{name}/{path.name}\0{path.stat().st_size}\0".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:12]


def read_decoded(
    place: Path,
    size: int,
    listing: Callable[[], Listed],
    census: Callable[[], dict[str, int] | None] = lambda: None,
    progress: Progress | None = None,
) -> tuple[ImageSet, str]:
    """Read a split as RGB images of size x size from its decoded file, which is made if it is not there.

    Decoding a million photographs takes longer than many an epoch, so it is done once. From then on the two files
    `PLACE-SIZE.npy` (uint8, (N, 3, size, size), in the order of labels) and `PLACE-SIZE.json` (class names, counts and
    a mark of the files) are the split: the pictures are not opened again, and need not be there. If they are, and are
    other ones by class and number, that is an error. To decode anew, delete the two files.

    The images lie in a mapping of the file: memory is taken as they are used, and given back where it is short; other
    processes share it. Pitfall: whoever writes to them ends the process.

    Args:
        place: Folder and name of the files, without size and ending.
        size: Height and width; pictures are scaled and cut as in `decode`.
        listing: Lists the pictures; only called if they have to be decoded.
        census: Counts the pictures of every class that are there now, where that takes no time; None if there are none.
        progress: Called with (bytes so far, bytes in all) while decoding.

    Returns:
        The images, and the mark of the files that they were.

    Raises:
        ValueError: Some pictures cannot be read, which is known when all were tried; nothing is left behind.
        OSError: The disk is too full.
    """
    images, about = _names(place, size)
    if not about.is_file():
        with locked(place.with_name(f".{place.name}-{size}.lock")):
            if not about.is_file():  # nobody else made it in the meantime
                _decode(listing(), size, images, about, progress)
    return _open(images, about, size, census)


def mark_of(place: Path, size: int) -> str | None:
    """Give the mark of decoded files without opening them; None if there are none."""
    try:
        mark = json.loads(_names(place, size)[1].read_text(encoding="utf-8"))["mark"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(mark)


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
    broken: list[ValueError] = []
    try:
        # written, not mapped: a disk that fills up is an error then, and not the end of the process
        with temporary.open("wb") as out:
            header = {"descr": "|u1", "fortran_order": False, "shape": (len(files), *shape)}
            np.lib.format.write_array_header_1_0(out, header)
            for start in range(0, len(files), BLOCK):
                block, errors = decode(files[start : start + BLOCK], shape, reduced)
                broken += [errors[place] for place in sorted(errors)]
                out.write(block.data)
                if progress is not None:
                    progress((start + len(block)) * block[0].nbytes, len(files) * block[0].nbytes)
        if broken:
            raise _unreadable(broken)
        sync_file(temporary)
        temporary.replace(images)
    finally:
        temporary.unlink(missing_ok=True)
    warn_of_reduced(reduced)
    # last: where it is, the images are whole
    told = {"classes": split.classes, "counts": split.counts, "mark": split.mark}
    replace_file(about, json.dumps(told).encode())


def _unreadable(errors: list[ValueError]) -> ValueError:
    """Name the first files that cannot be read, and count the others: to be told one at a time would take days."""
    shown, others = "\n".join(map(str, errors[:_SHOWN])), len(errors) - _SHOWN
    return ValueError(shown + (f"\nand {others} more." if others > 0 else ""))


def _check_room(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise OSError(
            f"{path} will have {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free there. Make room, or name a "
            "smaller size of the images, such as imagenet?size=64."
        )


def _open(images: Path, about: Path, size: int, census: Callable[[], dict[str, int] | None]) -> tuple[ImageSet, str]:
    import numpy as np

    try:
        told: dict[str, Any] = json.loads(about.read_text(encoding="utf-8"))
        classes, counts, mark = told["classes"], told["counts"], str(told["mark"])
        array = np.load(images, mmap_mode="r")  # a mapping that could be written to would have to fit into memory
        whole = array.shape == (sum(counts), 3, size, size) and array.dtype == np.uint8 and len(classes) == len(counts)
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise _broken(images, about, f"{type(error).__name__}: {error}") from error
    if not whole:
        raise _broken(images, about, f"an array {array.dtype} {array.shape} for {sum(counts)} images")
    now = census()
    if now is not None and now != {name: count for name, count in zip(classes, counts, strict=True) if count}:
        raise ValueError(
            f"{images} has {sum(counts):,} pictures of {len(classes)} classes, and there are {sum(now.values()):,} of "
            f"{len(now)} now, or others of them. Delete it and {about.name} beside it to decode them anew."
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nobody writes to it
        return ImageSet(torch.from_numpy(array), labels_of(counts), tuple(classes)), mark


def _broken(images: Path, about: Path, reason: str) -> ValueError:
    return ValueError(
        f"{images} and {about.name} beside it are not what was decoded ({reason}). Delete both, and they are made anew."
    )
