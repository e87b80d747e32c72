"""What counts as a long tail, and the groups of classes in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxsep.analysis import shot_groups
from maxsep.lab.report.tail import GROUPS, by_group, class_counts, in_words, is_unequal, sizes

COUNTS = st.lists(st.integers(0, 1000), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([150, 105, 70, 6], "unequal, 150 to 6 images a class"),
        ([6, 150], "unequal, 150 to 6 images a class"),
        ([13861, 4659], "unequal, 13,861 to 4,659 images a class"),
        ([31, 20], "unequal, 31 to 20 images a class"),
        ([30, 20], ""),
        ([122, 116, 119], ""),
        ([5000] * 10, ""),
        ([3, 0], "unequal, 3 to 0 images a class"),
        ([], ""),
    ],
)
def test_more_than_half_as_many_again_is_unequal(counts, told):
    assert in_words(counts) == told
    assert is_unequal(counts) == bool(told)


def test_counts_of_a_record():
    assert class_counts({"class_counts": [3, 0]}) == [3, 0]
    for metrics in ({}, {"class_counts": None}, {"class_counts": []}, {"class_counts": [1.5]}, {"class_counts": [-1]}):
        assert class_counts(metrics) == []


@given(COUNTS)
def test_a_group_has_the_mean_of_its_classes(counts):
    """The accuracy of a class is its place here, so that a mean tells which classes it is of."""
    found = by_group({"per_class": [place / 100 for place in range(len(counts))], "class_counts": counts})
    groups = {group: places for group, places in shot_groups(counts).items() if places}
    assert found == pytest.approx({group: sum(places) / len(places) / 100 for group, places in groups.items()})
    assert list(found) == [group for group in GROUPS if group in found]


def test_what_was_not_tested_or_not_recorded_is_left_out():
    counts = [500, 400, 30, 3]
    told = by_group({"per_class": [1.0, None, None, 0.5], "class_counts": counts})
    assert told == {"many": 1.0, "few": 0.5}
    assert by_group({"class_counts": counts}) == by_group({"per_class": [1.0]}) == {}
    assert by_group({"per_class": [1.0], "class_counts": counts}) == {}


@given(COUNTS)
def test_sizes_name_the_groups_that_there_are(counts):
    told = sizes(counts)
    groups = {group: len(places) for group, places in shot_groups(counts).items() if places}
    assert [part.split(" ")[:2] for part in told.split("; ")] == [[f"{name}:", str(n)] for name, n in groups.items()]
    assert told.count("training images") == 1


def test_sizes_in_words():
    assert sizes([101, 100, 20, 19]) == (
        "many: 1 class with more than 100 training images; medium: 2 with 20 to 100; few: 1 with fewer than 20"
    )
    assert sizes([5, 6]) == "few: 2 classes with fewer than 20 training images"
