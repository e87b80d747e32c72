"""Unpacking: whole or not at all, and nothing outside the folder."""

import io
import random
import tarfile

import pytest

from maxsep.lab.data.archive import unpack
from maxsep.lab.data.checksums import SUMS


def member(name, content=b"", kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content), kind, link
    return info, content


def write(path, *members):
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


GOOD = (member("set/", kind=tarfile.DIRTYPE), member("set/a", b"one"), member("set/sub/b", b"two"))


def test_unpacks_with_sums_and_leaves_nothing_else(tmp_path, visible):
    folder = unpack(write(tmp_path / "x.tar.gz", *GOOD), tmp_path, "set", max_bytes=100)
    assert (folder / "a").read_bytes() == b"one"
    assert (folder / "sub" / "b").read_bytes() == b"two"
    assert (folder / SUMS).read_text().endswith("  a\n")
    assert visible(tmp_path) == ["set", "x.tar.gz"]
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["set"]


def test_folder_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "set").mkdir()
    assert unpack(tmp_path / "no such archive", tmp_path, "set", max_bytes=1) == tmp_path / "set"


def test_leftover_of_a_killed_process_is_removed(tmp_path):
    (tmp_path / ".set.dead" / "set").mkdir(parents=True)
    unpack(write(tmp_path / "x.tar.gz", *GOOD), tmp_path, "set", max_bytes=100)
    assert not (tmp_path / ".set.dead").exists()


BAD = {
    "zip slip": ([member("set/../../evil", b"x")], "outside the data folder"),
    "absolute": ([member("/tmp/evil", b"x")], "outside the data folder"),
    "backslash": ([member("set\\..\\evil", b"x")], "outside the data folder"),
    "drive": ([member("C:/evil", b"x")], "outside the data folder"),
    "other folder": ([member("evil/a", b"x")], "lies outside set/"),
    "dot": ([member("./", kind=tarfile.DIRTYPE)], "lies outside set/"),
    "symlink": ([member("set/l", kind=tarfile.SYMTYPE, link="/etc/passwd")], "link or a device"),
    "symlinked folder": (
        [member("set", kind=tarfile.SYMTYPE, link=".."), member("set/evil", b"x")],
        "link or a device",
    ),
    "hard link": ([member("set/l", kind=tarfile.LNKTYPE, link="/etc/passwd")], "link or a device"),
    "device": ([member("set/d", kind=tarfile.CHRTYPE)], "link or a device"),
    "pipe": ([member("set/p", kind=tarfile.FIFOTYPE)], "link or a device"),
    "bomb": ([member("set/zeros", bytes(10_000_000))], "beyond 1000 bytes in all"),
    "bomb in pieces": ([member(f"set/{i}", bytes(300)) for i in range(4)], "beyond 1000 bytes in all"),
    "twice": ([member("set/a", b"1"), member("set/a", b"2")], "is damaged"),
    "file as folder": ([member("set/a", b"1"), member("set/a/b", b"2")], "is damaged"),
    "nothing": ([], "has no folder set/"),
    "many": ([member(f"set/{i}") for i in range(30)], "more than 20 members"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_archive_is_refused_whole(tmp_path, monkeypatch, case):
    monkeypatch.setattr("maxsep.lab.data.archive._MAX_MEMBERS", 20)
    members, message = BAD[case]
    into = tmp_path / "deep" / "data"
    into.mkdir(parents=True)
    archive = write(tmp_path / "x.tar.gz", *members)
    with pytest.raises(ValueError, match=f"x.tar.gz.*{message}"):
        unpack(archive, into, "set", max_bytes=1000)
    assert [p.name for p in into.iterdir()] == [".set.lock"]
    assert {p.name for p in tmp_path.iterdir()} == {"deep", "x.tar.gz"}


def test_truncated_or_damaged_archive_is_named(tmp_path):
    noise = random.Random(0).randbytes(20_000)
    archive = write(tmp_path / "x.tar.gz", member("set/a", noise))
    content = archive.read_bytes()
    for wrong in [content[:n] for n in (0, 5, 100, 10_000, len(content) - 9)] + [b"<html>", noise]:
        archive.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"x.tar.gz is damaged.*fetch it again"):
            unpack(archive, tmp_path, "set", max_bytes=100_000)
        assert not (tmp_path / "set").exists()


def test_unwritable_disk_is_not_called_a_bad_archive(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("maxsep.lab.data.archive.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        unpack(write(tmp_path / "x.tar.gz", *GOOD), tmp_path, "set", max_bytes=100)
    assert not (tmp_path / "set").exists()
