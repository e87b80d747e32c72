"""What runs are computed with: device, precision, memory, and the versions and hardware for their records."""

from __future__ import annotations

import functools
import hashlib
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import maxsep

DEVICES = ("auto", "cpu", "cuda")
ROOM = 0.6
"""Part of a GPU's free memory that images may take; the rest is for the network."""


def pick_device(name: str = "auto") -> torch.device:
    """Return the device of a name; `auto` is a GPU where torch has one."""
    if name not in DEVICES:
        raise ValueError(f"unknown device {name!r}. Known: {', '.join(DEVICES)}.")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ValueError("device 'cuda' is not available: torch finds no CUDA device. Use 'auto' or 'cpu'.")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def default_precision(name: str = "auto", on_gpu: bool | None = None) -> str:
    """Return the precision that suits a device, or other machines: bfloat16 on a GPU, float32 on a CPU."""
    return "bf16-mixed" if (pick_device(name).type == "cuda" if on_gpu is None else on_gpu) else "32-true"


def fits(num_bytes: int, device: torch.device) -> bool:
    """Whether images of this size leave a device enough memory for the network; always on a CPU."""
    return device.type != "cuda" or num_bytes <= ROOM * torch.cuda.mem_get_info(device)[0]


@functools.cache
def versions() -> dict[str, str | None]:
    """Return the versions of Python, torch, CUDA and the packages that decide a run's numbers."""
    # maxsep and torch name their own: either may run from a source tree that no package manager knows
    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None  # type: ignore[no-untyped-call]
    return {
        "python": platform.python_version(),
        "maxsep": maxsep.__version__,
        "source": source(Path(maxsep.__file__).parent),
        "torch": str(torch.__version__),
        # pytorch-lightning contains the module lightning_fabric, without the package of that name
        "lightning-fabric": _version("lightning-fabric") or _version("pytorch-lightning"),
        **{package: _version(package) for package in ("safetensors", "numpy", "triton")},
        "cuda": torch.version.cuda,
        "cudnn": str(cudnn) if cudnn else None,
    }


def source(folder: Path) -> str:
    """Digest the names and contents of a package's Python files to twelve hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def command_line() -> str:
    """Return the command that this process was started with; a spawned process has that of its parent."""
    program = Path(sys.argv[0])
    is_maxsep = program.name in ("maxsep", "maxsep.exe") or program.parent.name == "maxsep"  # or python -m maxsep
    return shlex.join([*(("maxsep",) if is_maxsep else ("python", program.name)), *sys.argv[1:]])


def commit(folder: Path) -> str | None:
    """Return the commit that a folder stands at, with `-dirty` after changes; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def hardware(device: torch.device, devices: int = 1) -> dict[str, str | int]:
    """Return the names of the accelerator (or `cpu`) and the processor, and the number of threads."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"device": name, "devices": devices, "cpu": _processor(), "threads": torch.get_num_threads()}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
