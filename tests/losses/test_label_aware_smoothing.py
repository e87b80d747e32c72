import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.losses import LabelAwareSmoothingLoss

counts = st.lists(st.integers(1, 10**6), min_size=2, max_size=30)


@pytest.mark.parametrize(("imbalance", "head", "tail"), [(0.1, 0.2, 0.0), (0.02, 0.3, 0.0), (0.01, 0.4, 0.1)])
def test_smoothing_of_cifar100(imbalance, head, tail):
    sizes = [int(500 * imbalance ** (j / 99)) for j in range(100)]
    smoothing = LabelAwareSmoothingLoss(sizes, head, tail).smoothing.tolist()
    assert smoothing[0] == pytest.approx(head, abs=1e-15)
    assert smoothing[-1] == pytest.approx(tail, abs=1e-15)
    middle = math.sin(math.pi * (sizes[50] - sizes[-1]) / (2 * (sizes[0] - sizes[-1])))
    assert smoothing[50] == pytest.approx(tail + (head - tail) * middle, abs=1e-15)


def test_a_value_by_hand():
    # a third of the way up: sin(pi/6) = 1/2, so the smoothing is halfway between 0.1 and 0.4
    loss = LabelAwareSmoothingLoss([31, 11, 1], smooth_head=0.4, smooth_tail=0.1)
    assert loss.smoothing.tolist() == pytest.approx([0.4, 0.25, 0.1])
    x = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64).log()
    uniform = -(math.log(0.2) + math.log(0.3) + math.log(0.5)) / 3
    expected = [-0.6 * math.log(0.2) + 0.4 * uniform, -0.75 * math.log(0.3) + 0.25 * uniform]
    assert [loss(x, torch.tensor([label])).item() for label in (0, 1)] == pytest.approx(expected, abs=1e-14)
    assert loss(x.repeat(2, 1), torch.tensor([0, 1])).item() == pytest.approx(sum(expected) / 2, abs=1e-14)


@given(counts=counts, smoothing=st.floats(0, 1), seed=st.integers(0, 9))
@settings(max_examples=25)
def test_with_one_smoothing_it_is_torchs(counts, smoothing, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(7, len(counts), generator=generator, dtype=torch.float64)
    target = torch.randint(len(counts), (7,), generator=generator)
    loss = LabelAwareSmoothingLoss(counts, smoothing, smoothing)
    torch.testing.assert_close(loss(x, target), F.cross_entropy(x, target, label_smoothing=smoothing))


def test_without_smoothing_it_is_cross_entropy():
    x, target = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    torch.testing.assert_close(LabelAwareSmoothingLoss([9, 3, 1], 0, 0)(x, target), F.cross_entropy(x, target))


@pytest.mark.parametrize("count", [1, 500])
def test_equally_frequent_classes_are_all_head(count):
    assert LabelAwareSmoothingLoss([count] * 3, 0.4, 0.1).smoothing.tolist() == pytest.approx([0.4] * 3)


@given(counts=counts, ends=st.tuples(st.floats(0, 1), st.floats(0, 1)))
@settings(max_examples=50)
def test_smoothing_grows_with_the_count_between_its_ends(counts, ends):
    tail, head = sorted(ends)
    smoothing = LabelAwareSmoothingLoss(counts, head, tail).smoothing.tolist()
    assert all(tail - 1e-12 <= value <= head + 1e-12 for value in smoothing)
    pairs = sorted(zip(counts, smoothing, strict=True))
    assert all(a <= b + 1e-12 for (_, a), (_, b) in itertools.pairwise(pairs))


@pytest.mark.parametrize("name", ["smooth_head", "smooth_tail"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_bad_smoothing(name, value):
    with pytest.raises(ValueError, match=rf"{name} must be a number in \[0, 1\], got {value}"):
        LabelAwareSmoothingLoss([5, 1], **{"smooth_head": 0.4, "smooth_tail": 0.1, name: value})


def test_it_says_its_numbers():
    told = repr(LabelAwareSmoothingLoss([5, 1], 0.4, 0.1))
    assert told == "LabelAwareSmoothingLoss(num_classes=2, smooth_head=0.4, smooth_tail=0.1)"
