"""SHA256SUMS beside data."""

import hashlib
import subprocess

import pytest

from maxsep.files import sha256_of
from maxsep.lab.data.checksums import SUMS, record, verify


def test_record_is_what_sha256sum_reads(tmp_path):
    for name in ("b", "a name with spaces"):
        (tmp_path / name).write_text(name)
    record(tmp_path, ["b"])
    record(tmp_path, ["a name with spaces"])
    lines = (tmp_path / SUMS).read_text().splitlines()
    assert lines[1] == f"{hashlib.sha256(b'b').hexdigest()}  b"
    subprocess.run(["sha256sum", "--check", "--quiet", SUMS], cwd=tmp_path, check=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [SUMS, "a name with spaces", "b"]


def test_verify(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"one")
    verify(path)  # no list, nothing to check
    record(tmp_path, ["x"])
    verify(path)
    verify(path, b"one")
    path.write_bytes(b"two")
    with pytest.raises(ValueError, match=f"x is damaged: its SHA-256 is {sha256_of(path)}, .*fetch the data again"):
        verify(path)
    (tmp_path / "unlisted").write_bytes(b"")
    verify(tmp_path / "unlisted")


def test_damaged_list_is_an_error(tmp_path):
    (tmp_path / SUMS).write_bytes(b"nonsense\xff\n")
    with pytest.raises(ValueError, match=r"SHA256SUMS holds the line 'nonsense.*no SHA-256 sum"):
        verify(tmp_path / "x")
