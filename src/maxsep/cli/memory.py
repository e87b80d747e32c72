"""How much memory is free, before something large is asked for."""

from __future__ import annotations

from pathlib import Path

_UNKNOWN = 4 * 2**30
_LIMIT = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that can be taken without being killed: what is free, within the limit of the control group.

    Where the system does not tell, 4 GiB are taken for granted.
    """
    found = [_free_memory(), _group_memory()]
    return min((size for size in found if size is not None), default=_UNKNOWN)


def _free_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration, IndexError):
        return None


def _group_memory() -> int | None:
    try:
        limit, used = (int((_LIMIT / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        return max(0, limit - used)
    except (OSError, ValueError):  # no control group, or no limit in it
        return None
