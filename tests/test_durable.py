import errno
import hashlib
import os
import stat

import pytest

from maxsep.durable import replace_file, sha256_of, sync_folder


def test_content_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "file"
    replace_file(path, b"old")
    replace_file(path, b"new and longer")
    assert path.read_bytes() == b"new and longer"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_short_writes_are_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, view: write(handle, view[:3]))
    replace_file(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


@pytest.mark.parametrize("function", ["write", "fsync", "replace"])
def test_a_failed_write_keeps_the_old_content(tmp_path, monkeypatch, function):
    path = tmp_path / "file"
    replace_file(path, b"old")

    def fail(*args, **kwargs):
        raise OSError("full")

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OSError, match="full"):
        replace_file(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("function", ["open", "fsync"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL])
def test_a_system_that_cannot_synchronise_folders_is_no_error(tmp_path, monkeypatch, function, number):
    monkeypatch.setattr(os, function, failing(number))
    sync_folder(tmp_path)


@pytest.mark.parametrize("function", ["open", "fsync"])
def test_a_failing_disk_is_one(tmp_path, monkeypatch, function):
    monkeypatch.setattr(os, function, failing(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        sync_folder(tmp_path)


def failing(number):
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return fail


def test_a_file_is_hashed(tmp_path):
    (tmp_path / "file").write_bytes(b"abc" * 100_000)
    assert sha256_of(tmp_path / "file") == hashlib.sha256(b"abc" * 100_000).hexdigest()
