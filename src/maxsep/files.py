"""Write files and folders as a whole or not at all, and refuse a folder of which one bit has changed.

A file is written under a temporary name, flushed to the disk and renamed. A folder is treated the same way and gets a
manifest with the size and the SHA-256 of every file in it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

MANIFEST = "MANIFEST.json"
FORMAT = 1

# Error numbers of systems that cannot open or flush a folder; a failing disk reports another one.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EISDIR})


def write_file(path: Path, content: bytes) -> None:
    """Write a file and flush it to the disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o644)
    try:
        view = memoryview(content)
        while view:  # a system call may write less than it was asked to
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: readers see the old content or the new one, and an error leaves the old one."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        write_file(temporary, content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Flush a file that was written by other code to the disk."""
    with path.open("r+b") as file:  # some systems flush only what is open for writing
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to the disk, so that a rename survives a power cut; skipped where unsupported."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file of any size, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary folder, add the manifest and rename it to `folder`.

    After any error the earlier folder is in place and nothing else is left. An existing folder is replaced only if it
    has a manifest and no files beside those it lists. A process that is killed between the two renames of a replacement
    leaves the earlier folder under a hidden name, which `verify_folder` reports.
    """
    if folder.exists() and not _is_replaceable(folder):
        raise ValueError(f"{folder} exists and has files that maxsep did not write, so it is not overwritten")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary, earlier = (folder.with_name(f".{folder.name}.{kind}-{os.getpid()}") for kind in ("tmp", "old"))
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        write(temporary)
        names = [path.name for path in temporary.iterdir()]
        for name in names:
            sync_file(temporary / name)
        write_file(temporary / MANIFEST, _encode(_describe(temporary, names)))
        sync_folder(temporary)
        _move(temporary, folder, earlier)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder.parent)


def verify_folder(folder: Path, files: tuple[str, ...]) -> None:
    """Raise ValueError unless the folder holds exactly these files with the sizes and SHA-256 of its manifest."""
    if not folder.is_dir():
        earlier = next(iter(sorted(folder.parent.glob(f".{folder.name}.old-*"))), None)
        raise FileNotFoundError(f"there is no folder {folder}" + (f"; an earlier one is {earlier}" if earlier else ""))
    for name in (MANIFEST, *files):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing")
    content, actual = (folder / MANIFEST).read_bytes(), _describe(folder, files)
    if content == _encode(actual):  # bytes: a manifest has one way to be written
        return
    for name, written in _decode(content).items():
        if name in actual and actual[name] != written:
            raise ValueError(f"{folder / name} is damaged: it was written as {written} and is now {actual[name]}")
    raise ValueError(f"{folder / MANIFEST} is damaged, or was written for other files than {', '.join(files)}")


def _is_replaceable(folder: Path) -> bool:
    manifest = folder / MANIFEST
    listed = _decode(manifest.read_bytes()) if manifest.is_file() else {}
    return bool(listed) and {path.name for path in folder.iterdir()} <= {MANIFEST, *listed}


def _describe(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    return {name: {"size": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)} for name in names}


def _encode(files: dict[str, dict[str, Any]]) -> bytes:
    return (json.dumps({"format": FORMAT, "files": files}, indent=1, sort_keys=True) + "\n").encode()


def _decode(content: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(content)["files"])
    except (ValueError, KeyError, TypeError):
        return {}


def _move(temporary: Path, folder: Path, earlier: Path) -> None:
    """Rename the new folder into place; a rename cannot replace a folder that has files."""
    if not folder.exists():
        temporary.rename(folder)
        return
    shutil.rmtree(earlier, ignore_errors=True)
    folder.rename(earlier)
    try:
        temporary.rename(folder)
    except BaseException:
        earlier.rename(folder)
        raise
    shutil.rmtree(earlier, ignore_errors=True)
