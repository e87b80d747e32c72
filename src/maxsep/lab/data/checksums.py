"""SHA-256 sums of files, and a SHA256SUMS file beside data that lets damage on disk be noticed."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from maxsep.files import replace_file, sha256_of

SUMS = "SHA256SUMS"
"""Kept in the format of the sha256sum command: `sha256sum -c SHA256SUMS` checks a folder by hand."""


def record(folder: Path, names: list[str]) -> None:
    """Write or extend the folder's SHA256SUMS with these files."""
    sums = _read(folder) | {name: sha256_of(folder / name) for name in names}
    text = "".join(f"{value}  {name}\n" for name, value in sorted(sums.items()))
    replace_file(folder / SUMS, text.encode())


def verify(path: Path, content: bytes | None = None) -> None:
    """Check a file against the SHA256SUMS beside it; without such a list, or an entry in it, there is nothing to check.

    Args:
        path: The file.
        content: Its bytes, where they have been read already.

    Raises:
        ValueError: The sums differ; the message has both.
    """
    expected = _read(path.parent).get(path.name)
    if expected is None:
        return
    actual = sha256_of(path) if content is None else hashlib.sha256(content).hexdigest()
    if actual != expected:
        raise ValueError(
            f"{path} is damaged: its SHA-256 is {actual}, {SUMS} beside it says {expected}. "
            "Delete the folder and fetch the data again."
        )


def _read(folder: Path) -> dict[str, str]:
    path = folder / SUMS
    if not path.is_file():
        return {}
    sums = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        match = re.fullmatch(r"([0-9a-f]{64}) [ *](.+)", line)
        if match is None:
            raise ValueError(
                f"{path} holds the line {line!r}, which is no SHA-256 sum and file name. "
                "Delete the folder and fetch the data again."
            )
        sums[match[2]] = match[1]
    return sums
