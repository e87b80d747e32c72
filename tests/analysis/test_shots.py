import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep.analysis import accuracy_by_shot, per_class_accuracy, shot_groups


def exponential_counts(imbalance, largest=500, classes=100):
    return [int(largest * imbalance ** (i / (classes - 1))) for i in range(classes)]


@pytest.mark.parametrize(("imbalance", "sizes"), [(0.1, [69, 31, 0]), (0.02, [41, 41, 18]), (0.01, [35, 35, 30])])
def test_the_groups_of_long_tailed_cifar100(imbalance, sizes):
    groups = shot_groups(exponential_counts(imbalance))
    assert [len(group) for group in groups.values()] == sizes
    assert [*itertools.chain(*groups.values())] == list(range(100))


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30))
def test_every_class_is_in_the_one_group_of_its_count(counts):
    groups = shot_groups(torch.tensor(counts))
    assert sorted(itertools.chain(*groups.values())) == list(range(len(counts)))
    assert all(counts[c] > 100 for c in groups["many"])
    assert all(20 <= counts[c] <= 100 for c in groups["medium"])
    assert all(counts[c] < 20 for c in groups["few"])


def test_other_thresholds():
    # one published list counts 100 as many and 20 as few
    assert shot_groups([100, 99, 21, 20], many=99, few=21) == {"many": [0], "medium": [1, 2], "few": [3]}
    assert shot_groups([3, 4], many=3, few=4) == {"many": [1], "medium": [], "few": [0]}


def test_accuracies_are_averaged_over_classes():
    told = accuracy_by_shot([0.9, 0.7, 0.5, 0.2, 0.4, 0.0], [500, 101, 100, 20, 19, 1])
    assert told == pytest.approx({"many": 0.8, "medium": 0.35, "few": 0.2, "all": 0.45})


def test_predictions_and_logits_give_the_same_as_accuracies():
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    predictions = torch.tensor([0, 0, 2, 1, 0, 2])
    counts = torch.tensor([500, 50, 5])
    expected = accuracy_by_shot([2 / 3, 1 / 2, 1.0], counts)
    assert accuracy_by_shot(predictions, counts, labels=labels) == pytest.approx(expected)
    logits = torch.nn.functional.one_hot(predictions, 3).float()
    assert accuracy_by_shot(logits, counts, labels=labels) == pytest.approx(expected)


def test_groups_and_classes_without_samples():
    told = accuracy_by_shot([0.5, math.nan, 1.0], [500, 400, 300])
    assert told == {"many": 0.75, "medium": None, "few": None, "all": 0.75}
    empty = torch.zeros(0, dtype=torch.int64)
    assert accuracy_by_shot(empty, [500, 5], labels=empty) == {"many": None, "medium": None, "few": None, "all": None}
    assert per_class_accuracy(torch.tensor([1]), torch.tensor([1]), 3).isnan().tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: shot_groups([]), ValueError, r"class_counts must hold one number per class, got shape \(0,\)"),
        (lambda: shot_groups([[1]]), ValueError, r"class_counts must hold one number per class, got shape \(1, 1\)"),
        (lambda: shot_groups([-1]), ValueError, "class_counts must be whole numbers, zero or more"),
        (lambda: shot_groups([0.5]), ValueError, "class_counts must be whole numbers, zero or more"),
        (lambda: shot_groups([math.nan]), ValueError, "class_counts must be whole numbers, zero or more"),
        (lambda: shot_groups([1], many=5, few=7), ValueError, r"few must be at most many \+ 1, got few=7 and many=5"),
        (lambda: shot_groups([1], many=0), ValueError, "many must be at least 1, got 0"),
        (lambda: shot_groups([1], few=2.5), TypeError, "few must be an int, got float 2.5"),
        (lambda: accuracy_by_shot([0.5], [1, 2]), ValueError, "accuracies has 1 entries, class_counts 2"),
        (
            lambda: accuracy_by_shot([50.0], [1]),
            ValueError,
            r"must be fractions in \[0, 1\]. Divide percentages by 100",
        ),
        (
            lambda: per_class_accuracy(torch.zeros(2).long(), torch.zeros(3).long(), 2),
            ValueError,
            r"labels \(N,\), got \(2,\) and \(3,\)",
        ),
        (
            lambda: per_class_accuracy(torch.zeros(2), torch.zeros(2).long(), 2),
            TypeError,
            "must be whole numbers, got torch.float32 and torch.int64",
        ),
        (
            lambda: per_class_accuracy(torch.tensor([0]), torch.tensor([2]), 2),
            ValueError,
            r"labels must lie in 0\.\.1, got 2\.\.2",
        ),
    ],
)
def test_bad_input_is_explained(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
