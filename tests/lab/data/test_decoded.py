"""Pictures that are decoded once: the files, what becomes of them, and two processes that want them at a time."""

import json
import resource
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from maxsep.lab.data import decoded
from maxsep.lab.data.decode import decode
from maxsep.lab.data.decoded import Listed, mark_of, read_decoded


@pytest.fixture
def split(tmp_path):
    paths = []
    for number in range(7):
        path = tmp_path / "pictures" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (20, 24 + number, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        paths.append(path)
    return Listed(("a", "b", "c"), (tuple(paths[:4]), (), tuple(paths[4:])))


def never():
    raise AssertionError("pictures were looked for although they are decoded")


def test_the_images_are_those_of_the_files(tmp_path, split, monkeypatch):
    monkeypatch.setattr(decoded, "BLOCK", 3)
    told = []
    images, mark = read_decoded(tmp_path / "kept/train", 16, lambda: split, progress=lambda *done: told.append(done))
    expected, _ = decode(split.files, (3, 16, 16))
    assert torch.equal(images.images, torch.from_numpy(expected))
    assert images.labels.tolist() == [0] * 4 + [2] * 3
    assert images.classes == ("a", "b", "c")
    assert mark == split.mark == mark_of(tmp_path / "kept/train", 16)
    assert mark_of(tmp_path / "kept/train", 17) is None
    each = 3 * 16 * 16
    assert told == [(3 * each, 7 * each), (6 * each, 7 * each), (7 * each, 7 * each)]


def test_later_the_pictures_need_not_be_there(tmp_path, split):
    first, _ = read_decoded(tmp_path / "kept/train", 16, lambda: split)
    shutil.rmtree(tmp_path / "pictures")
    again, _ = read_decoded(tmp_path / "kept/train", 16, never)
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.labels, again.labels)
    assert sorted(path.name for path in (tmp_path / "kept").glob("[!.]*")) == ["train-16.json", "train-16.npy"]


def test_more_images_than_memory_holds_are_mapped(tmp_path):
    count = 2**33  # a file of six terabytes, of which nothing is on the disk
    with (tmp_path / "train-16.npy").open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, 3, 16, 16)}
        np.lib.format.write_array_header_1_0(file, header)
        try:
            file.truncate(file.tell() + count * 3 * 16 * 16)
        except OSError:
            pytest.skip("the file system has no files of six terabytes")
    array = np.load(tmp_path / "train-16.npy", mmap_mode="r")
    assert array.shape[0] == count
    del array
    # its labels would not fit, so a smaller number of images stands for opening it
    images, about = tmp_path / "train-16.npy", tmp_path / "train-16.json"
    about.write_text(json.dumps({"classes": ["a"], "counts": [7], "mark": ""}))
    with pytest.raises(ValueError, match=r"are not what was decoded \(an array uint8 \(8589934592, 3, 16, 16\) for 7"):
        read_decoded(tmp_path / "train", 16, never)
    assert images.is_file()


def test_other_pictures_than_those_that_were_decoded_are_told(tmp_path, split):
    read_decoded(tmp_path / "kept/train", 16, lambda: split)
    read_decoded(tmp_path / "kept/train", 16, never, lambda: {"a": 4, "c": 3})
    for now in ({"a": 4, "c": 4}, {"a": 4, "d": 3}):
        with pytest.raises(
            ValueError, match=r"train-16.npy has 7 pictures of 3 classes, and .* Delete it and train-16.json"
        ):
            read_decoded(tmp_path / "kept/train", 16, never, lambda now=now: now)


def test_a_picture_that_cannot_be_read_leaves_nothing(tmp_path, split):
    split.files[5].write_text("no picture")
    with pytest.raises(ValueError, match=r"5.png cannot be read as an image"):
        read_decoded(tmp_path / "kept/train", 16, lambda: split)
    assert not (tmp_path / "kept").exists()


def test_all_pictures_that_cannot_be_read_are_named_at_once(tmp_path, split, monkeypatch):
    monkeypatch.setattr(decoded, "BLOCK", 2)
    monkeypatch.setattr(decoded, "_SHOWN", 2)
    for place in (1, 4, 6):
        split.files[place].write_text("no picture")
    with pytest.raises(ValueError, match=r"1.png cannot be read.*\n.*4.png cannot be read.*\nand 1 more\."):
        read_decoded(tmp_path / "kept/train", 16, lambda: split)


def test_a_disk_that_fills_up_is_an_error(tmp_path, split, monkeypatch):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
        with pytest.raises(OSError, match="File too large"):
            read_decoded(tmp_path / "kept/train", 16, lambda: split)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.glob("kept/*.npy*"))


def test_a_full_disk_is_told_before_the_work(tmp_path, split, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(OSError, match=r"train-16.npy will have 0.0 GB, and 0.0 GB are free there. Make room, or name"):
        read_decoded(tmp_path / "kept/train", 16, lambda: split)


@pytest.mark.parametrize("damage", ["counts", "classes", "json", "images", "cut"])
def test_files_that_do_not_belong_together(tmp_path, split, damage):
    read_decoded(tmp_path / "kept/train", 16, lambda: split)
    images, about = tmp_path / "kept/train-16.npy", tmp_path / "kept/train-16.json"
    told = json.loads(about.read_text())
    if damage == "counts":
        about.write_text(json.dumps(told | {"counts": [4, 0, 4]}))
    elif damage == "classes":
        about.write_text(json.dumps(told | {"classes": ["a", "b"]}))
    elif damage == "json":
        about.write_text("{")
    elif damage == "images":
        images.unlink()
    else:
        images.write_bytes(images.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"are not what was decoded \(.*\). Delete both, and they are made anew."):
        read_decoded(tmp_path / "kept/train", 16, never)


def test_what_a_killed_process_left_goes(tmp_path, split):
    code = (
        "import sys, os, signal; from pathlib import Path; from maxsep.lab.data import decoded\n"
        "split = decoded.Listed(('a',), (tuple(sorted(Path(sys.argv[1]).iterdir())),))\n"
        "die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "decoded.read_decoded(Path(sys.argv[2]) / 'train', 16, lambda: split, progress=die)"
    )
    arguments = [str(tmp_path / "pictures"), str(tmp_path / "kept")]
    killed = subprocess.run([sys.executable, "-c", code, *arguments], timeout=120, check=False)
    assert killed.returncode == -9
    assert len(list((tmp_path / "kept").glob(".train-16.npy.tmp-*"))) == 1
    images, _ = read_decoded(tmp_path / "kept/train", 16, lambda: split)
    assert torch.equal(images.images, torch.from_numpy(decode(split.files, (3, 16, 16))[0]))
    assert not list((tmp_path / "kept").glob("*.tmp-*"))


def test_of_two_processes_one_decodes(tmp_path, split):
    code = (
        "import sys; from pathlib import Path; from maxsep.lab.data.decoded import Listed, read_decoded\n"
        "def pictures():\n"
        "    print('decodes', flush=True); files = sorted(Path(sys.argv[1]).iterdir())\n"
        "    return Listed(('a',), (tuple(files),))\n"
        "print(read_decoded(Path(sys.argv[2]) / 'train', 16, pictures)[0].images.sum().item())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "pictures"), str(tmp_path / "kept")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate(timeout=120)[0].split() for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(map(len, said)) == [1, 2]
    assert said[0][-1] == said[1][-1]
