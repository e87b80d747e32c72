"""Write files and folders as a whole or not at all, and refuse a folder of which one bit has changed.

A file is written under a temporary name, flushed to the disk and renamed. A folder is treated the same way and gets a
manifest with the size and the SHA-256 of every file in it. What is damaged is a ValueError of one line with its path.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

MANIFEST = "MANIFEST.json"
SHA256SUMS = "SHA256SUMS"
FORMAT = 1
JSON_BYTES = 1 << 28
"""A larger JSON file is refused unread."""

Value = TypeVar("Value")
Sums = Mapping[str, Mapping[str, Any]]
"""By the name of a file its `sha256` and, in a manifest, its `size`."""

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
    with naming(path, temporary):
        try:
            write_file(temporary, content)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


@contextmanager
def naming(path: Path, temporary: Path) -> Iterator[None]:
    """Let an error name the path that the caller knows, in place of the temporary one or of none."""
    try:
        yield
    except OSError as error:
        name = str(error.filename or temporary)  # a write that fails, as on a full disk, names no file
        if error.errno is None or str(temporary) not in name:
            raise
        raise OSError(error.errno, error.strerror, name.replace(str(temporary), str(path))) from error


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


def expanded(path: str | Path) -> Path:
    """Expand ~ and ~USER at the start of a path; names such as `~1.png` stay, where pathlib raises a RuntimeError."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


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
    with naming(folder, temporary):
        try:
            temporary.mkdir()
            write(temporary)
            names = [path.name for path in temporary.iterdir()]
            for name in names:
                sync_file(temporary / name)
            write_file(temporary / MANIFEST, _encode(describe_files(temporary, names)))
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
    sums, actual = read_manifest(folder), describe_files(folder, files)
    for name in sorted(actual.keys() & sums.keys()):
        check_sum(folder / name, actual[name]["sha256"], sums)
    if actual != sums:
        raise ValueError(f"{folder / MANIFEST} is damaged, or was written for other files than {', '.join(files)}")


def read_manifest(folder: Path) -> Sums:
    """Read a manifest; it has one way to be written, and any other byte is damage."""
    content = (folder / MANIFEST).read_bytes()
    sums = parse_json(content, folder / MANIFEST).get("files")
    if not isinstance(sums, dict) or not all(isinstance(entry, dict) for entry in sums.values()):
        raise ValueError(f"{folder / MANIFEST} is damaged: it lists no files")
    if content != _encode(sums):
        raise ValueError(f"{folder / MANIFEST} is damaged: it was not written like this")
    return sums


def write_manifest(folder: Path, sums: Sums) -> None:
    """Write or replace the manifest of a folder that is not written as a whole."""
    replace_file(folder / MANIFEST, _encode(sums))


def read_sums(folder: Path) -> Sums | None:
    """Read a folder's manifest, or else its lines in a SHA256SUMS beside it; None if there is neither."""
    folder = folder.absolute()
    if (folder / MANIFEST).is_file():
        return read_manifest(folder)
    path = folder.parent / SHA256SUMS
    return _read_sha256sums(path, path.stat().st_mtime_ns).get(folder.name) if path.is_file() else None


@functools.lru_cache(maxsize=8)
def _read_sha256sums(path: Path, _time: int) -> Mapping[str, Sums]:
    """Read lines of `sha256sum FOLDER/FILE`, by folder."""
    folders: dict[str, dict[str, Mapping[str, Any]]] = {}
    for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), start=1):
        match = re.fullmatch(r"([0-9a-f]{64})  ([^/]+)/([^/]+)", line)
        if match is None:
            raise ValueError(f"{path} is damaged: line {number} is no SHA-256 with the path of a file")
        folders.setdefault(match[2], {})[match[3]] = {"sha256": match[1]}
    return folders


def check_sum(path: Path, digest: str, sums: Sums) -> None:
    """Raise ValueError unless the SHA-256 of a file is the one that is listed."""
    if path.name not in sums:
        raise ValueError(f"{path} is damaged, or of another folder: the sums of its folder do not list it")
    if sums[path.name].get("sha256") != digest:
        size, written = path.stat().st_size, sums[path.name].get("size")
        reason = "its SHA-256 is not the one" if written in (size, None) else f"{size} bytes instead of the {written}"
        raise ValueError(f"{path} is damaged: {reason} with which it was written")


def check_first_read(folder: Path, names: Iterable[str]) -> Sums:
    """Compare files with the manifest, as far as there is one, and return their sums for `keep_first_read`."""
    known = read_manifest(folder) if (folder / MANIFEST).is_file() else {}
    sums = describe_files(folder, names)
    for name in sums.keys() & known.keys():
        check_sum(folder / name, sums[name]["sha256"], known)
    return {**known, **sums}


def keep_first_read(folder: Path, sums: Sums) -> None:
    """Keep the sums of files that were read well for the first time, where the folder can be written to."""
    if not (folder / MANIFEST).is_file() or read_manifest(folder) != sums:
        with suppress(OSError):
            write_manifest(folder, sums)


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds a JSON object."""
    if (size := path.stat().st_size) > JSON_BYTES:
        raise ValueError(f"{path} is damaged: {size:,} bytes are more than {JSON_BYTES:,}")
    return parse_json(path.read_bytes(), path)


def parse_json(content: bytes, source: str | Path) -> dict[str, Any]:
    """Parse a JSON object; deep nesting and text that is no UTF-8 are damage like any other."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is damaged ({' '.join(str(error).split())})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{source} is damaged: it holds no JSON object")
    return value


def parse_file(path: Path, parse: Callable[[Path], Value]) -> Value:
    """Read a file with a parser of another package: whatever that raises, the file is at fault."""
    try:
        return parse(path)
    except OSError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"{path} is damaged ({reason})") from error


def describe_content(content: bytes) -> dict[str, Any]:
    """Return the size and the SHA-256 of bytes."""
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the size and the SHA-256 of files."""
    return {name: {"size": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)} for name in names}


def _is_replaceable(folder: Path) -> bool:
    try:
        listed = read_manifest(folder)
    except (ValueError, FileNotFoundError):
        return False
    return bool(listed) and {path.name for path in folder.iterdir()} <= {MANIFEST, *listed}


def _encode(sums: Sums) -> bytes:
    return (json.dumps({"format": FORMAT, "files": sums}, indent=1, sort_keys=True) + "\n").encode()


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
