"""Which image files a user means: files, folders, patterns."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from maxsep.lab.data.decode import IMAGE_SUFFIXES


@dataclass(frozen=True)
class Unreadable:
    """Something that was asked for and cannot be predicted."""

    path: str
    reason: str
    """A sentence that names the path."""


def find_images(asked: Iterable[str | Path]) -> tuple[list[Path], list[Unreadable]]:
    """List the image files that are meant, in the order in which they were asked for.

    A file is taken whatever its name. A folder stands for the images in it and in its sub-folders, told by their
    suffix, in sorted order; hidden files are passed over. Anything else is a pattern such as `photos/**/*.png`.

    >>> find_images(["nowhere/*.png"])[1][0].reason
    'nowhere/*.png matches no file.'
    """
    found: list[Path] = []
    missing: list[Unreadable] = []
    for item in map(str, asked):
        matches = [item] if Path(item).exists() else sorted(glob.glob(item, recursive=True))  # noqa: PTH207
        if not matches:
            told = "matches no file." if glob.has_magic(item) else "does not exist."
            missing.append(Unreadable(item, f"{item} {told}"))
        for path in map(Path, matches):
            images = _inside(path) if path.is_dir() else [path]
            if not images:
                known = ", ".join(sorted(IMAGE_SUFFIXES))
                missing.append(Unreadable(str(path), f"{path} is a folder without images ({known})."))
            found += images
    return found, missing


def _inside(folder: Path) -> list[Path]:
    below = (path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
    return sorted(path for path in below if not any(p.startswith(".") for p in path.relative_to(folder).parts))
