import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep.analysis import accuracy_by_shot, expected_calibration_error, shot_groups


def calibration_by_definition(probabilities, labels, bins):
    rows = [(max(row), row.index(max(row)) == label) for row, label in zip(probabilities, labels, strict=True)]
    total = 0.0
    for b in range(bins):
        members = [(p, hit) for p, hit in rows if b / bins < p <= (b + 1) / bins]
        total += abs(sum(hit - p for p, hit in members))
    return total / len(rows)


@given(seed=st.integers(0, 10_000), rows=st.integers(1, 40), classes=st.integers(2, 6), bins=st.integers(1, 20))
def test_calibration_error_is_the_weighted_gap_of_the_bins(seed, rows, classes, bins):
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.randn(rows, classes, generator=generator, dtype=torch.float64).mul(3).softmax(1)
    labels = torch.randint(classes, (rows,), generator=generator)
    expected = calibration_by_definition(probabilities.tolist(), labels.tolist(), bins)
    assert expected_calibration_error(probabilities, labels, bins) == pytest.approx(expected, abs=1e-12)


def test_calibration_error_by_hand():
    assert expected_calibration_error(torch.eye(4), torch.arange(4)) == 0
    # bins are closed on the right: 0.75 is in the third of four bins, together with 0.7
    probabilities = torch.tensor([[0.75, 0.25], [0.70, 0.30]], dtype=torch.float64)
    assert expected_calibration_error(probabilities, torch.tensor([0, 1]), 4) == pytest.approx(abs(0.5 - 0.725))


@pytest.mark.parametrize(
    ("probabilities", "labels", "bins", "name"),
    [
        (torch.tensor([[3.0, -1.0]]), torch.tensor([0]), 15, "softmax"),
        (torch.ones(0, 2), torch.zeros(0), 15, "probabilities"),
        (torch.ones(1, 1), torch.zeros(1), 0, "bins"),
        (torch.ones(2, 2), torch.tensor([0, 1]), 15, "sum to 1"),
        (torch.eye(2), torch.tensor([0, 7]), 15, "0 to 7"),
        (torch.eye(2), torch.tensor([0, -100]), 15, "labels"),
        (torch.eye(2).numpy(), torch.tensor([0, 1]), 15, "ndarray"),
        (torch.eye(2), [0, 1], 15, "labels"),
    ],
)
def test_invalid_probabilities(probabilities, labels, bins, name):
    with pytest.raises((ValueError, TypeError), match=name):
        expected_calibration_error(probabilities, labels, bins)


@pytest.mark.parametrize(("imbalance", "sizes"), [(0.1, [69, 31, 0]), (0.02, [41, 41, 18]), (0.01, [35, 35, 30])])
def test_the_groups_of_long_tailed_cifar100(imbalance, sizes):
    groups = shot_groups([int(500 * imbalance ** (i / 99)) for i in range(100)])
    assert [len(group) for group in groups.values()] == sizes
    assert [*itertools.chain(*groups.values())] == list(range(100))


def test_other_limits():
    assert shot_groups([100, 99, 21, 20], many=99, few=21) == {"many": [0], "medium": [1, 2], "few": [3]}
    assert shot_groups([3, 4], many=3, few=4) == {"many": [1], "medium": [], "few": [0]}


def test_accuracies_are_averaged_over_classes():
    means = accuracy_by_shot([0.9, 0.7, 0.5, 0.2, 0.4, 0.0], [500, 101, 100, 20, 19, 1])
    assert means == pytest.approx({"many": 0.8, "medium": 0.35, "few": 0.2, "all": 0.45})
    means = accuracy_by_shot([0.5, math.nan, 1.0], [500, 400, 300])
    assert means == {"many": 0.75, "medium": None, "few": None, "all": 0.75}


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: shot_groups([]), "class_counts"),
        (lambda: shot_groups([0.5]), "class_counts"),
        (lambda: shot_groups([1], many=5, few=7), "few"),
        (lambda: accuracy_by_shot([0.5], [1, 2]), "accuracies"),
        (lambda: accuracy_by_shot([50.0], [1]), "accuracies"),
    ],
)
def test_invalid_arguments(call, name):
    with pytest.raises((ValueError, TypeError), match=name):
        call()
