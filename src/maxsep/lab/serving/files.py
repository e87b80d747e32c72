"""Which image files a user means: files, folders, patterns."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from maxsep.lab.data.decode import IMAGE_SUFFIXES


@dataclass(frozen=True)
class Unreadable:
    """Something that was asked for and cannot be predicted."""

    path: str
    reason: str
    """A sentence that names the path."""


class Found(NamedTuple):
    """What was found of what was asked for."""

    images: list[Path]
    missing: list[Unreadable]
    skipped: list[Path]
    """Files in folders that have no image's suffix; hidden ones do not count."""


def find_images(asked: Iterable[str | Path]) -> Found:
    """List the image files that are meant, in the order in which they were asked for.

    A file is taken whatever its name. A folder stands for the images in it and in its sub-folders, told by their
    suffix, in sorted order; other files in it are skipped, and named as such; hidden ones are passed over. Anything
    else is a pattern such as `photos/**/*.png`.

    >>> find_images(["nowhere/*.png"]).missing[0].reason
    'nowhere/*.png matches no file.'
    """
    found = Found([], [], [])
    for item in map(str, asked):
        matches = [item] if Path(item).exists() else sorted(glob.glob(item, recursive=True))  # noqa: PTH207
        if not matches:
            told = "matches no file." if glob.has_magic(item) else "does not exist."
            found.missing.append(Unreadable(item, f"{item} {told}"))
        for path in map(Path, matches):
            images, others = _inside(path) if path.is_dir() else ([path], [])
            if not images:
                known = ", ".join(sorted(IMAGE_SUFFIXES))
                found.missing.append(Unreadable(str(path), f"{path} is a folder without images ({known})."))
            found.images.extend(images)
            found.skipped.extend(others)
    return found


def _inside(folder: Path) -> tuple[list[Path], list[Path]]:
    """List the images and the other files of a folder and its sub-folders, sorted, without hidden ones."""
    images: list[Path] = []
    others: list[Path] = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            (images if path.suffix.lower() in IMAGE_SUFFIXES else others).append(path)
    return images, others
