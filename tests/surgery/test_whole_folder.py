import hashlib
import json
import random
from pathlib import Path

import pytest

from maxsep.surgery import whole_folder as folder_module
from maxsep.surgery.whole_folder import MANIFEST, verify_folder, write_folder

FILES = ("a.bin", "b.json")


def fill(text: str):
    def write(place: Path) -> None:
        (place / "a.bin").write_bytes(bytes(range(200)))
        (place / "b.json").write_text(text)

    return write


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    write_folder(tmp_path / "deep" / "saved", fill("one"))
    return tmp_path / "deep" / "saved"


def test_manifest_holds_size_and_checksum_of_every_file(saved):
    manifest = json.loads((saved / MANIFEST).read_text())
    assert manifest["files"]["a.bin"] == {"size": 200, "sha256": hashlib.sha256(bytes(range(200))).hexdigest()}
    verify_folder(saved, FILES)


def test_an_earlier_save_is_replaced_and_nothing_else_is_left(saved):
    write_folder(saved, fill("two"))
    assert (saved / "b.json").read_text() == "two"
    assert [path.name for path in saved.parent.iterdir()] == ["saved"]
    verify_folder(saved, FILES)


def test_other_folders_are_not_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"exists and is no folder that maxsep wrote, so it is not overwritten"):
        write_folder(tmp_path, fill("two"))
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize("step", ["write", "manifest", "sync", "rename"])
def test_failure_at_any_step_keeps_the_earlier_save(saved, monkeypatch, step):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    if step == "manifest":
        monkeypatch.setattr(folder_module, "sha256_of", full)
    if step == "sync":
        monkeypatch.setattr(folder_module.os, "fsync", full)
    if step == "rename":
        rename = Path.rename
        monkeypatch.setattr(Path, "rename", lambda a, b: full() if ".tmp-" in a.name else rename(a, b))
    with pytest.raises(OSError, match="No space left"):
        write_folder(saved, full if step == "write" else fill("two"))
    monkeypatch.undo()
    verify_folder(saved, FILES)
    assert (saved / "b.json").read_text() == "one"
    assert [path.name for path in saved.parent.iterdir()] == ["saved"]


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_every_flipped_bit_and_every_cut_is_noticed(saved, name):
    path = saved / name
    content = path.read_bytes()
    chance = random.Random(0)
    for _ in range(150):
        bit = chance.randrange(8 * len(content))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises((ValueError, FileNotFoundError), match=r"is damaged|cannot be read"):
            verify_folder(saved, FILES)
    for end in (0, 1, len(content) // 2, len(content) - 2):
        path.write_bytes(content[:end])
        with pytest.raises(ValueError, match=r"is damaged|cannot be read"):
            verify_folder(saved, FILES)
    path.write_bytes(content)
    verify_folder(saved, FILES)


def test_damage_is_told_with_file_and_both_checksums(saved):
    (saved / "a.bin").write_bytes(b"other")
    was, now = hashlib.sha256(bytes(range(200))).hexdigest(), hashlib.sha256(b"other").hexdigest()
    with pytest.raises(ValueError, match=rf"a\.bin is damaged: .*200 bytes, SHA-256 {was}.*5 bytes, SHA-256 {now}"):
        verify_folder(saved, FILES)


def test_missing_files(saved):
    (saved / "a.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.bin is missing. Copy the whole folder again"):
        verify_folder(saved, FILES)
    (saved / MANIFEST).unlink()
    with pytest.raises(FileNotFoundError, match=r"MANIFEST\.json is missing, so .* is not what maxsep\.save wrote"):
        verify_folder(saved, FILES)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere. Pass one that maxsep wrote"):
        verify_folder(saved / "nowhere", FILES)


def test_save_that_was_killed_between_its_two_renames_can_be_found(saved):
    saved.rename(saved.with_name(".saved.old-123"))
    with pytest.raises(FileNotFoundError, match=r"An earlier one was kept as .*\.saved\.old-123"):
        verify_folder(saved, FILES)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"format": 2, "files": {}}, "format 2, this version of maxsep reads format 1"),
        ({"format": 1, "files": {"../../etc/passwd": {}}}, "it lists .*passwd"),
        ([], "cannot be read"),
    ],
)
def test_manifests_that_say_something_else(saved, manifest, message):
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=message):
        verify_folder(saved, FILES)
