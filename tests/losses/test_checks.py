"""Every input that cannot be meant, and the sentence it is answered with."""

import collections

import pytest
import torch

from maxsep.losses import BalancedSoftmaxLoss, SquaredCosineLoss
from maxsep.losses.checks import check_class_counts, check_class_weights, check_number


@pytest.mark.parametrize(
    "counts",
    [
        [5, 1],
        (5, 1),
        [5.0, 1.0],
        torch.tensor([5, 1]),
        torch.tensor([5, 1], dtype=torch.uint8),
        torch.tensor([5.0, 1.0], dtype=torch.float16),
        torch.tensor([5.0, 1.0], requires_grad=True),
        torch.tensor([5, 1]).numpy(),
        range(5, 0, -4),
    ],
)
def test_counts_of_many_types(counts):
    result = check_class_counts(counts)
    assert result.tolist() == [5, 1]
    assert result.dtype == torch.int64


def test_counts_beyond_float32_are_exact():
    assert check_class_counts([2.0**24 + 1, 2**40 + 1]).tolist() == [2**24 + 1, 2**40 + 1]


def test_counts_are_copied():
    counts = torch.tensor([5, 1])
    kept = check_class_counts(counts)
    counts.zero_()
    assert kept.tolist() == [5, 1]


@pytest.mark.parametrize(
    ("counts", "error", "message"),
    [
        (
            [5, 0],
            ValueError,
            r"at least 1, got 0 for class 1. Leave a class without samples out, and its logit",
        ),
        ([-3, 5], ValueError, r"at least 1, got -3 for class 0"),
        ([5, 2.5], ValueError, r"whole numbers, got 2.5 for class 1. Pass counts, not frequencies"),
        ([5, float("nan")], ValueError, r"whole numbers, got nan for class 1"),
        ([float("inf"), 5], ValueError, r"whole numbers, got inf for class 0"),
        ([5, 1e300], ValueError, r"whole numbers, got 1e\+300 for class 1"),
        ([7], ValueError, r"each of at least 2 classes, got 1. Pass the counts of all classes"),
        ([], ValueError, r"each of at least 2 classes, got 0"),
        ([[5, 1]], ValueError, r"one dimension, got shape \(1, 2\). Pass a list or a tensor with how many"),
        (5, ValueError, r"one dimension, got shape \(\)"),
        ("51", TypeError, r"must be numbers, got str '51'. Pass a list"),
        ([5, "1"], TypeError, r"must be numbers, got list \[5, '1'\]"),
        ([5, 10**30], TypeError, r"must be numbers, got list"),
        (
            collections.Counter([0, 0, 1]),
            TypeError,
            r"in the order of the classes, got Counter. Pass a list such as",
        ),
        (None, TypeError, r"must be numbers, got NoneType None"),
        ([True, True], TypeError, r"must be numbers, got dtype torch.bool"),
        ([1j, 2j], TypeError, r"must be numbers, got dtype torch.complex"),
        (
            torch.ones(2, device="meta"),
            ValueError,
            r"is on the meta device and has no values. Pass a list",
        ),
    ],
)
def test_bad_counts(counts, error, message):
    with pytest.raises(error, match=f"class_counts .*{message}"):
        check_class_counts(counts)


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        ([1.0, 2.0], ValueError, r"each of the 3 classes of class_counts, got 2. Compute it from the same counts"),
        ([1.0, 0.0, 2.0], ValueError, r"weight must be positive and finite, got 0 for class 1. Give a class that"),
        ([1.0, 2.0, -1.0], ValueError, r"positive and finite, got -1 for class 2"),
        ([1.0, float("inf"), 1.0], ValueError, r"positive and finite, got inf for class 1"),
        ([1.0, float("nan"), 1.0], ValueError, r"positive and finite, got nan for class 1"),
        (
            "balanced",
            TypeError,
            r"weight must be numbers, got str 'balanced'. Pass a list or a tensor with one positive",
        ),
    ],
)
def test_bad_weights(weight, error, message):
    with pytest.raises(error, match=message):
        check_class_weights(weight, 3)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-1, ValueError, r"tau must be a number of at least 0, got -1. Choose a value in this range"),
        (float("nan"), ValueError, r"got nan"),
        (float("inf"), ValueError, r"got inf"),
        ("1", TypeError, r"tau must be a number of at least 0, got str '1'. Pass a plain number"),
        (True, TypeError, r"got bool True"),
        (None, TypeError, r"got NoneType None"),
    ],
)
def test_bad_numbers(value, error, message):
    with pytest.raises(error, match=message):
        check_number("tau", value, "a number of at least 0", lambda tau: tau >= 0)


X, TARGET = torch.zeros(3, 2), torch.tensor([0, 1, 0])


@pytest.mark.parametrize(
    ("logits", "target", "error", "message"),
    [
        ([[0.0, 0.0]], TARGET, TypeError, r"logits must be a tensor, got list"),
        (X.long(), TARGET, TypeError, r"logits must be a real floating-point tensor, got dtype torch.int64"),
        (
            torch.zeros(3, 5),
            TARGET,
            ValueError,
            r"logits must be \(batch, 2\), one column for .* got shape \(3, 5\). Check",
        ),
        (torch.zeros(2), TARGET, ValueError, r"logits must be \(batch, 2\)"),
        (torch.zeros(3, 2, 4), TARGET, ValueError, r"flatten any further dimensions"),
        (
            X,
            [0, 1, 0],
            TypeError,
            r"target must be a tensor of class indices, got list. Convert it with torch.as_tensor",
        ),
        (X, TARGET.int(), TypeError, r"dtype torch.int64, got torch.int32. Convert indices with target.long\(\)"),
        (X, TARGET.float(), TypeError, r"got torch.float32"),
        (X, TARGET.bool(), TypeError, r"got torch.bool"),
        (X, X, TypeError, r"one-hot rows with target.argmax\(1\); for two labels a sample, mix two losses"),
        (
            X,
            X.long(),
            ValueError,
            r"target must be \(3,\), a class index for every row of logits, got shape \(3, 2\). Turn",
        ),
        (X, TARGET[:2], ValueError, r"target must be \(3,\), .* got shape \(2,\). Give as many labels as samples"),
        (X, TARGET[0], ValueError, r"got shape \(\)"),
        (
            X[:0],
            TARGET[:0],
            ValueError,
            r"mean loss of an empty batch is not defined, got 0 samples. Skip empty batches",
        ),
        (
            X,
            TARGET.to("meta"),
            ValueError,
            r"one device, got cpu and meta. Move the target with target.to\(logits.device\)",
        ),
    ],
)
def test_bad_batches(logits, target, error, message):
    with pytest.raises(error, match=message):
        BalancedSoftmaxLoss([5, 1])(logits, target)


def test_bad_features_are_called_features():
    with pytest.raises(
        ValueError, match=r"features must be \(batch, 3\), as wide as the prototypes, got shape \(2, 2\)"
    ):
        SquaredCosineLoss(torch.eye(3))(torch.zeros(2, 2), torch.tensor([0, 1]))


def test_counts_may_come_from_a_generator_but_not_in_the_order_of_a_counter():
    with pytest.raises(TypeError, match=r"order of the classes, got dict_values. Pass.*torch.bincount\(labels\)"):
        check_class_counts(collections.Counter([2, 0, 0]).values())
    assert check_class_counts(count for count in (3, 4)).tolist() == [3, 4]
