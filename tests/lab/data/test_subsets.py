"""Which images a run sees: published long tails, hold-outs that do not leak, limits, the official order."""

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.lab.data import Dataset, limit, long_tail_counts, long_tail_indices, prepare, subsets, with_order
from maxsep.lab.spec import RunSpec

CIFAR10 = {
    0.2: [5000, 4181, 3496, 2924, 2445, 2044, 1709, 1429, 1195, 1000],
    0.1: [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500],
    0.02: [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100],
    0.01: [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50],
}
CIFAR100 = {
    0.2: (24_856, [500, 491, 484, 476, 468], [106, 104, 103, 101, 100]),
    0.1: (19_573, [500, 488, 477, 466, 455], [54, 53, 52, 51, 50]),
    0.02: (12_608, [500, 480, 462, 444, 426], [11, 11, 10, 10, 10]),
    0.01: (10_847, [500, 477, 455, 434, 415], [6, 5, 5, 5, 5]),
}
ANCHORS = {
    10: {0: [398, 3833, 4836, 4572, 636, 2545], 1: [597, 332, 521, 3935, 4800, 1102], 9: [2204, 3816, 2206, 2507]},
    100: {0: [90, 254, 283, 445, 461, 15], 1: [277, 307, 436, 88, 261, 57], 99: [348, 153, 363, 361, 299]},
}
ORDERED = RunSpec(dataset="cifar100", head="plain")


@pytest.mark.parametrize("imbalance", CIFAR10)
def test_published_counts(imbalance):
    assert long_tail_counts(5000, 10, imbalance) == CIFAR10[imbalance]
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
        found = rank[indices[kept == label]][: len(start)].tolist()
        assert found == start[: len(found)]


def test_bad_numbers_and_labels():
    assert (long_tail_counts(3, 5, 0.001), long_tail_counts(7, 1, 0.5)) == ([3, 1, 1, 1, 1], [7])
    for count, classes, imbalance in ((0, 3, 0.1), (10, 0, 0.1), (10, 3, 0), (10, 3, 1.5), (10, 3, float("nan"))):
        with pytest.raises(ValueError, match=r"max_count|imbalance"):
            long_tail_counts(count, classes, imbalance)
    for labels in (torch.tensor([], dtype=torch.int64), torch.tensor([0, 3]), torch.tensor([0.0, 1.0])):
        with pytest.raises(ValueError, match="label"):
            long_tail_indices(labels, 0.1, num_classes=3)
    with pytest.raises(ValueError, match="count"):
        limit(torch.tensor([0, 1]), 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=100).map(torch.tensor), st.integers(1, 120), st.integers(0, 1000)
)
def test_limit_keeps_proportions(labels, count, seed):
    chosen = limit(labels, count, seed)
    assert len(chosen) == min(count, len(labels)) == len(set(chosen.tolist()))
    present = len(labels.unique())
    assert len(labels[chosen].unique()) == min(present, len(chosen))
    for label in labels.unique():
        share = len(chosen) * int((labels == label).sum()) / len(labels)
        assert abs(int((labels[chosen] == label).sum()) - share) <= present
    assert torch.equal(chosen, limit(labels, count, seed))
    assert limit(torch.arange(3).repeat(7), 5, seed=5).tolist() == [4, 6, 8, 16, 18], "the same everywhere"


def pixels(split):
    return {bytes(image.flatten().tolist()) for image in split.images}


def test_validation_is_cut_before_calibration_and_both_before_limits():
    spec = RunSpec(dataset="digits", imbalance=0.1, validation=0.25)
    whole, held = prepare(spec.replace(validation=0.0)), prepare(spec)
    assert whole.train.class_counts == [119, 94, 73, 56, 43, 33, 26, 20, 15, 12]
    assert torch.equal(whole.test.images, Dataset.parse("digits").read().test.images), "only training is cut"
    assert len(held.train) + len(held.test) == len(whole.train)
    assert min(held.train.class_counts + held.test.class_counts) >= 1
    assert pixels(held.test) <= pixels(whole.train)
    both = prepare(spec.replace(calibration=0.2))
    assert torch.equal(both.test.images, held.test.images), "validation is the same with and without calibration"
    assert len(both.train) + len(both.calibration) == len(held.train)
    assert not pixels(both.calibration) & (pixels(both.train) | pixels(both.test))
    limited = prepare(spec.replace(calibration=0.2, max_train=30, max_test=20))
    assert (len(limited.train), len(limited.test)) == (30, 20)
    assert torch.equal(limited.calibration.images, both.calibration.images)
    assert pixels(limited.train) <= pixels(both.train)
    with pytest.raises(ValueError, match="max_train must be at least 10"):
        prepare(spec.replace(max_train=9))


def test_run_seed_does_not_move_the_subset():
    spec = RunSpec(dataset="digits", imbalance=0.1, validation=0.2, max_train=60)
    one, two = prepare(spec), prepare(spec.replace(seed=7))
    assert torch.equal(one.train.images, two.train.images)
    assert torch.equal(one.test.images, two.test.images)
    assert not torch.equal(one.train.images, prepare(spec.replace(subset_seed=1)).train.images)


def test_specs_get_the_order_of_the_files(tmp_path, write_cifar, monkeypatch):
    write_cifar(tmp_path, "cifar100")
    labels = Dataset.parse("cifar100").read(tmp_path).train.labels
    digest = hashlib.sha256(bytes(labels.tolist())).hexdigest()
    monkeypatch.setitem(subsets.OFFICIAL, "cifar100", digest)
    staged = ORDERED.replace(start_from=ORDERED, epochs=3)
    first, second, other = with_order([ORDERED, staged, RunSpec(dataset="osr_cifar+_0")], tmp_path)
    assert (first.data_order, second.data_order, second.start_from.data_order) == ("official",) * 3
    assert other.data_order == ""
    assert prepare(first, tmp_path).train.num_classes == 100


def test_files_of_another_order_are_no_official_ones_and_a_download_has_it(tmp_path, write_cifar):
    write_cifar(tmp_path, "cifar100")
    assert with_order([ORDERED], tmp_path) == [ORDERED]
    assert with_order([ORDERED], tmp_path / "nothing") == [ORDERED.replace(data_order="official")]
    with pytest.raises(ValueError, match="data_order"):
        prepare(ORDERED.replace(data_order="official"), tmp_path)
