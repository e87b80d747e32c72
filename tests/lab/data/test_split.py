"""Stratified hold-outs and limits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.lab.data import hold_out, limit
from maxsep.lab.data.split import held_counts

HELD = [4, 6, 8, 16, 17, 18]
LIMITED = [4, 6, 8, 16, 18]
LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=100).map(torch.tensor)


@settings(max_examples=60, deadline=None)
@given(LABELS, st.floats(0.01, 0.99), st.integers(0, 1000))
def test_hold_out_splits_every_class(labels, fraction, seed):
    kept, held = hold_out(labels, fraction, seed)
    assert sorted(kept.tolist() + held.tolist()) == list(range(len(labels)))
    assert kept.tolist() == sorted(kept.tolist())
    assert held.tolist() == sorted(held.tolist())
    for label in labels.unique():
        total, out = int((labels == label).sum()), int((labels[held] == label).sum())
        assert out < total, "a class keeps a training image"
        assert out >= (1 if total > 1 else 0)
        assert abs(out - fraction * total) <= 1
    counts = torch.bincount(labels)
    assert held_counts(counts.tolist(), fraction) == torch.bincount(labels[held], minlength=len(counts)).tolist()
    again = hold_out(labels, fraction, seed)
    assert torch.equal(kept, again[0])


@settings(max_examples=60, deadline=None)
@given(LABELS, st.integers(1, 120), st.integers(0, 1000))
def test_limit_keeps_proportions(labels, count, seed):
    chosen = limit(labels, count, seed)
    assert len(chosen) == min(count, len(labels))
    assert len(set(chosen.tolist())) == len(chosen)
    present = len(labels.unique())
    assert len(labels[chosen].unique()) == min(present, len(chosen))
    for label in labels.unique():
        share = len(chosen) * int((labels == label).sum()) / len(labels)
        assert abs(int((labels[chosen] == label).sum()) - share) <= present
    assert torch.equal(chosen, limit(labels, count, seed))


def test_choices_are_the_same_everywhere():
    """Fixed values: a run on another machine must see the same images."""
    labels = torch.arange(3).repeat(7)
    assert hold_out(labels, 0.3, seed=5)[1].tolist() == HELD
    assert limit(labels, 5, seed=5).tolist() == LIMITED
    assert hold_out(labels, 0.3, seed=6)[1].tolist() != HELD


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 2, float("nan")])
def test_bad_fraction(fraction):
    with pytest.raises(ValueError, match="fraction must lie strictly between 0 and 1"):
        hold_out(torch.tensor([0, 1]), fraction)


@pytest.mark.parametrize("count", [0, -3, 2.5, True])
def test_bad_limit(count):
    with pytest.raises(ValueError, match="whole number of at least 1, got"):
        limit(torch.tensor([0, 1]), count)
