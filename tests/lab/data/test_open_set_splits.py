"""The class lists as data: src/maxsep/lab/data/open_set_splits.py."""

import pytest

from maxsep.lab.data.open_set_splits import KNOWN, UNKNOWN_OF_CIFAR100


@pytest.mark.parametrize(("benchmark", "size"), [("svhn", 6), ("cifar10", 6), ("cifar+", 4)])
def test_five_lists_of_distinct_classes(benchmark, size):
    assert [len(set(split)) for split in KNOWN[benchmark]] == [size] * 5
    assert {label for split in KNOWN[benchmark] for label in split} <= set(range(10))


def test_fifty_unknown_classes_end_with_the_ten():
    ten, fifty = UNKNOWN_OF_CIFAR100["cifar+10"], UNKNOWN_OF_CIFAR100["cifar+50"]
    assert [len(set(split)) for split in ten] == [10] * 5
    assert [len(set(split)) for split in fifty] == [50] * 5
    assert [split[-10:] for split in fifty] == list(ten)
    assert {label for split in fifty for label in split} <= set(range(100))


@pytest.mark.parametrize(("benchmark", "pair"), [("svhn", (0, 1)), ("cifar10", (0, 1)), ("cifar+", (1, 2))])
def test_two_lists_of_each_benchmark_hold_the_same_classes(benchmark, pair):
    sets = [frozenset(split) for split in KNOWN[benchmark]]
    assert len(set(sets)) == 4
    assert sets[pair[0]] == sets[pair[1]]
