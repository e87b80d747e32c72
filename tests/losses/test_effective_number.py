import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.losses import effective_number_weights

counts = st.lists(st.integers(1, 10**7), min_size=2, max_size=30)


@pytest.mark.parametrize(
    ("imbalance", "head", "tail"), [(0.1, 0.2582, 2.5247), (0.02, 0.0789, 3.8494), (0.01, 0.0449, 4.3783)]
)
def test_published_weights_of_cifar100(imbalance, head, tail):
    weights = effective_number_weights([int(500 * imbalance ** (j / 99)) for j in range(100)])
    assert weights[0].item() == pytest.approx(head, abs=5e-5)
    assert weights[-1].item() == pytest.approx(tail, abs=5e-5)
    assert weights.sum().item() == pytest.approx(100)


def test_a_value_by_hand():
    # (1 - 0.5) / (1 - 0.5^n) for n = 1, 2: 1 and 2/3, scaled to sum 2
    assert effective_number_weights([1, 2], 0.5).tolist() == pytest.approx([1.2, 0.8])


@given(counts=counts, beta=st.floats(0, 1, exclude_max=True))
@settings(max_examples=100)
def test_weights_sum_to_the_number_of_classes_and_favour_the_rare(counts, beta):
    weights = effective_number_weights(counts, beta, dtype=torch.float64)
    assert weights.sum().item() == pytest.approx(len(counts), rel=1e-12)
    assert (weights > 0).all()
    pairs = sorted(zip(counts, weights.tolist(), strict=True))
    assert all(a >= b * (1 - 1e-12) for (_, a), (_, b) in itertools.pairwise(pairs))


def test_the_two_ends_of_beta():
    assert effective_number_weights([9, 3, 1], 0).tolist() == [1, 1, 1]
    inverse = effective_number_weights([9, 3, 1], 1 - 2**-53, dtype=torch.float64)
    torch.testing.assert_close(inverse, torch.tensor([1, 3, 9], dtype=torch.float64) * 3 / 13)


def test_equal_counts_weigh_the_same():
    assert effective_number_weights([1, 1]).tolist() == [1, 1]


def test_dtype_and_device():
    assert effective_number_weights([5, 1]).dtype == torch.float32
    assert effective_number_weights([5, 1], device="meta").device.type == "meta"
    with torch.device("meta"):
        assert effective_number_weights([5, 1]).device.type == "meta"


@pytest.mark.parametrize("beta", [1, 1.5, -0.1])
def test_bad_beta(beta):
    with pytest.raises(ValueError, match=rf"beta must be a number in \[0, 1\), got {beta}"):
        effective_number_weights([5, 1], beta)


def test_bad_counts():
    with pytest.raises(ValueError, match="class_counts must be at least 1, got 0 for class 1"):
        effective_number_weights([5, 0])
