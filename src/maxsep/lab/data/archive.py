"""Unpack a tar archive into a folder that appears whole or not at all."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from maxsep.files import sync_folder
from maxsep.lab.data.checksums import record
from maxsep.lab.data.lock import locked

_CHUNK = 1 << 20
_MAX_MEMBERS = 10_000


def unpack(archive: Path, into: Path, folder: str, *, max_bytes: int) -> Path:
    """Unpack the one top folder of a tar.gz archive, and return its path `into / folder`.

    Members are written by us, not by tarfile: plain files and folders below `folder` only; links, devices, absolute
    names, `..` and more than `max_bytes` are refused. All goes to a hidden temporary folder, gets a SHA256SUMS, and
    is renamed at the end. A folder that is there already is left alone.

    Raises:
        ValueError: The archive is damaged or holds what it should not; it names the archive and the member.
    """
    final = into / folder
    with locked(into / f".{folder}.lock"):
        if final.is_dir():
            return final
        for stale in into.glob(f".{folder}.*/"):  # left by a process that was killed; we hold the lock
            shutil.rmtree(stale, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder}.", dir=into))
        try:
            _write_members(archive, temporary, folder, max_bytes)
            unpacked = temporary / folder
            if not unpacked.is_dir():
                raise ValueError(f"{archive} has no folder {folder}/. It is not the archive that was expected.")
            record(unpacked, sorted(p.name for p in unpacked.iterdir() if p.is_file()))
            unpacked.replace(final)
            sync_folder(into)
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and not _is_damage(error):
                raise
            raise ValueError(
                f"{archive} is damaged ({type(error).__name__}: {error}). Delete it and fetch it again."
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return final


def _is_damage(error: OSError) -> bool:
    """Tell a broken archive (bad gzip data, two members of one name) from a disk that fails."""
    return error.errno is None or isinstance(error, FileExistsError | NotADirectoryError | IsADirectoryError)


def _write_members(archive: Path, temporary: Path, folder: str, max_bytes: int) -> None:
    """Write the plain files of an archive, counting members and bytes as they come."""
    left = max_bytes
    # gzip's own reader, because tarfile's stream does not check the sum at the end of the compressed data.
    with gzip.open(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for number, member in enumerate(tar):
            if number >= _MAX_MEMBERS:
                raise ValueError(f"{archive} has more than {_MAX_MEMBERS} members. {_REFUSED}")
            target = temporary / _safe_name(archive, member, folder)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            if member.size > left:
                raise ValueError(f"{archive}: {member.name} unfolds beyond {max_bytes} bytes in all. {_REFUSED}")
            left -= member.size
            _write_file(tar, member, target)
        while stream.read(_CHUNK):
            left -= _CHUNK
            if left < -_CHUNK:
                raise ValueError(f"{archive} goes on after its last member. {_REFUSED}")


def _safe_name(archive: Path, member: tarfile.TarInfo, folder: str) -> PurePosixPath:
    name = PurePosixPath(member.name)
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise ValueError(f"{archive}: {member.name} is a link or a device, not a file. {_REFUSED}")
    if name.is_absolute() or ".." in name.parts or "\\" in member.name or ":" in member.name:
        raise ValueError(f"{archive}: {member.name} would be written outside the data folder. {_REFUSED}")
    if not name.parts or name.parts[0] != folder:
        raise ValueError(f"{archive}: {member.name} lies outside {folder}/. {_REFUSED}")
    return name


def _write_file(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    assert source is not None  # only regular files come here
    with source, target.open("xb") as output:
        shutil.copyfileobj(source, output, _CHUNK)
        output.flush()
        os.fsync(output.fileno())
        if output.tell() != member.size:
            raise tarfile.ReadError(f"{member.name} ends early")


_REFUSED = "Nothing was unpacked; delete the archive and fetch the official one."
