"""ImageNet and ImageNet-LT: what is read from the official layout, and what is said where it is not there."""

import shutil

import pytest
import torch

from maxsep.lab.data import Dataset, prepare
from maxsep.lab.spec import RunSpec


@pytest.fixture
def root(tmp_path, tiny_imagenet):
    return tiny_imagenet(tmp_path)


def reds(images):
    """The class that every picture says it is of."""
    return (images[:, 0].float().mean((1, 2)) / 80).round().long()


@pytest.mark.parametrize(("name", "counts"), [("imagenet", [5, 3, 2]), ("imagenet_lt", [4, 3, 2])])
def test_pictures_have_the_labels_of_their_folders(root, name, counts):
    data = Dataset.parse(f"{name}?size=32").read(root)
    assert data.name == f"{name}?size=32"
    assert data.train.classes == data.test.classes == ("n00000000", "n00000001", "n00000002")
    assert data.train.class_counts == counts
    assert data.test.class_counts == [2, 2, 2]
    assert data.train.shape == (3, 32, 32)
    for split in (data.train, data.test):
        assert torch.equal(reds(split.images), split.labels)


def test_the_usual_size_is_224_and_has_no_name(root):
    data = Dataset.parse("imagenet_lt").read(root)
    assert (data.name, data.train.shape) == ("imagenet_lt", (3, 224, 224))


def test_a_run_may_take_a_part_of_it(root):
    data = prepare(RunSpec(dataset="imagenet?size=32", max_train=4, max_test=3), root)
    assert (len(data.train), len(data.test)) == (4, 3)
    assert torch.equal(reds(data.train.images), data.train.labels)


@pytest.mark.parametrize("name", ["imagenet", "imagenet_lt"])
def test_pictures_that_come_later_are_told_with_what_to_delete(root, name):
    data = Dataset.parse(f"{name}?size=32").read(root)
    assert data.fingerprint == Dataset.parse(f"{name}?size=32").fingerprint(root)
    assert Dataset.parse(name).fingerprint(root) is None  # of another size: not decoded yet
    if name == "imagenet":
        shutil.copy(root / "imagenet/train/n00000001/train_0.JPEG", root / "imagenet/train/n00000001/new.JPEG")
    else:
        with (root / "imagenet-lt/ImageNet_LT_train.txt").open("a") as file:
            file.write("train/n00000000/train_4.JPEG 0\n")
    with pytest.raises(
        ValueError, match=rf"decoded/{name}-train-32.npy has \d+ pictures of 3 classes.* to decode them anew"
    ):
        Dataset.parse(f"{name}?size=32").read(root)
    for path in (root / "decoded").glob(f"{name}-train-32.*"):
        path.unlink()
    assert len(Dataset.parse(f"{name}?size=32").read(root).train) == len(data.train) + 1


def test_the_decoded_images_are_enough(root):
    before = Dataset.parse("imagenet?size=32").read(root)
    shutil.rmtree(root / "imagenet")
    assert torch.equal(Dataset.parse("imagenet?size=32").read(root).test.images, before.test.images)


def test_missing_pictures(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"imagenet is not in .* expected imagenet/train/CLASS/\*"):
        Dataset.parse("imagenet").read(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"imagenet_lt needs the pictures of ImageNet, and .*imagenet is no"):
        Dataset.parse("imagenet_lt").read(tmp_path)
    assert list(tmp_path.iterdir()) == []  # a question leaves no folders behind


def test_missing_lists(root):
    shutil.rmtree(root / "imagenet-lt")
    with pytest.raises(FileNotFoundError, match=r"expected the list .*ImageNet_LT_train.txt. Put the published lists"):
        Dataset.parse("imagenet_lt").read(root)


def test_validation_pictures_that_are_not_sorted(root):
    for path in (root / "imagenet/val").glob("*/*"):
        path.rename(root / "imagenet/val" / f"{path.parent.name}_{path.name}")
    for folder in (root / "imagenet/val").glob("*/"):
        folder.rmdir()
    with pytest.raises(ValueError, match=r"val has no class folders. Sort its pictures into one folder for each class"):
        Dataset.parse("imagenet?size=32").read(root)


def test_a_class_without_pictures(root):
    (root / "imagenet/train/n00000003").mkdir()
    with pytest.raises(ValueError, match=r"n00000003 holds no image. Unpack its archive again"):
        Dataset.parse("imagenet?size=32").read(root)


def test_classes_that_are_only_in_one_split(root):
    shutil.rmtree(root / "imagenet/val/n00000002")
    with pytest.raises(ValueError, match="n00000002"):
        Dataset.parse("imagenet?size=32").read(root)


@pytest.mark.parametrize(
    ("split", "text", "message"),
    [
        ("train", "train/n0/a.JPEG\n", r"line 1 of .*train.txt is 'train/n0/a.JPEG'; expected a path and a label"),
        ("train", "", r"train.txt is empty. Take the published list."),
        ("train", "a/b.JPEG 0\na/c.JPEG 2\n", r"train.txt has no picture of class 1. Take the published list."),
        ("test", "val/n00000000/val_0.JPEG 7\n", r"test.txt has label 7, and the training list has 3 classes."),
        ("train", "train/n00000000/gone.JPEG 0\n", r"gone.JPEG cannot be read as an image \(FileNotFoundError"),
    ],
)
def test_lists_that_are_not_the_published_ones(root, split, text, message):
    (root / f"imagenet-lt/ImageNet_LT_{split}.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        Dataset.parse("imagenet_lt?size=32").read(root)
