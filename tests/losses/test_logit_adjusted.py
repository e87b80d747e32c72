import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.losses import BalancedSoftmaxLoss, LogitAdjustedLoss

counts = st.lists(st.integers(1, 10**6), min_size=2, max_size=30)


def draw(num_classes, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(7, num_classes, generator=generator, dtype=torch.float64)
    return x, torch.randint(num_classes, (7,), generator=generator)


def test_a_value_by_hand():
    # priors 0.9 and 0.1; at tau = 2 the odds of class 1 are e^1 * (1/9)^2
    loss = LogitAdjustedLoss([90, 10], tau=2.0)
    value = loss(torch.tensor([[0.0, 1.0]], dtype=torch.float64), torch.tensor([1]))
    assert value.item() == pytest.approx(math.log(1 + 81 / math.e), abs=1e-14)


@given(counts=counts, seed=st.integers(0, 9))
@settings(max_examples=25)
def test_at_tau_zero_it_is_cross_entropy(counts, seed):
    x, target = draw(len(counts), seed)
    torch.testing.assert_close(LogitAdjustedLoss(counts, tau=0)(x, target), F.cross_entropy(x, target))


@given(count=st.integers(1, 10**6), num_classes=st.integers(2, 30), tau=st.floats(0, 5))
@settings(max_examples=25)
def test_with_equal_counts_it_is_cross_entropy(count, num_classes, tau):
    x, target = draw(num_classes, 0)
    torch.testing.assert_close(LogitAdjustedLoss([count] * num_classes, tau)(x, target), F.cross_entropy(x, target))


@given(counts=counts, seed=st.integers(0, 9))
@settings(max_examples=25)
def test_at_tau_one_it_is_balanced_softmax(counts, seed):
    x, target = draw(len(counts), seed)
    torch.testing.assert_close(LogitAdjustedLoss(counts)(x, target), BalancedSoftmaxLoss(counts)(x, target))


@given(counts=counts, tau=st.floats(0, 3), shift=st.floats(-100, 100))
@settings(max_examples=25)
def test_a_common_shift_of_the_logits_changes_nothing(counts, tau, shift):
    x, target = draw(len(counts), 0)
    loss = LogitAdjustedLoss(counts, tau)
    torch.testing.assert_close(loss(x + shift, target), loss(x, target), rtol=1e-10, atol=1e-12)


def test_logits_of_the_balanced_posterior_minimise_it():
    # two classes, one input: labels come in proportion of the priors, so equal logits are best
    x = torch.zeros(10, 2, dtype=torch.float64, requires_grad=True)
    LogitAdjustedLoss([9, 1])(x, torch.tensor([0] * 9 + [1])).backward()
    torch.testing.assert_close(x.grad.sum(0), torch.zeros(2, dtype=torch.float64), atol=1e-15, rtol=0)


def test_bad_tau():
    with pytest.raises(ValueError, match="tau must be a number of at least 0, got -1"):
        LogitAdjustedLoss([5, 1], tau=-1)


def test_it_says_its_numbers():
    assert repr(LogitAdjustedLoss([5, 1], 1.5)) == "LogitAdjustedLoss(num_classes=2, tau=1.5)"
