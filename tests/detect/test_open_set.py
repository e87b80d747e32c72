import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep.detect import auroc, oscr

values = st.lists(st.integers(-3, 3) | st.floats(-5, 5, allow_subnormal=False), min_size=1, max_size=25)


def tensors(known, unknown, random):
    correct = torch.tensor([random.random() < 0.7 for _ in known])
    return torch.tensor(known, dtype=torch.float64), correct, torch.tensor(unknown, dtype=torch.float64)


@given(values, values, st.randoms())
def test_it_counts_the_pairs_of_the_definition(known, unknown, random):
    known, correct, unknown = tensors(known, unknown, random)
    above = (known[:, None] > unknown) & correct[:, None]
    level = (known[:, None] == unknown) & correct[:, None]
    assert oscr(known, correct, unknown) == pytest.approx(float(above.double().mean()), abs=1e-12)
    half = float((above.double() + level.double() / 2).mean())
    assert oscr(known, correct, unknown, ties="half") == pytest.approx(half, abs=1e-12)


def area_over_thresholds_in_the_sample(known, correct, unknown):
    points = [(0.0, 0.0), (1.0, float(correct.double().mean()))]
    for t in torch.cat([known, unknown]).unique().tolist():
        points.append((float((unknown >= t).double().mean()), float(((known > t) & correct).double().mean())))
    points.sort()
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in itertools.pairwise(points))


@given(st.integers(0, 1000), st.integers(1, 40), st.integers(1, 40))
def test_the_trapezoid_over_sampled_thresholds_comes_as_close_as_documented(seed, num_known, num_unknown):
    generator = torch.Generator().manual_seed(seed)
    known = torch.randn(num_known, generator=generator, dtype=torch.float64) + 1
    unknown = torch.randn(num_unknown, generator=generator, dtype=torch.float64)
    correct = torch.rand(num_known, generator=generator) < 0.8
    lost = oscr(known, correct, unknown) - area_over_thresholds_in_the_sample(known, correct, unknown)
    assert -1e-12 <= lost <= 1 / (2 * max(num_known, num_unknown)) + 1e-12


@given(values, values, st.randoms())
def test_it_is_bounded_by_accuracy_and_is_auroc_when_all_are_right(known, unknown, random):
    known, correct, unknown = tensors(known, unknown, random)
    assert oscr(known, correct, unknown, ties="half") <= float(correct.double().mean()) + 1e-12
    everything = torch.ones_like(correct)
    assert oscr(known, everything, unknown, ties="half") == auroc(known, unknown)
    assert oscr(known, correct, unknown) <= oscr(known, everything, unknown) <= auroc(known, unknown)


def test_perfect_detection_leaves_the_accuracy():
    known, unknown = torch.tensor([5.0, 6.0, 7.0, 8.0]), torch.tensor([1.0, 2.0])
    assert oscr(known, torch.tensor([True, True, False, True]), unknown) == 0.75
    assert oscr(known, torch.zeros(4, dtype=torch.bool), unknown) == 0
    assert oscr(known[:1], torch.tensor([True]), unknown[:1]) == 1


def test_constant_scores():
    known, correct, unknown = torch.ones(4), torch.tensor([True, True, True, False]), torch.ones(2)
    assert oscr(known, correct, unknown) == 0
    assert oscr(known, correct, unknown, ties="half") == 0.375


def test_bad_input_is_explained():
    one, right = torch.ones(1), torch.tensor([True])
    with pytest.raises(TypeError, match=r"known_correct must be a boolean tensor, got dtype torch\.float32"):
        oscr(one, one, one)
    with pytest.raises(TypeError, match="known_correct must be a boolean tensor, got list"):
        oscr(one, [True], one)
    with pytest.raises(ValueError, match=r"one entry per known score, got shape \(1,\) for 2 scores"):
        oscr(torch.ones(2), right, one)
    with pytest.raises(ValueError, match="known_scores is empty"):
        oscr(one[:0], right[:0], one)
    with pytest.raises(ValueError, match="unknown_scores is empty"):
        oscr(one, right, one[:0])
    with pytest.raises(ValueError, match="known_scores holds 1 NaN"):
        oscr(one * float("nan"), right, one)
    with pytest.raises(ValueError, match="ties must be 'strict' or 'half', got 'full'"):
        oscr(one, right, one, ties="full")
