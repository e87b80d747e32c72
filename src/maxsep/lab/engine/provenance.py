"""What a result was computed with: versions and hardware."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import maxsep

_PACKAGES = {
    # pytorch-lightning brings the module lightning_fabric along, without the package of that name
    "lightning-fabric": ("lightning-fabric", "pytorch-lightning"),
    "safetensors": ("safetensors",),
    "numpy": ("numpy",),
    "triton": ("triton",),
}
"""What is recorded, and the packages that may bring it, in the order in which they are asked."""


@functools.cache
def versions() -> dict[str, str | None]:
    """Name the versions of Python, torch, CUDA and the packages that decide a run's numbers.

    >>> sorted(versions())[:3]
    ['cuda', 'cudnn', 'lightning-fabric']
    """
    # maxsep and torch say it themselves: either may run from a source tree that no package manager knows
    found: dict[str, str | None] = {"python": platform.python_version(), "maxsep": maxsep.__version__}
    found["source"] = source(Path(maxsep.__file__).parent)
    found["torch"] = str(torch.__version__)
    found |= {name: _first_version(packages) for name, packages in _PACKAGES.items()}
    found["cuda"] = torch.version.cuda
    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None  # type: ignore[no-untyped-call]
    found["cudnn"] = str(cudnn) if cudnn else None
    return found


def source(folder: Path) -> str:
    """Digest the source files of a package: twelve digits that name its state where no repository can be asked.

    >>> len(source(Path(maxsep.__file__).parent))
    12
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def commit(folder: Path) -> str | None:
    """Name the commit that a folder stands at, `-dirty` if files were changed since; None outside a repository."""
    try:
        asked = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            capture_output=True, text=True, check=True, cwd=folder,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return asked.stdout.strip()


def _first_version(packages: tuple[str, ...]) -> str | None:
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            return version(package)
    return None


def hardware(device: torch.device, devices: int = 1) -> dict[str, str | int]:
    """Name the accelerator (or `cpu`), the processor and the number of threads."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"device": name, "devices": devices, "cpu": _processor(), "threads": torch.get_num_threads()}


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
