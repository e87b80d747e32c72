"""Whole splits in memory; every bad input is an error with a name."""

import pytest
import torch

from maxsep.lab.data import Data, ImageSet


def images(n=4, *shape, dtype=torch.uint8):
    return torch.arange(n * 12).view(n, 3, 2, 2).to(dtype) if not shape else torch.zeros(n, *shape, dtype=dtype)


def small(labels=(0, 1, 1, 2), classes=("a", "b", "c")):
    return ImageSet(images(len(labels)), torch.tensor(labels), classes)


def test_properties_and_subset():
    split = small()
    assert (len(split), split.num_classes, split.shape) == (4, 3, (3, 2, 2))
    assert split.class_counts == [1, 2, 1]
    chosen = split.subset(torch.tensor([3, 0]))
    assert chosen.labels.tolist() == [2, 0]
    assert torch.equal(chosen.images[0], split.images[3])
    assert chosen.class_counts == [1, 0, 1]
    assert split.subset(torch.arange(4)) is split  # nothing is copied where nothing is cut
    assert split.to("cpu").labels.tolist() == split.labels.tolist()


def test_batches_are_the_images_in_any_order_or_in_their_own():
    split = small()
    picked, labels = split.batch(torch.tensor([3, 0, 3]))
    assert torch.equal(picked, split.images[[3, 0, 3]])
    assert labels.tolist() == [2, 0, 2]
    assert [len(batch) for batch in split.batches(3)] == [3, 1]
    assert torch.equal(torch.cat(list(split.batches(3))), split.images)


def test_bytes_of_all_splits():
    split = small()
    assert Data("mine", split, split).bytes == 2 * 4 * 12
    assert Data("mine", split, split, split).bytes == 3 * 4 * 12


BAD = {
    "list of images": (([[1]], torch.zeros(1).long(), ("a",)), TypeError, "uint8 tensor, got list"),
    "float images": ((images(2, 3, 2, 2, dtype=torch.float32), torch.zeros(2).long(), ("a",)), TypeError, "float32"),
    "flat images": ((images(2, 12), torch.zeros(2).long(), ("a",)), ValueError, r"\(N, C, H, W\), got \(2, 12\)"),
    "no images": ((images(0, 3, 2, 2), torch.zeros(0).long(), ("a",)), ValueError, "must not be empty"),
    "no pixels": ((images(2, 3, 0, 2), torch.zeros(2).long(), ("a",)), ValueError, "must not be empty"),
    "list of labels": ((images(2), [0, 1], ("a", "b")), TypeError, "int64 tensor, got list"),
    "float labels": ((images(2), torch.zeros(2), ("a",)), TypeError, r"float32. Convert them with .long\(\)"),
    "int32 labels": ((images(2), torch.zeros(2).int(), ("a",)), TypeError, "int32"),
    "one-hot": ((images(2), torch.eye(2).long(), ("a", "b")), ValueError, r"got \(2, 2\). For one-hot .* argmax"),
    "too few labels": ((images(2), torch.zeros(1).long(), ("a",)), ValueError, "1 labels for 2 images"),
    "negative": ((images(2), torch.tensor([0, -1]), ("a",)), ValueError, "label -1 at position 1 .* 0 to 0"),
    "too large": ((images(2), torch.tensor([5, 0]), ("a", "b")), ValueError, "label 5 at position 0 .* 0 to 1"),
    "no classes": ((images(2), torch.zeros(2).long(), ()), ValueError, "at least one class"),
    "list of classes": ((images(2), torch.zeros(2).long(), ["a"]), TypeError, "tuple of names"),
    "numbers as classes": ((images(2), torch.zeros(2).long(), (1, 2)), TypeError, "tuple of names"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    arguments, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        ImageSet(*arguments)


def test_splits_must_belong_together():
    train = small()
    with pytest.raises(ValueError, match="same classes in the same order"):
        Data("x", train, small(classes=("a", "c", "b")))
    other = ImageSet(images(1, 1, 2, 2), torch.tensor([0]), train.classes)
    with pytest.raises(ValueError, match=r"training images are \(3, 2, 2\), test images \(1, 2, 2\)"):
        Data("x", train, other)
    with pytest.raises(ValueError, match=r"training images are \(3, 2, 2\), calibration images \(1, 2, 2\)"):
        Data("x", train, train, other)
    with pytest.raises(ValueError, match=r"and the calibration classes .* same classes in the same order"):
        Data("x", train, train, small(classes=("a", "c", "b")))


def test_all_splits_move_together():
    data = Data("x", small(), small(), small((2, 2)))
    assert data.to("cpu").calibration.labels.tolist() == [2, 2]
    assert Data("x", small(), small()).to("cpu").calibration is None
    assert Data("x", small(), small(), files="abc").to("cpu").files == "abc"
