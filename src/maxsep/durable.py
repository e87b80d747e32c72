"""Files that are either there as a whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

__all__ = ["replace_file", "sha256_of", "sync_file", "sync_folder", "write_file"]

_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EISDIR})
"""How systems say that a folder cannot be opened or synchronised; a failing disk says something else."""


def write_file(path: Path, content: bytes) -> None:
    """Write a new file and wait until it is on the disk.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> write_file(path, b"hello")
    >>> path.read_bytes()
    b'hello'
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Wait until a file that somebody else has written is on the disk.

    >>> import tempfile
    >>> sync_file(Path(tempfile.mkstemp()[1]))
    """
    with path.open("r+b") as file:  # some systems synchronise only what may be written
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the names inside a folder are on the disk, so that a rename survives a power cut.

    Some systems (Windows, a few network disks) cannot do that with a folder; there it is left to them.

    >>> import tempfile
    >>> sync_folder(Path(tempfile.mkdtemp()))
    """
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in place atomically: a reader sees the old content or the new, never a part.

    The old content survives any error, and nothing else is left behind.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> replace_file(path, b"old")
    >>> replace_file(path, b"new")
    >>> [(entry.name, entry.read_bytes()) for entry in path.parent.iterdir()]
    [('a', b'new')]
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        write_file(temporary, content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sha256_of(path: Path) -> str:
    """Hash a file of any size.

    >>> import tempfile
    >>> sha256_of(Path(tempfile.mkstemp()[1]))[:16]
    'e3b0c44298fc1c14'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
