"""The published class counts and permutations, and the properties of any tail."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.lab.data import long_tail_counts, long_tail_indices

CIFAR10 = {
    0.2: (25_423, [5000, 4181, 3496, 2924, 2445, 2044, 1709, 1429, 1195, 1000]),
    0.1: (20_431, [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]),
    0.02: (13_996, [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100]),
    0.01: (12_406, [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]),
}
CIFAR100 = {
    0.2: (24_856, [500, 491, 484, 476, 468], [106, 104, 103, 101, 100]),
    0.1: (19_573, [500, 488, 477, 466, 455], [54, 53, 52, 51, 50]),
    0.02: (12_608, [500, 480, 462, 444, 426], [11, 11, 10, 10, 10]),
    0.01: (10_847, [500, 477, 455, 434, 415], [6, 5, 5, 5, 5]),
}
ANCHORS = {
    10: {
        0: [398, 3833, 4836, 4572, 636, 2545],
        1: [597, 332, 521, 3935, 4800, 1102],
        9: [2204, 3816, 2206, 2507, 1926, 4765],
    },
    100: {
        0: [90, 254, 283, 445, 461, 15],
        1: [277, 307, 436, 88, 261, 57],
        99: [348, 153, 363, 361, 299, 353],
    },
}


@pytest.mark.parametrize("imbalance", CIFAR10)
def test_cifar10_counts(imbalance):
    total, counts = CIFAR10[imbalance]
    assert long_tail_counts(5000, 10, imbalance) == counts
    assert sum(counts) == total


@pytest.mark.parametrize("imbalance", CIFAR100)
def test_cifar100_counts(imbalance):
    total, head, tail = CIFAR100[imbalance]
    counts = long_tail_counts(500, 100, imbalance)
    assert (sum(counts), counts[:5], counts[-5:]) == (total, head, tail)


@pytest.mark.parametrize("imbalance", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("classes", ANCHORS)
def test_permutation_anchors(classes, imbalance):
    """Whatever the order of labels in the dataset, positions within a class follow the published permutation."""
    size = 50_000 // classes
    labels = torch.arange(classes).repeat(size)
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    indices = long_tail_indices(labels, imbalance)
    kept = labels[indices]
    assert torch.equal(kept, kept.sort().values), "class-sorted"
    assert torch.bincount(kept).tolist() == long_tail_counts(size, classes, imbalance)
    for label, start in ANCHORS[classes].items():
        own = (labels == label).nonzero()[:, 0]
        rank = torch.full_like(labels, -1)
        rank[own] = torch.arange(size)
        found = rank[indices[kept == label]][:6].tolist()
        assert found == start[: len(found)]


@settings(max_examples=50, deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=80),
    imbalance=st.floats(0.001, 1.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_labels(labels, imbalance, seed):
    labels = torch.tensor(labels)
    indices = long_tail_indices(labels, imbalance, seed, num_classes=7)
    assert indices.dtype == torch.int64
    assert len(set(indices.tolist())) == len(indices)
    sizes = torch.bincount(labels, minlength=7).tolist()
    kept = torch.bincount(labels[indices], minlength=7).tolist()
    profile = long_tail_counts(max(sizes), 7, imbalance)
    assert kept == [min(size, count) for size, count in zip(sizes, profile, strict=True)]
    assert all(count >= 1 for count, size in zip(kept, sizes, strict=True) if size), "no class vanishes"
    assert torch.equal(indices, long_tail_indices(labels, imbalance, seed, num_classes=7))


def test_seed_changes_the_subset_but_not_its_size():
    labels = torch.arange(4).repeat(100)
    one, two = long_tail_indices(labels, 0.1, seed=0), long_tail_indices(labels, 0.1, seed=1)
    assert one.shape == two.shape
    assert not torch.equal(one, two)


def test_small_profiles():
    assert long_tail_counts(3, 5, 0.001) == [3, 1, 1, 1, 1]
    assert long_tail_counts(7, 1, 0.5) == [7]
    assert long_tail_counts(9, 3, 1) == [9, 9, 9]


@pytest.mark.parametrize("imbalance", [0, -0.1, 1.5, float("nan"), 100])
def test_imbalance_out_of_range(imbalance):
    for call in (lambda: long_tail_counts(10, 3, imbalance), lambda: long_tail_indices(torch.tensor([0]), imbalance)):
        with pytest.raises(ValueError, match=r"imbalance must be in \(0, 1\].*write 0.01 for 100:1"):
            call()


@pytest.mark.parametrize(("count", "classes"), [(0, 3), (10, 0), (2.5, 3), (True, 3)])
def test_counts_must_be_whole(count, classes):
    with pytest.raises(ValueError, match="must be a whole number of at least 1, got"):
        long_tail_counts(count, classes, 0.1)


def test_bad_labels():
    with pytest.raises(ValueError, match="labels must not be empty"):
        long_tail_indices(torch.tensor([], dtype=torch.int64), 0.1)
    with pytest.raises(ValueError, match="label 3 at position 1 is out of range"):
        long_tail_indices(torch.tensor([0, 3]), 0.1, num_classes=3)
    with pytest.raises(TypeError, match="int64"):
        long_tail_indices(torch.tensor([0.0, 1.0]), 0.1)
