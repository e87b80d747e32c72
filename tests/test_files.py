import errno
import hashlib
import json
import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from maxsep import files
from maxsep.files import MANIFEST, replace_file, sync_folder, verify_folder, write_folder

NAMES = ("a.bin", "b.json")


def fill(text: str):
    def write(folder: Path) -> None:
        (folder / "a.bin").write_bytes(bytes(range(200)))
        (folder / "b.json").write_text(text)

    return write


def failing(number: int):
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return fail


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    write_folder(tmp_path / "deep" / "saved", fill("one"))
    return tmp_path / "deep" / "saved"


def test_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    path, write = tmp_path / "file", os.write
    replace_file(path, b"old")
    monkeypatch.setattr(os, "write", lambda handle, view: write(handle, view[:3]))  # short writes are continued
    replace_file(path, b"new and longer")
    assert path.read_bytes() == b"new and longer"
    assert names_in(tmp_path) == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


REFUSED = [errno.ENOSPC, errno.EDQUOT, errno.EACCES]


@pytest.mark.parametrize("number", REFUSED)
@pytest.mark.parametrize("function", ["write", "fsync", "replace"])
def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch, function, number):
    path = tmp_path / "file"
    replace_file(path, b"old")
    monkeypatch.setattr(os, function, failing(number))
    with pytest.raises(OSError, match=os.strerror(number)) as error:
        replace_file(path, b"new")
    assert error.value.filename == str(path)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["file"]


@pytest.mark.parametrize("parent", ["missing", "file"])
def test_errors_name_the_path_of_the_caller_and_no_temporary_one(tmp_path, parent):
    (tmp_path / "file").touch()
    path = tmp_path / parent / "P.npy"
    with pytest.raises(OSError, match="directory") as error:
        replace_file(path, b"")
    assert (error.value.filename, error.value.filename2) == (str(path), None)
    with pytest.raises(OSError, match="directory") as error:
        write_folder(tmp_path / "out", lambda folder: replace_file(folder / parent / "part", b""))
    assert error.value.filename == str(tmp_path / "out" / parent / "part")


@pytest.mark.parametrize("function", ["open", "fsync"])
def test_folders_that_cannot_be_flushed_are_no_error_but_a_failing_disk_is(tmp_path, monkeypatch, function):
    monkeypatch.setattr(os, function, failing(errno.EINVAL))
    sync_folder(tmp_path)
    monkeypatch.setattr(os, function, failing(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        sync_folder(tmp_path)


def test_manifest_holds_size_and_checksum_of_every_file(saved):
    manifest = json.loads((saved / MANIFEST).read_text())
    assert manifest["files"]["a.bin"] == {"size": 200, "sha256": hashlib.sha256(bytes(range(200))).hexdigest()}
    verify_folder(saved, NAMES)


def test_an_earlier_folder_is_replaced_and_nothing_else_is_left(saved):
    write_folder(saved, fill("two"))
    verify_folder(saved, NAMES)
    assert (saved / "b.json").read_text() == "two"
    assert names_in(saved.parent) == ["saved"]


@pytest.mark.parametrize("number", REFUSED)
@pytest.mark.parametrize("step", ["write", "hash", "fsync", "rename"])
def test_failure_at_any_step_keeps_the_earlier_folder(saved, monkeypatch, step, number):
    full, rename = failing(number), Path.rename
    if step == "hash":
        monkeypatch.setattr(files, "sha256_of", full)
    if step == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    if step == "rename":
        monkeypatch.setattr(Path, "rename", lambda a, b: full() if ".tmp-" in a.name else rename(a, b))
    with pytest.raises(OSError, match=os.strerror(number)):
        write_folder(saved, full if step == "write" else fill("two"))
    monkeypatch.undo()
    verify_folder(saved, NAMES)
    assert (saved / "b.json").read_text() == "one"
    assert names_in(saved.parent) == ["saved"]


KILLED = """
import os, runpy, sys
from pathlib import Path
source, folder, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
calls = 0
def audit(event, arguments):
    global calls
    if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir") and str(folder.parent) in str(arguments[0]):
        calls += 1
        if calls > last:
            os._exit(9)
write_folder = runpy.run_path(source)["write_folder"]
sys.addaudithook(audit)
write_folder(folder, lambda place: [(place / name).write_text("two") for name in ("a.bin", "b.json")] and None)
"""


def test_process_killed_at_any_step_leaves_the_old_folder_or_the_new_one(saved):
    contents, code, step = [], 9, 0
    while code == 9:
        step += 1
        command = [sys.executable, "-S", "-c", KILLED, files.__file__, str(saved), str(step)]
        code = subprocess.run(command, check=False).returncode
        if not saved.exists():  # killed between the two renames: the error has the place of the old folder
            (earlier,) = saved.parent.glob(".saved.old-*")
            with pytest.raises(FileNotFoundError, match=earlier.name):
                verify_folder(saved, NAMES)
            earlier.rename(saved)
            contents.append("moved")
        verify_folder(saved, NAMES)
        contents.append((saved / "b.json").read_text())
    assert code == 0
    assert list(dict.fromkeys(contents)) == ["one", "moved", "two"]
    assert contents.count("one") > 5


@pytest.mark.parametrize("name", [*NAMES, MANIFEST])
def test_flipped_bits_cuts_and_additions_are_refused(saved, name):
    path = saved / name
    content, chance = path.read_bytes(), random.Random(0)
    damaged = [bytearray(content) for _ in range(300)]
    for version in damaged:
        version[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    damaged += [content[:end] for end in range(len(content))] + [content + b"\n", content + b"\0"]
    for version in damaged:
        path.write_bytes(version)
        with pytest.raises(ValueError, match="damaged"):
            verify_folder(saved, NAMES)
    path.write_bytes(content)
    verify_folder(saved, NAMES)


@pytest.mark.parametrize("name", ["a.bin", MANIFEST, ""])
def test_missing_files_are_named(saved, name):
    (saved / name).rename(saved.parent / "elsewhere")
    with pytest.raises(FileNotFoundError, match=name or "saved"):
        verify_folder(saved, NAMES)


@pytest.mark.parametrize("manifest", [{"format": 2, "files": {}}, {"format": 1, "files": {"../../etc/passwd": {}}}, []])
def test_manifests_of_other_contents_are_refused(saved, manifest):
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=MANIFEST):
        verify_folder(saved, NAMES)
    with pytest.raises(ValueError, match=MANIFEST):
        verify_folder(saved, NAMES[:1])


def test_the_manifest_lists_every_file_and_no_other(saved):
    with pytest.raises(ValueError, match=MANIFEST):
        verify_folder(saved, NAMES[:1])
    manifest = json.loads((saved / MANIFEST).read_text())
    del manifest["files"]["b.json"]
    (saved / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    with pytest.raises(ValueError, match=MANIFEST):
        verify_folder(saved, NAMES)


def test_a_folder_with_files_of_somebody_else_is_not_replaced(tmp_path):
    saved = tmp_path / "saved"
    write_folder(saved, fill("one"))
    (saved / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="saved"):
        write_folder(saved, fill("two"))
    assert (saved / "thesis.tex").read_text() == "years of work"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / MANIFEST).write_text("{}")
    with pytest.raises(ValueError, match="other"):
        write_folder(tmp_path / "other", fill("two"))


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"a":' * 5_000, b"\xff{}", b"[]", b"null", b"", b"{", b"1" * 5_000]
)
def test_what_is_no_json_object_is_one_line(tmp_path, content, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json[^\n]*$"):
        files.read_json(path)
    path.write_bytes(b'{"a": 1}')
    assert files.read_json(path) == {"a": 1}
    monkeypatch.setattr(files, "JSON_BYTES", 7)
    with pytest.raises(ValueError, match=r"a\.json"):
        files.read_json(path)
