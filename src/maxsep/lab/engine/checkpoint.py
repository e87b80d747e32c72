"""Resume points on disk: written whole, verified before they are believed, and free of code.

A resume point is a folder `save_N` with `model.safetensors`, `train_state.safetensors`, `state.json` and, written
last, `MANIFEST.json` with the size and SHA-256 of each. It is written under another name and renamed, so a name
`save_N` never stands for a half. No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maxsep.files import sync_folder, write_file

KEEP = 2
_MANIFEST = "MANIFEST.json"
_FILES = ("model.safetensors", "train_state.safetensors", "state.json")


class CheckpointError(RuntimeError):
    """A resume point could not be written or cannot be believed."""


@dataclass(frozen=True)
class Point:
    """The content of a resume point.

    Args:
        model: The network's state dict.
        tensors: All other tensors: optimiser, random states, permutation, losses of the epoch.
        state: Everything else, as plain JSON types.
    """

    model: dict[str, Tensor]
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def save_point(folder: Path, point: Point) -> Path:
    """Write a resume point durably, then drop all but the last two.

    A failed write leaves earlier points untouched and nothing of its own; it is tried once more before it is an
    error.

    Raises:
        CheckpointError: Neither attempt succeeded; the message names the path and the bytes needed.
    """
    contents = _encode(point)
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"save_{_number(_points(folder)[-1]) + 1 if _points(folder) else 0:06d}"
    try:
        _write(final, contents)
    except OSError:
        try:
            _write(final, contents)
        except OSError as error:
            size = sum(map(len, contents.values()))
            raise CheckpointError(
                f"cannot write the resume point {final} ({size:,} bytes): {error}. "
                "The points before it are intact. Free some space or make the folder writable, then run again."
            ) from error
    for old in _points(folder)[:-KEEP]:
        shutil.rmtree(old)
    return final


def load_point(folder: Path) -> Point | None:
    """Read the newest resume point that verifies; None if there is none at all.

    A damaged point is reported with a warning and the one before it is taken.

    Raises:
        CheckpointError: There are points, and every one of them is damaged.
    """
    problems: list[str] = []
    for path in reversed(_points(folder)):
        try:
            point = read_point(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        if problems:
            warnings.warn(f"{' '.join(problems)} Resuming from {path} instead.", RuntimeWarning, stacklevel=2)
        return point
    if problems:
        raise CheckpointError(
            f"{' '.join(problems)} No resume point in {folder} can be trusted. "
            "Delete that folder to start the run from the beginning."
        )
    return None


def read_point(path: Path) -> Point:
    """Read one resume point, verifying every byte of it.

    Raises:
        CheckpointError: A file is missing, has another size or hash than the manifest says, or holds values that
            are not finite.
    """
    contents = _verify(path)
    from safetensors.torch import load

    try:
        model, tensors = load(contents[_FILES[0]]), load(contents[_FILES[1]])
        state = json.loads(contents[_FILES[2]])
    except Exception as error:  # whatever the parsers raise, the file is at fault
        raise CheckpointError(f"{path} cannot be read: {error}.") from error
    for name, tensor in model.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{path / _FILES[0]}: the tensor {name} is not finite.")
    return Point(model, tensors, state)


def clean(folder: Path) -> None:
    """Remove what interrupted saves have left; only for the process that holds the run's lock."""
    for stale in folder.glob("*.tmp-*"):
        shutil.rmtree(stale)


def _encode(point: Point) -> dict[str, bytes]:
    from safetensors.torch import save

    contents = {
        _FILES[0]: save(_plain(point.model)),
        _FILES[1]: save(_plain(point.tensors)),
        _FILES[2]: json.dumps(point.state).encode(),
    }
    files = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    }
    return contents | {_MANIFEST: json.dumps({"schema": 1, "files": files}).encode()}


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Detach, bring to the CPU and lay out in order; tensors that share memory are stored one by one."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _write(final: Path, contents: dict[str, bytes]) -> None:
    temporary = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    try:
        temporary.mkdir()
        for name, content in contents.items():
            write_file(temporary / name, content)
        sync_folder(temporary)
        temporary.rename(final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(final.parent)


def _verify(path: Path) -> dict[str, bytes]:
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
        expected = {name: (manifest["files"][name]["size"], manifest["files"][name]["sha256"]) for name in _FILES}
        if manifest["schema"] != 1 or len(manifest["files"]) != len(_FILES):
            raise ValueError("unexpected content")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / _MANIFEST} is missing or damaged ({error!r}).") from error
    contents = {}
    for name, (size, digest) in expected.items():
        try:
            content = (path / name).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path / name} cannot be read: {error}.") from error
        actual = hashlib.sha256(content).hexdigest()
        if len(content) != size or actual != digest:
            raise CheckpointError(
                f"{path / name} is damaged: expected {size} bytes with SHA-256 {digest}, "
                f"found {len(content)} bytes with {actual}."
            )
        contents[name] = content
    return contents


def _points(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("save_*") if path.name.removeprefix("save_").isdigit()]
    return sorted(found, key=_number)


def _number(path: Path) -> int:
    return int(path.name.removeprefix("save_"))
