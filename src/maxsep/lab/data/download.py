"""Fetch a file from the first mirror that has it: resumed when cut off, checked, and only then given its name."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from maxsep.files import sync_file, sync_folder
from maxsep.lab.data.lock import locked

Progress = Callable[[int, int], None]
"""Called with (bytes on disk, bytes in all) as data are downloaded or decoded."""

_CHUNK = 1 << 20
_FAILURES = (urllib.error.URLError, http.client.HTTPException, OSError, ValueError)
_MAX_STALLS = 3
"""Connections in a row that bring no new byte before a mirror is given up."""
_MAX_CONNECTIONS = 100
"""Connections to one mirror in a call, however many bytes each brings."""
_PAUSE = 0.5
"""Seconds to wait after the first of them; the next waits are longer."""
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG, errno.EIO})


class DownloadError(OSError):
    """Raised when no mirror gave the file; the message says what to do without a network."""


@dataclass(frozen=True)
class RemoteFile:
    """Identify a public file by what it is, not by where it lies.

    Args:
        name: Its file name.
        size: Its length in bytes.
        sha256: Its SHA-256 sum; nothing else is ever taken for it.
        urls: Where it may be found, best first.
        md5: The sum its authors published, if any; checked as well.
    """

    name: str
    size: int
    sha256: str
    urls: tuple[str, ...]
    md5: str | None = None

    def difference(self, path: Path) -> str:
        """Say in what a file on disk is not this one; empty if it is."""
        if (size := path.stat().st_size) != self.size:
            return f"{size} bytes instead of {self.size}" + _looks_like_html(path)
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                sha256.update(chunk)
                md5.update(chunk)
        if sha256.hexdigest() != self.sha256:
            return f"SHA-256 {sha256.hexdigest()} instead of {self.sha256}" + _looks_like_html(path)
        if self.md5 is not None and md5.hexdigest() != self.md5:
            return f"MD5 {md5.hexdigest()} instead of {self.md5}"
        return ""


def download(file: RemoteFile, folder: Path, *, timeout: float = 30.0, progress: Progress | None = None) -> Path:
    """Bring a file into a folder and return its path; a good copy that is there already is returned at once.

    Bytes are collected in a hidden `.NAME.part`, which a later call continues with an HTTP range request. The file
    gets its name only when length and sums are right, by an atomic rename after fsync, so a reader never sees a part
    of it. A lock makes a second process wait and then find the file done. A folder that was made in vain is removed.

    Args:
        file: What to fetch.
        folder: Where to put it; made if missing.
        timeout: Seconds without a byte before a connection is given up.
        progress: Called as bytes arrive.

    Raises:
        DownloadError: No mirror gave the right file; says why each failed and where to put the file by hand.
    """
    final, part = folder / file.name, folder / f".{file.name}.part"
    with locked(folder / f".{file.name}.lock"):
        if final.is_file():
            if reason := file.difference(final):
                raise DownloadError(
                    f"{final} is not the official file ({reason}). Delete it, then run the command again."
                )
            return final
        reasons = []
        for url in file.urls:
            reason = _from_mirror(file, url, part, timeout, progress)
            if not reason:
                _publish(part, final)
                return final
            reasons.append(f"  {url}: {reason}")
        if not _size(part):
            part.unlink(missing_ok=True)
        raise DownloadError(_offline_message(file, final, reasons))


def _from_mirror(file: RemoteFile, url: str, part: Path, timeout: float, progress: Progress | None) -> str:
    """Fill the part from one mirror; return why it failed, or an empty string when the part is the right file."""
    reason, stalls = "no answer", 0
    for _ in range(_MAX_CONNECTIONS):
        if stalls >= _MAX_STALLS:
            break
        before = _size(part)
        if before < file.size:
            try:
                _receive(file, url, part, timeout, progress)
                reason = f"connection closed after {_size(part)} of {file.size} bytes"
            except _WrongFileError as error:
                return str(error)
            except _FAILURES as error:
                _refuse_local_failure(error, file, part)
                reason = f"{type(error).__name__}: {error}"
        if _size(part) >= file.size:
            difference = file.difference(part)
            if not difference:
                return ""
            part.unlink()
            if before == 0:  # everything came from this mirror, so it does not have the file
                return difference
            reason, stalls = difference, stalls + 1
            continue
        stalls = 0 if _size(part) > before else stalls + 1
        time.sleep(_PAUSE * stalls if stalls < _MAX_STALLS else 0)
    return reason


class _WrongFileError(Exception):
    """The server answers, but not with the file."""


def _receive(file: RemoteFile, url: str, part: Path, timeout: float, progress: Progress | None) -> None:
    """Append what one connection gives to the part, never more than one byte beyond the file's length."""
    start = _size(part)
    headers = {"User-Agent": "maxsep", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    if not url.startswith(("http://", "https://")):
        raise _WrongFileError("only http and https addresses are used")
    request = urllib.request.Request(url, headers=headers)
    with _answer(request, timeout) as response:
        if response.headers.get_content_type() == "text/html":
            raise _WrongFileError("the server sends an HTML page instead of the file")
        if start and not _continues(response, start):
            start = 0  # the server ignores ranges and begins anew
        _check_length(file, response, start)
        with part.open("r+b" if part.exists() else "wb") as output:
            output.truncate(start)
            output.seek(start)
            done = start
            while done <= file.size and (chunk := response.read1(min(_CHUNK, file.size + 1 - done))):
                if done == start and _is_html(chunk):
                    raise _WrongFileError("the server sends an HTML page instead of the file")
                output.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(min(done, file.size), file.size)


@contextlib.contextmanager
def _answer(request: urllib.request.Request, timeout: float) -> Iterator[http.client.HTTPResponse]:
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (408, 425, 429, 500, 502, 503, 504):
            raise
        raise _WrongFileError(f"HTTP {error.code} {error.reason}") from error
    with response:
        yield response


def _continues(response: http.client.HTTPResponse, start: int) -> bool:
    span = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return response.status == 206 and span is not None and int(span[1]) == start


def _check_length(file: RemoteFile, response: http.client.HTTPResponse, start: int) -> None:
    told = response.headers.get("Content-Length", "")
    if told.isdigit() and start + int(told) != file.size:
        raise _WrongFileError(f"the server has {start + int(told)} bytes, the file has {file.size}")


def _refuse_local_failure(error: BaseException, file: RemoteFile, part: Path) -> None:
    """Tell a full or read-only disk from a bad network: no mirror would help."""
    if isinstance(error, OSError) and error.filename is not None and not isinstance(error, urllib.error.URLError):
        raise error
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        raise DownloadError(
            f"{part} could not be written: {error.strerror}. {file.name} needs {file.size} bytes; make room or "
            "choose another data folder, then run the command again: it continues where it stopped."
        ) from error


def _publish(part: Path, final: Path) -> None:
    sync_file(part)
    part.replace(final)
    sync_folder(final.parent)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _looks_like_html(path: Path) -> str:
    with path.open("rb") as file:
        return ", it is an HTML page" if _is_html(file.read(200)) else ""


def _is_html(start: bytes) -> bool:
    return start[:200].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def _offline_message(file: RemoteFile, final: Path, reasons: list[str]) -> str:
    tried = "\n".join(reasons) or "  (no address is known)"
    return (
        f"{file.name} could not be downloaded:\n{tried}\n"
        f"Without a network, fetch it elsewhere ({file.size} bytes, SHA-256 {file.sha256}) and put it at {final}, "
        "or set MAXSEP_MIRRORS to the address of a mirror that can be reached; then run the command again."
    )
