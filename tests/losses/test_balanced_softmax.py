import math

import pytest
import torch
import torch.nn.functional as F

from maxsep.losses import BalancedSoftmaxLoss


def test_a_value_by_hand():
    loss = BalancedSoftmaxLoss([3, 2, 1])
    x = torch.tensor([[0.0, 0.0, math.log(5)]], dtype=torch.float64)  # weights 3, 2 and 5 of 10
    values = [loss(x, torch.tensor([label])).item() for label in range(3)]
    assert values == pytest.approx([-math.log(0.3), -math.log(0.2), -math.log(0.5)], abs=1e-14)


def test_with_equal_counts_it_is_cross_entropy():
    x, target = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    for counts in ([1] * 4, [700] * 4):
        torch.testing.assert_close(BalancedSoftmaxLoss(counts)(x, target), F.cross_entropy(x, target))


def test_huge_and_tiny_classes_stay_finite():
    x = torch.randn(2, 2, requires_grad=True)
    value = BalancedSoftmaxLoss([10**18, 1])(x, torch.tensor([0, 1]))
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()
