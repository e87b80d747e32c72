"""Data as a user names them: known sets, folders, and where the test images come from."""

import pytest
from PIL import Image

from maxsep.lab.data import digits, folder, load
from maxsep.lab.data.folder import own_test, train_counts
from maxsep.lab.data.given import (
    describe_test,
    files_differ,
    given_counts,
    given_files,
    is_folder,
    is_set_aside,
    name_data,
)


def fill(folder, **sizes):
    """Write a folder of class folders, so many images in each."""
    for name, count in sizes.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (8, 8), (i, 0, 0)).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MAXSEP_DATA", raising=False)
    return fill(tmp_path / "my" / "pictures", cat=10, dog=4, eel=2)


@pytest.mark.parametrize("given", ["my/pictures", "my/pictures/", "./my/pictures", "folder:my/pictures"])
def test_a_folder_has_one_name_however_it_is_written(pictures, given):
    assert name_data(given) == "folder:my/pictures"
    assert load(name_data(given)).train.classes == ("cat", "dog", "eel")


def test_a_size_goes_into_the_name(pictures):
    assert name_data("my/pictures", size=16) == name_data("my/pictures/?size=16") == "folder:my/pictures?size=16"
    assert load(name_data("my/pictures", size=16)).train.shape == (3, 16, 16)


def test_a_folder_is_found_below_the_data_folder(pictures):
    assert name_data("pictures", pictures.parent) == f"folder:{pictures}"


def test_known_names_win_over_folders(pictures):
    fill(pictures.parent.parent / "digits", a=2, b=2)
    assert name_data("digits") == "digits"
    assert name_data("./digits") == "folder:digits"


@pytest.mark.parametrize(
    ("given", "size", "told"),
    [
        ("mnist", None, r"'mnist' is neither a known dataset \(digits, .*, imagenet_lt\) nor a folder. Give a"),
        ("digits", 16, r"the images of digits have a size of their own, got --size 16. Leave it out."),
        ("my/pictures?size=8", 16, r"the size was given twice, in 'my/pictures\?size=8' and as --size 16"),
        ("my/pictures", 2000, r"is no folder of images. Write folder:PATH"),
    ],
)
def test_what_is_refused(pictures, given, size, told):
    with pytest.raises(ValueError, match=told):
        name_data(given, size=size)
    with pytest.raises(ValueError, match=told):
        name_data(given, pictures, size=size)


def test_test_images_without_a_split_of_their_own(pictures):
    assert own_test(pictures) is None
    assert describe_test("folder:my/pictures") == "a fifth of every class, set aside by a fixed seed"
    assert train_counts(pictures) == load("folder:my/pictures").train.class_counts == [8, 3, 1]
    assert given_counts("folder:my/pictures?size=16") == [8, 3, 1]


@pytest.mark.parametrize("split", ["test", "val"])
def test_test_images_of_their_own(tmp_path, split):
    fill(tmp_path / "train", cat=3, dog=2)
    fill(tmp_path / split, cat=1, dog=1)
    assert own_test(tmp_path) == tmp_path / split
    assert describe_test(f"folder:{tmp_path}") == f"those of {tmp_path / split}"
    assert train_counts(tmp_path) == load(f"folder:{tmp_path}").train.class_counts == [3, 2]


def test_other_test_images():
    assert describe_test("cifar10") == "the dataset's own"
    assert describe_test("digits").startswith("a third ")
    assert (digits.TEST_FRACTION, folder.TEST_FRACTION) == (1 / 3, 0.2), "as it is told"


def test_what_cannot_be_counted_has_no_counts(tmp_path, monkeypatch):
    assert given_counts("cifar10") is None
    assert given_counts(f"folder:{tmp_path}") is None
    monkeypatch.setenv("MAXSEP_DATA", str(tmp_path))
    assert given_counts("folder:nowhere") is None
    assert given_files("folder:nowhere") is None
    assert given_files("cifar10") is None


def test_the_files_of_a_folder_have_one_mark_however_they_are_asked_for(pictures):
    assert given_files("folder:my/pictures") == given_files("folder:my/pictures?size=16")
    assert given_files("folder:my/pictures") == load("folder:my/pictures").files


def test_a_folder_without_classes_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="needs at least two class folders with images in them"):
        name_data(str(tmp_path))


def test_a_folder_is_known_without_being_called_one(pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_folder("my/pictures")
    assert is_folder("my/pictures?size=16")
    assert is_folder("pictures", pictures.parent)
    assert not is_folder("pictures")
    assert not is_folder("")
    (tmp_path / "digits").mkdir()
    assert not is_folder("digits"), "a known name is the known dataset"
    with pytest.raises(
        ValueError, match=r"unknown dataset 'my'\. Known: .*\. There is a folder my: write folder:my\.$"
    ):
        load("my")


def test_which_test_images_are_set_aside(tmp_path):
    for path in ("own/train/a", "own/train/b", "own/test/a", "own/test/b", "flat/a", "flat/b"):
        (tmp_path / path).mkdir(parents=True)
    assert not is_set_aside("cifar10")
    assert is_set_aside("folder:flat?size=8", tmp_path)
    assert not is_set_aside("folder:own", tmp_path)


def test_files_that_are_not_known_differ_from_none():
    assert not files_differ()
    assert not files_differ(None, "a", None)
    assert files_differ("a", None, "b")
