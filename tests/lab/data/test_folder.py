"""Folders of class folders: read in order, and nothing dropped silently."""

import re
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from maxsep.lab.data import Dataset
from maxsep.lab.data.folder import list_folder


def load_folder(path, size=32):
    return Dataset.parse(f"folder:{path}?size={size}").read()


def files_mark(path):
    return list_folder(path).fingerprint


def picture(path, colour=(10, 20, 30), size=(32, 32), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


@pytest.fixture
def tree(tmp_path):
    """Two classes of five images each; the red level is the number of the image."""
    for number, name in enumerate(("cat", "dog")):
        for i in range(5):
            picture(tmp_path / name / f"{i}.png", (10 * number + i, 0, 200))
    return tmp_path


def test_reads_every_image_with_a_fixed_stratified_split(tree):
    data, again = load_folder(tree), load_folder(tree)
    assert data.name == f"folder:{tree}?size=32"
    assert data.train.classes == ("cat", "dog")
    assert data.train.class_counts == [4, 4]
    assert data.test.class_counts == [1, 1]
    assert torch.equal(data.train.images, again.train.images)
    red = torch.cat([data.train.images, data.test.images])[:, 0, 0, 0]
    assert sorted(red.tolist()) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert (red // 10).tolist() == torch.cat([data.train.labels, data.test.labels]).tolist()
    assert data.train.images[:4, 0, 0, 0].tolist() == sorted(data.train.images[:4, 0, 0, 0].tolist())


@pytest.mark.parametrize("second", ["test", "val"])
def test_given_splits_are_kept(tmp_path, second):
    for split, n in (("train", 3), (second, 2)):
        for name in ("b", "a"):
            for i in range(n):
                picture(tmp_path / split / name / "deeper" / f"{i}.JPG")
    (tmp_path / "readme.txt").write_text("about")
    data = load_folder(tmp_path, 8)
    assert data.train.classes == ("a", "b")
    assert (len(data.train), len(data.test)) == (6, 4)
    assert data.train.shape == (3, 8, 8)


def test_class_may_be_called_train(tmp_path):
    for name in ("car", "train"):
        for i in range(2):
            picture(tmp_path / name / f"{i}.png")
    assert load_folder(tmp_path).train.classes == ("car", "train")


def test_shorter_side_is_scaled_and_the_centre_cut(tmp_path):
    wide = np.zeros((16, 64, 3), np.uint8)
    wide[:, 24:40] = 255  # the central square
    for name in ("a", "b"):
        for i in range(2):
            picture(tmp_path / name / f"{i}.png")
    Image.fromarray(wide).save(tmp_path / "a" / "0.png")
    Image.fromarray(wide.transpose(1, 0, 2)).save(tmp_path / "a" / "1.png")
    data = load_folder(tmp_path, 16)
    for split in (data.train, data.test):
        assert torch.equal(split.images[0], torch.full((3, 16, 16), 255, dtype=torch.uint8))


def test_grey_palette_and_transparent_images_become_rgb(tmp_path):
    for name in ("a", "b"):
        picture(tmp_path / name / "grey.png", 7, mode="L")
        picture(tmp_path / name / "alpha.png", (7, 7, 7, 200), mode="RGBA")
        picture(tmp_path / name / "bit.png", 1, mode="1")
        palette = Image.new("P", (32, 32), 0)
        palette.putpalette([7, 7, 7] * 256)
        palette.save(tmp_path / name / "palette.png", transparency=bytes(256))
    data = load_folder(tmp_path)
    values = torch.cat([data.train.images, data.test.images]).flatten(1).float()
    assert sorted(values.mean(1).tolist()) == [7.0] * 6 + [255.0] * 2


def test_photographs_are_turned_upright(tmp_path):
    for name in ("a", "b"):
        for i in range(2):
            picture(tmp_path / name / f"{i}.png")
    image = np.zeros((32, 32, 3), np.uint8)
    image[:16] = 250
    turned = Image.Exif()
    turned[0x0112] = 3  # stored upside down
    for i in range(2):
        Image.fromarray(image).save(tmp_path / "a" / f"{i}.png", exif=turned)
    data = load_folder(tmp_path)
    assert data.train.images[0, 0, 0, 0] == 0
    assert data.train.images[0, 0, 31, 0] == 250


def test_hidden_and_text_files_are_passed_over(tree):
    for name in (".DS_Store", "Thumbs.db", "boxes.txt", "README", "labels.csv", ".hidden.png"):
        (tree / "cat" / name).write_text("x")
        (tree / name).write_text("x")
    (tree / ".cache").mkdir()
    assert len(load_folder(tree).train) == 8


def test_the_mark_of_files_is_that_of_names_and_sizes(tree):
    mark = load_folder(tree).fingerprint
    assert re.fullmatch("[0-9a-f]{12}", mark)
    assert files_mark(tree) == mark
    (tree / "cat" / "notes.txt").write_text("no picture")
    (tree / "cat" / "0.png").touch()
    moved = tree.rename(tree.with_name("moved"))
    assert files_mark(moved) == mark
    marks = {mark}
    (moved / "cat" / "0.png").rename(moved / "cat" / "5.png")
    marks.add(files_mark(moved))
    (moved / "cat" / "5.png").rename(moved / "dog" / "5.png")
    marks.add(files_mark(moved))
    with (moved / "dog" / "5.png").open("ab") as file:
        file.write(b"x")
    marks.add(files_mark(moved))
    assert len(marks) == 4, "another name, another class, another size"


def test_the_mark_covers_both_splits(tmp_path):
    for split in ("train", "val"):
        for name in ("a", "b"):
            picture(tmp_path / split / name / "0.png")
    mark = files_mark(tmp_path)
    (tmp_path / "val" / "a" / "0.png").rename(tmp_path / "val" / "a" / "1.png")
    assert files_mark(tmp_path) != mark


def test_a_folder_of_deep_colours_is_told_once(tmp_path):
    for split in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "0.ppm").write_bytes(b"P6 8 8 65535 " + bytes(8 * 8 * 3 * 2))
    with pytest.warns(UserWarning, match="train/a/0.ppm and 3 other images have more than 8 bits") as found:
        load_folder(tmp_path, 8)
    assert len(found) == 1
    load_folder(tmp_path, 8)  # as the next run does


def spoil(tree, case):
    if case == "unreadable":
        (tree / "cat" / "2.png").write_bytes(b"not an image")
    elif case == "truncated":
        noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
        Image.fromarray(noise).save(tree / "cat" / "2.png")
        content = (tree / "cat" / "2.png").read_bytes()
        (tree / "cat" / "2.png").write_bytes(content[: len(content) // 2])
    elif case == "empty file":
        (tree / "cat" / "2.png").write_bytes(b"")
    elif case == "empty class":
        (tree / "emu").mkdir()
    elif case == "strange file":
        (tree / "dog" / "model.pt").write_bytes(b"x")
    elif case == "loose image":
        picture(tree / "loose.png")
    elif case == "deep levels":
        Image.new("I;16", (32, 32), 40_000).save(tree / "dog" / "9.png")
    elif case == "single image":
        picture(tree / "emu" / "only.png")
    elif case == "linked folder":
        (tree / "dog" / "more").symlink_to(tree / "cat", target_is_directory=True)


BAD = {
    "unreadable": "cat/2.png cannot be read as an image .*Repair or remove it",
    "truncated": "cat/2.png cannot be read as an image",
    "empty file": "cat/2.png cannot be read as an image",
    "empty class": "emu holds no image",
    "strange file": "dog/model.pt is neither an image nor a text file",
    "loose image": "loose.png lies outside any class folder",
    "deep levels": r"dog/9.png has more than 8 bits per channel \(mode I;16\)",
    "single image": "emu has only 1 image; a class needs 2",
    "linked folder": "dog/more is a link to a folder",
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_named(tree, case):
    spoil(tree, case)
    with pytest.raises(ValueError, match=BAD[case]):
        load_folder(tree)


def test_picture_too_large_to_trust_is_named(tree, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 600)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=r"cat/0.png cannot be read as an image .*DecompressionBomb"):
            load_folder(tree)


def test_layout_errors(tmp_path, tree):
    with pytest.raises(FileNotFoundError, match=r"nowhere is not a folder. Expected a folder with one sub-folder"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"cat needs at least two class folders .* found none|outside any class"):
        load_folder(tree / "cat")
    (tmp_path / "empty" / "one").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"needs at least two class folders .*found only one/"):
        load_folder(tmp_path / "empty")


def test_split_layout_errors(tmp_path):
    for split in ("train", "test"):
        for name in ("a", "b"):
            picture(tmp_path / split / name / "0.png")
    picture(tmp_path / "test" / "c" / "0.png")
    with pytest.raises(ValueError, match="class 'c' is only in one of"):
        load_folder(tmp_path)
    (tmp_path / "val").mkdir()
    with pytest.raises(ValueError, match=r"train/, test/ and val/. Hide one"):
        load_folder(tmp_path)
    (tmp_path / "val").rename(tmp_path / "extra")
    with pytest.raises(ValueError, match=r"but also extra/. Move or hide it"):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (["train"], "has train/ but no test/ or val/."),
        (["test"], "has test/ but no train/."),
        (["test", "val"], "has test/ and val/ but no train/."),
        (["train", "valid"], "has train/ and valid/ but no test/ or val/."),
        (["test", "training"], "has test/ and training/ but no train/."),
    ],
)
def test_half_a_split_says_what_is_missing(tmp_path, there, told):
    for split in there:
        for name in ("a", "b"):
            picture(tmp_path / split / name / "0.png")
            picture(tmp_path / split / name / "1.png")
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path} {told} Add (or rename) it: train/ and one of test/ ")):
        load_folder(tmp_path)
    with pytest.raises(ValueError, match=re.escape(f"Or name {tmp_path / there[0]} alone, then a fifth of every cla")):
        list_folder(tmp_path)
    assert load_folder(tmp_path / there[0]).train.classes == ("a", "b"), "what the message proposes works"
