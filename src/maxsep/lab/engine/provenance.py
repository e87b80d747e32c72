"""What a result was computed with: versions and hardware."""

from __future__ import annotations

import contextlib
import functools
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from maxsep import __version__

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
    found: dict[str, str | None] = {"python": platform.python_version(), "maxsep": __version__}
    found["torch"] = str(torch.__version__)
    found |= {name: _first_version(packages) for name, packages in _PACKAGES.items()}
    found["cuda"] = torch.version.cuda
    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None  # type: ignore[no-untyped-call]
    found["cudnn"] = str(cudnn) if cudnn else None
    return found


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
