"""A lock between processes that the operating system drops when its holder dies."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_ATTEMPTS = 20
"""Times in a row that others may remove a folder before its file is there; what fails so often cannot be made."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file while the block runs; other processes and threads wait.

    Folders of the file that are missing are made. The empty lock file stays, unless the block fails and leaves nothing
    else in the folders that were made for it: then they go with it, and who waits for that file makes a new one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, locked(Path(folder) / "new" / "data.lock"):
    ...     print("alone")
    alone
    """
    handle, made = _hold(path)
    try:
        yield
    except BaseException:
        _leave_nothing(path, made)
        raise
    finally:
        os.close(handle)


def _hold(path: Path) -> tuple[int, list[Path]]:
    """Lock the file that has this name; return it, and the folders that were made for it, the innermost first."""
    while True:
        handle, made = _open(path)
        try:
            _acquire(handle)
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle, made
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # removed while we waited: a third process may hold a new file of the same name


def _open(path: Path) -> tuple[int, list[Path]]:
    """Open a file, made if missing as are its folders; again if a process that failed removes these meanwhile."""
    attempts = _ATTEMPTS
    while True:
        made = [folder for folder in path.parents if not folder.exists()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666), made
        except (FileNotFoundError, FileExistsError):
            attempts -= 1
            if not attempts:
                raise


def _leave_nothing(path: Path, made: list[Path]) -> None:
    with contextlib.suppress(OSError):  # somebody else's file is there, or the system removes no open file
        if made and list(path.parent.iterdir()) == [path]:
            path.unlink()
            for folder in made:
                folder.rmdir()


if sys.platform == "win32":
    import msvcrt
    import time

    def _acquire(handle: int) -> None:
        while True:
            try:
                return msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            except OSError:
                time.sleep(0.2)

else:
    import fcntl

    def _acquire(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX)
