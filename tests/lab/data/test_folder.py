"""Folders of pictures: read in order, nothing dropped silently; files as bytes; ImageNet decoded once."""

import hashlib
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from maxsep.lab.data import Dataset, decoding, prepare
from maxsep.lab.data.decoding import decode
from maxsep.lab.data.folder import list_folder
from maxsep.lab.data.images import hold_out, labels_of
from maxsep.lab.data.listing import FolderError, Pictures, clean_listing
from maxsep.lab.spec import RunSpec


def read(path, size=32):
    return Dataset.parse(f"folder:{path}?size={size}").read()


def picture(path, colour=None, size=(32, 32), mode="RGB"):
    """Write a picture of one colour, by default one that no other path has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(str(path).encode()).digest()
    Image.new(mode, size, tuple(digest[:3]) if colour is None else colour).save(path)


def fill(path, *folders):
    for name in folders:
        for i in range(2):
            picture(path / name / f"{i}.png")


@pytest.fixture
def tree(tmp_path):
    """Two classes of five images each; the red level is the number of the image."""
    for number, name in enumerate(("cat", "dog")):
        for i in range(5):
            picture(tmp_path / name / f"{i}.png", (10 * number + i, 0, 200))
    return tmp_path


def test_every_image_is_read_with_a_fixed_stratified_split(tree):
    data = read(tree)
    assert data.train.classes == ("cat", "dog")
    assert (data.train.class_counts, data.test.class_counts) == ([3, 3], [2, 2])
    assert data.test.images[:, 0, 0, 0].tolist() == [0, 2, 10, 12], "the same everywhere"
    red = torch.cat([data.train.images, data.test.images])[:, 0, 0, 0]
    assert sorted(red.tolist()) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert (red // 10).tolist() == torch.cat([data.train.labels, data.test.labels]).tolist()
    assert data.train.images[:4, 0, 0, 0].tolist() == sorted(data.train.images[:4, 0, 0, 0].tolist())
    assert data.test.files == tuple(tree / name / f"{i}.png" for name in ("cat", "dog") for i in (0, 2))
    (tree / "cat").rename(tree / "train")
    assert read(tree).train.classes == ("dog", "train"), "a class may be called train"


@pytest.mark.parametrize("second", ["test", "val"])
def test_own_splits_are_kept(tmp_path, second):
    for split, n in (("train", 3), (second, 2)):
        for name in ("b", "a"):
            for i in range(n):
                picture(tmp_path / split / name / "deeper" / f"{i}.JPG")
    for name in (".DS_Store", "Thumbs.db", "boxes.txt", "README", "labels.csv", ".hidden.png"):
        (tmp_path / name).write_text("passed over")
        (tmp_path / "train" / "a" / name).write_text("passed over")
    data = read(tmp_path, 8)
    assert data.train.classes == ("a", "b")
    assert (len(data.train), len(data.test), data.train.shape) == (6, 4, (3, 8, 8))
    (tmp_path / second / "a" / "deeper" / "0.JPG").rename(tmp_path / second / "a" / "9.JPG")
    assert list_folder(tmp_path).fingerprint != data.fingerprint, "it covers both splits"


def test_the_fingerprint_is_that_of_names_and_sizes(tree):
    first = list_folder(tree).fingerprint
    assert re.fullmatch("[0-9a-f]{12}", first)
    (tree / "cat" / "notes.txt").write_text("no picture")
    (tree / "cat" / "0.png").touch()
    moved = tree.rename(tree.with_name("moved"))
    assert list_folder(moved).fingerprint == first
    path, found = moved / "cat" / "0.png", {first}
    for name in ("cat/5.png", "dog/5.png"):  # another name, another class
        path = path.rename(moved / name)
        found.add(list_folder(moved).fingerprint)
    path.write_bytes(path.read_bytes() + b"x")
    assert len(found | {list_folder(moved).fingerprint}) == 4


SPOIL = {
    "cat/2.png": lambda path: path.write_bytes(path.read_bytes()[:50]),
    "cat/0.png": lambda path: Image.new("RGB", (33, 33)).save(path),  # so large that it may be a decompression bomb
    "emu": lambda path: path.mkdir(),
    "dog/model.pt": lambda path: path.write_bytes(b"x"),
    "loose.png": lambda path: picture(path),
    "dog/9.tif": lambda path: Image.new("F", (32, 32), 0.5).save(path),
    "dog/8.png": lambda path: path.touch(),
    "dog/7.png": lambda path: path.write_bytes((path.parent / "0.png").read_bytes()),
    "elk": lambda path: picture(path / "only.png"),
    "dog/more": lambda path: path.symlink_to(path.parent.parent / "cat", target_is_directory=True),
    "dog/link.png": lambda path: path.symlink_to("nowhere"),
    "dog/pipe.png": os.mkfifo,  # reading it would wait for ever
}


@pytest.fixture
def spoiled(tree, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 32 * 32)
    for name, spoil in SPOIL.items():
        spoil(tree / name)
    return tree


def test_all_that_cannot_be_used_is_named_at_once(spoiled):
    with pytest.raises(FolderError) as caught:
        read(spoiled)
    lines = caught.value.problems
    assert str(caught.value).count("\n") == len(lines) == len(SPOIL)
    assert "--skip-broken" in str(pickle.loads(pickle.dumps(caught.value)))
    assert all(sum(name.split("/")[-1] in line for line in lines) >= 1 for name in SPOIL)
    assert pickle.loads(pickle.dumps(caught.value)).problems == lines, "processes hand it on"


def test_a_picture_that_may_not_be_read_is_one_of_the_problems(tree, monkeypatch):
    real = Path.read_bytes
    for name in ("cat", "dog"):  # of equal size, as if they were the same
        picture(tree / name / "locked.bmp")
    monkeypatch.setattr(Path, "read_bytes", lambda path: real(path / "gone" if path.stem == "locked" else path))
    with pytest.raises(FolderError) as caught:
        read(tree)
    assert len(caught.value.problems) == 2
    assert Dataset.parse(f"folder:{tree}?skip_broken=1").listing().skipped == 2


def test_skipping_what_is_broken_leaves_the_rest(spoiled):
    name = f"folder:{spoiled}?size=32&skip_broken=1"
    data, dataset = Dataset.parse(name).read(), Dataset.parse(name)
    assert data.train.classes == ("cat", "dog")
    kept = {str(file.relative_to(spoiled)) for file in (*data.train.files, *data.test.files)}
    assert kept == {"cat/1.png", "cat/3.png", "cat/4.png", *(f"dog/{i}.png" for i in range(5))}
    assert (dataset.listing().skipped, dataset.train_counts()) == (len(SPOIL), data.train.class_counts)
    assert dataset.fingerprint() == data.fingerprint != Dataset.parse(f"folder:{spoiled}").fingerprint()
    (spoiled / "cat" / "1.png").write_bytes(b"")
    assert dataset.listing().skipped == len(SPOIL) + 1, "the files are looked at again once they change"


def test_tens_of_thousands_of_classes_take_no_time(tmp_path):
    classes = Pictures(tuple(map(str, range(30_000))), 30_000 * ((tmp_path, tmp_path),))
    began = time.process_time()
    assert clean_listing(tmp_path, classes, classes, []).train.classes == classes.classes
    assert time.process_time() - began < 1
    assert len(hold_out(labels_of(40_000 * [8]), 0.5)[0]) == 160_000
    assert time.process_time() - began < 1


def test_a_test_picture_that_is_trained_on_is_a_problem(tmp_path):
    fill(tmp_path, "train/a", "train/b", "test/a", "test/b")
    shutil.copy(tmp_path / "train/a/0.png", tmp_path / "test/b/copy.png")
    with pytest.raises(FolderError, match=r"test/b/copy\.png"):
        read(tmp_path)
    data = Dataset.parse(f"folder:{tmp_path}?skip_broken=1").read()
    assert (data.train.class_counts, data.test.class_counts) == ([2, 2], [2, 2]), "the training picture stays"


@pytest.mark.parametrize("is_there", [True, False])
def test_heic_is_read_where_its_package_is_and_else_counted(tree, monkeypatch, is_there):
    heif = pytest.importorskip("pillow_heif")
    for i in range(3):
        heif.from_pillow(Image.new("RGB", (32, 32), (0, 80 * i, 0))).save(tree / "cat" / f"{i}.HEIC")
    if is_there:
        assert sum(read(tree).train.class_counts) == 6 + 3
        return
    monkeypatch.setattr("maxsep.lab.data.folder.IMAGE_SUFFIXES", decoding.IMAGE_SUFFIXES - decoding.HEIC_SUFFIXES)
    with pytest.warns(UserWarning, match="3 HEIC"):
        assert sum(read(tree).train.class_counts) == 6


def test_many_images_are_decoded_once_and_mapped(tree, monkeypatch):
    before = read(tree)
    monkeypatch.setattr("maxsep.lab.data.listing.MAPPED", 0)
    monkeypatch.setenv("MAXSEP_CACHE", str(tree / ".cache"))
    Dataset.parse("digits").read()  # the dataset read last is kept
    after = read(tree)
    assert after.train.rows is not None
    for part in ("train", "test"):
        one, other = getattr(before, part), getattr(after, part)
        assert torch.equal(torch.cat([*one.batches(4)]), torch.cat([*other.batches(4)]))
        assert (one.files, one.class_counts) == (other.files, other.class_counts)
    chosen = torch.tensor([4, 1])
    assert torch.equal(after.train.subset(chosen).batch(torch.tensor([0]))[0], before.train.images[[4]])
    assert after.train.subset(chosen).images is after.train.images, "nothing is copied into memory"
    shutil.copy(tree / "cat" / "0.png", tree / "cat" / "new.png")
    with pytest.raises(FolderError, match=r"cat/(0|new)\.png"):
        read(tree)  # the copy is found, and the cache is not taken for the changed folder
    (tree / "cat" / "new.png").unlink()
    monkeypatch.setattr(decoding, "decode", lambda *_: pytest.fail("decoded again"))
    Dataset.parse("digits").read()
    assert torch.equal(torch.cat([*read(tree).test.batches(4)]), before.test.images)


def test_splits_that_do_not_fit(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="at least two class folders"):
        read(tmp_path)
    fill(tmp_path, "train/a", "train/b", "test/a", "test/b", "test/c")
    with pytest.raises(ValueError, match="at least two class folders") as alone:
        read(tmp_path / "train/a")
    assert "\n" not in str(alone.value), "loose pictures are no problem of their own there"
    with pytest.raises(ValueError, match="'c'"):
        read(tmp_path)
    (tmp_path / "val").mkdir()
    with pytest.raises(ValueError, match="train/, test/ and val/"):
        read(tmp_path)
    (tmp_path / "val").rename(tmp_path / "extra")
    with pytest.raises(ValueError, match="extra/"):
        read(tmp_path)


@pytest.mark.parametrize("parts", [["train"], ["test"], ["test", "val"], ["train", "valid"], ["test", "training"]])
def test_half_a_split_says_what_is_missing(tmp_path, parts):
    missing = "test/ or val/" if "train" in parts else "train/"
    fill(tmp_path, *(f"{split}/{name}" for split in parts for name in ("a", "b")))
    with pytest.raises(ValueError, match=re.escape(f"but no {missing}")) as caught:
        read(tmp_path)
    assert str(tmp_path / parts[0]) in str(caught.value)
    assert read(tmp_path / parts[0]).train.classes == ("a", "b"), "what the message proposes works"


def test_modes_become_rgb_and_photographs_are_turned_upright(tmp_path):
    picture(tmp_path / "0.png", 7, mode="L")
    picture(tmp_path / "1.png", (7, 7, 7, 200), mode="RGBA")
    picture(tmp_path / "2.png", 1, mode="1")
    palette = Image.new("P", (32, 32), 0)
    palette.putpalette([7, 7, 7] * 256)
    palette.save(tmp_path / "3.png", transparency=bytes(256))
    half, turned = np.zeros((32, 32, 3), np.uint8), Image.Exif()
    half[:16], turned[0x0112] = 250, 3  # stored upside down
    Image.fromarray(half).save(tmp_path / "4.png", exif=turned)
    (tmp_path / "5.png").write_bytes(b"no image")
    array, errors = decode([tmp_path / f"{i}.png" for i in range(7)], (3, 32, 32))
    assert sorted(errors) == [5, 6], "what cannot be read does not stop the others"
    assert str(tmp_path / "5.png") in str(errors[5])
    assert array[:4].reshape(4, -1).mean(1).tolist() == [7, 7, 255, 7]
    assert (array[4, 0, 0, 0], array[4, 0, 31, 0]) == (0, 250)


def test_colours_become_grey_and_grey_becomes_colours(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    for name, array in (("a", pixels), ("b", pixels[..., 0])):
        Image.fromarray(array).save(tmp_path / f"{name}.png")
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    grey, _ = decode(paths, (1, 8, 8))
    assert np.abs(grey[0, 0] - pixels @ np.array([0.299, 0.587, 0.114])).max() <= 1
    assert (grey[1, 0] == pixels[..., 0]).all(), "bit for bit"
    colour, _ = decode(paths, (3, 8, 8))
    assert (colour[0] == pixels.transpose(2, 0, 1)).all()
    assert (colour[1] == pixels[..., 0]).all()


@pytest.mark.parametrize("size", [(40, 30), (16, 64), (5, 9)])
def test_an_image_covers_the_shape_and_keeps_its_proportions(tmp_path, size):
    ramp = np.tile(np.linspace(0, 255, size[1]).astype(np.uint8), (size[0], 1))
    Image.fromarray(ramp).save(tmp_path / "a.png")
    ((rows,),), errors = decode([tmp_path / "a.png"], (1, 8, 16))
    assert not errors
    assert (np.diff(rows.astype(int), axis=1) >= 0).all()
    covered = min(1.0, 16 / max(16, size[1] * 8 / size[0]))
    assert np.ptp(rows[4]) == pytest.approx(255 * covered, abs=30), "the centre, cut and not squeezed"


@pytest.fixture
def root(tmp_path, tiny_imagenet):
    return tiny_imagenet(tmp_path)


@pytest.mark.parametrize(("name", "counts"), [("imagenet", [5, 3, 2]), ("imagenet_lt", [4, 3, 2])])
def test_imagenet_has_the_labels_of_its_folders(root, name, counts, monkeypatch):
    monkeypatch.setattr(decoding, "_BLOCK", 3)
    dataset, seen = Dataset.parse(f"{name}?size=32"), []
    assert dataset.fingerprint(root) is None, "before it is decoded"
    data = dataset.read(root, progress=lambda *done: seen.append(done))
    assert seen[-1] == (sum([*counts, 6]) * 3 * 32 * 32,) * 2
    assert (data.name, data.train.shape) == (f"{name}?size=32", (3, 32, 32))
    assert data.train.classes == ("n00000000", "n00000001", "n00000002")
    assert (data.train.class_counts, data.test.class_counts) == (counts, [2, 2, 2])
    for split in (data.train, data.test):
        assert torch.equal((split.images[:, 0].float().mean((1, 2)) / 80).round().long(), split.labels)
    assert data.fingerprint == dataset.fingerprint(root)
    assert Dataset.parse(name).fingerprint(root) is None, "of another size"
    limited = prepare(RunSpec(dataset=dataset.name, max_train=4, max_test=3), root)
    assert (len(limited.train), len(limited.test)) == (4, 3)


def test_decoded_images_are_enough_and_a_flipped_bit_is_noticed(root):
    before = Dataset.parse("imagenet?size=32").read(root)
    shutil.rmtree(root / "imagenet")
    Dataset.parse("digits").read()
    after = Dataset.parse("imagenet?size=32").read(root)
    assert torch.equal(after.test.images, before.test.images)
    path = root / "decoded" / "imagenet-32" / "train.npy"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"train\.npy"):
        Dataset.parse("imagenet?size=32").read(root)


def test_a_disk_that_fills_up_is_an_error_and_so_are_all_pictures_that_cannot_be_read(root):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
        with pytest.raises(OSError, match="File too large"):
            Dataset.parse("imagenet?size=32").read(root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    for path in (root / "imagenet/train").glob("*/train_1.JPEG"):
        path.write_text("no picture")
    with pytest.raises(ValueError, match=r"n00000000/train_1.*\n.*n00000001/train_1.*\n.*n00000002/train_1"):
        Dataset.parse("imagenet?size=32").read(root)
    assert not list((root / "decoded").glob("[!.]*"))


DECODE = """
import os, signal, sys
from maxsep.lab.data import Dataset
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
data = Dataset.parse("imagenet?size=32").read(sys.argv[1], progress=die if sys.argv[2:] else None)
print(data.train.images.sum().item())
"""


def test_what_a_killed_process_left_goes_and_of_two_processes_one_decodes(root):
    command = [sys.executable, "-c", DECODE, str(root)]
    assert subprocess.run([*command, "die"], timeout=240, check=False).returncode == -9
    assert len(list((root / "decoded").glob(".imagenet-32.tmp-*"))) == 1
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    one, other = (process.communicate(timeout=240)[0] for process in both)
    assert one == other != ""
    assert not list((root / "decoded").glob(".imagenet-32.tmp-*"))


@pytest.mark.parametrize("missing", ["imagenet/train", "imagenet/val", "imagenet-lt"])
def test_missing_pictures_or_lists(root, missing):
    shutil.rmtree(root / missing)
    with pytest.raises(FileNotFoundError, match=missing):
        Dataset.parse("imagenet_lt").read(root)
    assert not (root / "decoded").exists(), "a question leaves no folders behind"


@pytest.mark.parametrize("text", ["train/n0/a.JPEG", "a/b.JPEG 0\na/c.JPEG 2", "train/n00000000/gone.JPEG 0", "\xff 0"])
def test_lists_that_are_not_the_published_ones(root, text):
    (root / "imagenet-lt/ImageNet_LT_train.txt").write_text(text, "latin1")
    with pytest.raises(ValueError, match=r"imagenet-lt|gone"):
        Dataset.parse("imagenet_lt?size=32").read(root)
