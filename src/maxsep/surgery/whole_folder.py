"""A folder of files that is there as a whole or not at all, and that notices when one of its bits has changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from maxsep.durable import sha256_of, sync_file, sync_folder

__all__ = ["MANIFEST", "verify_folder", "write_folder"]

MANIFEST = "MANIFEST.json"
FORMAT = 1


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder, add sizes and SHA-256 sums, and put it in place in one step.

    The files are written beside their final place, synced and renamed; whatever fails, the folder that was there before
    is there after, and nothing else is left behind. An existing folder is replaced only if it came from here.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "saved"
    >>> write_folder(folder, lambda place: (place / "a.txt").write_text("hello") and None)
    >>> sorted(path.name for path in folder.iterdir())
    ['MANIFEST.json', 'a.txt']
    """
    if folder.exists() and not (folder / MANIFEST).is_file():
        raise ValueError(
            f"{folder} exists and is no folder that maxsep wrote, so it is not overwritten. Choose another name."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary, aside = (folder.with_name(f".{folder.name}.{kind}-{os.getpid()}") for kind in ("tmp", "old"))
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        write(temporary)
        sums = {path.name: {"size": path.stat().st_size, "sha256": sha256_of(path)} for path in temporary.iterdir()}
        manifest = {"format": FORMAT, "files": dict(sorted(sums.items()))}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        for path in temporary.iterdir():
            sync_file(path)
        sync_folder(temporary)
        _put(temporary, folder, aside)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder.parent)


def verify_folder(folder: Path, files: tuple[str, ...], *, others: bool = False) -> None:
    """Raise unless the folder holds these files exactly as they were written; `others` may have been written too.

    Raises:
        FileNotFoundError: There is no such folder, or a file is missing.
        ValueError: A file has another size or another SHA-256 than when it was written.
    """
    if not folder.is_dir():
        kept = sorted(str(path) for path in folder.parent.glob(f".{folder.name}.old-*"))
        told = f" An earlier one was kept as {kept[0]}." if kept else ""
        raise FileNotFoundError(f"there is no folder {folder}.{told} Pass one that maxsep wrote.")
    expected = _read_manifest(folder, files, others)
    for name in files:
        path = folder / name
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing. Copy the whole folder again, or save it again.")
        size, digest = path.stat().st_size, sha256_of(path)
        if size != expected[name]["size"] or digest != expected[name]["sha256"]:
            raise ValueError(
                f"{path} is damaged: it was written with {expected[name]['size']} bytes, SHA-256 "
                f"{expected[name]['sha256']}, and now has {size} bytes, SHA-256 {digest}. Copy or save it again."
            )


def _read_manifest(folder: Path, files: tuple[str, ...], others: bool) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, so {folder} is not what maxsep.save wrote. Pass such a folder.")
    try:
        manifest = json.loads(path.read_bytes())
        if manifest["format"] != FORMAT or set(manifest) != {"format", "files"}:
            raise ValueError(f"format {manifest['format']!r}, this version of maxsep reads format {FORMAT}")
        entries = manifest["files"]
        unfit = not set(files) <= set(entries) if others else set(files) != set(entries)
        if unfit or any(set(entry) != {"size", "sha256"} for entry in entries.values()):
            raise ValueError(f"it lists {sorted(entries)}, expected {sorted(files)}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read: {error}. Copy or save the folder again.") from error
    return dict(entries)


def _put(temporary: Path, folder: Path, aside: Path) -> None:
    if not folder.exists():
        temporary.rename(folder)
        return
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)  # a folder with files in it cannot be replaced by a rename
    try:
        temporary.rename(folder)
    except BaseException:
        aside.rename(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)
