"""Whole splits in memory: bad input is refused, a subset of everything is not copied, hold-outs are fixed."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.lab.data import ImageSet, Splits, held_counts, hold_out
from maxsep.lab.data.listing import LEAST_TEST, TEST_FRACTION

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=100).map(torch.tensor)


def images(n=4, *shape, dtype=torch.uint8):
    return torch.arange(n * 12).view(n, 3, 2, 2).to(dtype) if not shape else torch.zeros(n, *shape, dtype=dtype)


def small(labels=(0, 1, 1, 2), classes=("a", "b", "c")):
    return ImageSet(images(len(labels)), torch.tensor(labels), classes)


def test_properties_and_subset():
    split = small()
    chosen = split.subset(torch.tensor([3, 0]))
    assert (chosen.labels.tolist(), chosen.class_counts) == ([2, 0], [1, 0, 1])
    assert torch.equal(chosen.images[0], split.images[3])
    assert split.subset(torch.arange(4)) is split, "a mapped file would be copied into memory"
    picked, labels = split.batch(torch.tensor([3, 0, 3]))
    assert (picked.equal(split.images[[3, 0, 3]]), labels.tolist()) == (True, [2, 0, 2])
    assert [len(batch) for batch in split.batches(3)] == [3, 1]


@pytest.mark.parametrize(
    "arguments",
    [
        (images(2, 3, 2, 2, dtype=torch.float32), torch.zeros(2).long(), ("a",)),
        (images(0, 3, 2, 2), torch.zeros(0).long(), ("a",)),
        (images(2), torch.zeros(2), ("a",)),
        (images(2), torch.eye(2).long(), ("a", "b")),
        (images(2), torch.tensor([0, -1]), ("a",)),
        (images(2), torch.tensor([5, 0]), ("a", "b")),
        (images(2), torch.zeros(2).long(), ()),
        (images(2), torch.zeros(2).long(), ("a",), (Path("one.png"),)),
    ],
)
def test_bad_input(arguments):
    with pytest.raises(ValueError, match=r"images|label|class"):
        ImageSet(*arguments)


def test_splits_must_belong_together():
    train, other = small(), small(classes=("a", "c", "b"))
    grey = ImageSet(images(1, 1, 2, 2), torch.tensor([0]), train.classes)
    for wrong in (other, grey):
        with pytest.raises(ValueError, match="test"):
            Splits("x", train, wrong)
        with pytest.raises(ValueError, match="calibration"):
            Splits("x", train, train, wrong)


def test_all_splits_move_together():
    data = Splits("x", small(), small(), small((2, 2)), "abc")
    moved = data.to("cpu", images=False)
    assert moved.calibration.labels.tolist() == [2, 2]
    assert moved.train.images is data.train.images
    assert (moved.fingerprint, data.bytes) == ("abc", 10 * 12)
    assert Splits("x", small(), small()).to("cpu").calibration is None


@settings(max_examples=60, deadline=None)
@given(LABELS, st.floats(0.01, 0.99), st.integers(0, 1000))
def test_hold_out_splits_every_class(labels, fraction, seed):
    kept, held = hold_out(labels, fraction, seed)
    assert sorted(kept.tolist() + held.tolist()) == list(range(len(labels)))
    assert kept.tolist() == sorted(kept.tolist())
    assert held.tolist() == sorted(held.tolist())
    for label in labels.unique():
        total, out = int((labels == label).sum()), int((labels[held] == label).sum())
        assert (1 if total > 1 else 0) <= out < total, "a class keeps a training image"
        assert abs(out - fraction * total) <= 1
    counts = torch.bincount(labels)
    assert held_counts(counts.tolist(), fraction) == torch.bincount(labels[held], minlength=len(counts)).tolist()
    fixed = hold_out(torch.arange(3).repeat(7), 0.3, seed=5)[1]
    assert fixed.tolist() == [4, 6, 8, 16, 17, 18], "a run on another machine must see the same images"


@settings(max_examples=60)
@given(st.lists(st.integers(2, 12), min_size=2, max_size=5))
def test_a_folder_gets_two_test_images_of_every_class_that_has_four(sizes):
    labels = torch.repeat_interleave(torch.tensor(sizes))
    _, held = hold_out(labels, TEST_FRACTION, least=LEAST_TEST)
    assert torch.bincount(labels[held]).tolist() == [2 if size >= 4 else 1 for size in sizes]
