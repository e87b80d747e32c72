"""What users' arrays become: weights, class indices, what is held out, how features are scaled."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_sample_weight

from maxsep.sklearn.samples import (
    Samples,
    agree_on_classes,
    check_spread,
    class_positions,
    hold_out,
    standardisation,
    weigh,
)


def numbered(target):
    """Samples that can be told apart by their feature."""
    return Samples(torch.arange(len(target))[:, None], target, torch.ones(len(target)))


@given(
    counts=st.lists(st.integers(0, 12), min_size=2, max_size=6),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 99),
)
def test_every_class_gives_its_share_and_keeps_one(counts, fraction, seed):
    target = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    target = target[torch.randperm(len(target), generator=torch.Generator().manual_seed(seed))]
    if max(counts) < 2:
        return
    kept, held = hold_out(numbered(target), fraction, torch.Generator().manual_seed(seed))
    assert sorted([*kept.x.flatten().tolist(), *held.x.flatten().tolist()]) == list(range(len(target)))
    for part in (kept, held):
        assert part.target.equal(target[part.x.flatten()])
    of_each = held.target.bincount(minlength=len(counts)).tolist()
    for number, count in zip(of_each, counts, strict=True):
        assert number <= max(count - 1, 0)
        assert min(int(fraction * count), count - 1) <= number <= fraction * count + 1 or count == 0
    assert 1 <= len(held.target) <= max(1, round(fraction * len(target)))
    if all(number < count - 1 for number, count in zip(of_each, counts, strict=True)):  # no class at its limit
        assert len(held.target) == max(1, round(fraction * len(target)))


def test_what_is_held_out_is_random():
    target = torch.zeros(100, dtype=torch.long)
    drawn = [hold_out(numbered(target), 0.1, torch.Generator().manual_seed(seed))[1].x for seed in (0, 0, 1)]
    assert drawn[0].equal(drawn[1])
    assert not drawn[0].equal(drawn[2])


def test_classes_of_one_sample_each_cannot_give_any():
    told = "no sample of 3 can be held out: every class has one, which it needs for training. Leave early_stopping off."
    with pytest.raises(ValueError, match=re.escape(told)):
        hold_out(numbered(torch.arange(3)), 0.5, torch.Generator())


@pytest.mark.parametrize("class_weight", [None, "balanced", {"a": 2.0, "b": 0.5, "c": 1.0}])
def test_weights_are_those_of_scikit_learn_over_their_mean(class_weight):
    y = np.array(["a", "b", "b", "c", "c", "c"])
    index = np.array([0, 1, 1, 2, 2, 2])
    samples, total = weigh(np.zeros((6, 1)), index, np.unique(y), class_weight)
    expected = compute_sample_weight(class_weight, y)
    np.testing.assert_allclose(samples.weight, expected / expected.mean())
    assert total.tolist() == [1, 2, 3]


def test_samples_without_a_weight_are_left_out():
    X, index = np.arange(4.0)[:, None], np.array([0, 0, 1, 1])
    samples, total = weigh(X, index, np.array([0, 1]), {0: 1.0, 1: 3.0}, [0, 1, 2, 0])
    assert samples.x.flatten().tolist() == [1, 2]
    assert samples.target.tolist() == [0, 1]
    np.testing.assert_allclose(samples.weight, [2 / 7, 12 / 7])
    assert total.tolist() == [1, 2]  # of the samples alone
    told = (
        "every weight, sample_weight times class_weight, is zero: there is nothing to learn from. "
        "Give some samples a positive weight."
    )
    with pytest.raises(ValueError, match=re.escape(told)):
        weigh(X, index, np.array([0, 1]), {0: 0.0, 1: 1.0}, [1, 1, 0, 0])
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        weigh(X, index, np.array([0, 1]), None, [1, 1, -1, 1])


def test_standardisation_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    X, weight = rng.normal(3, 7, (50, 4)), rng.uniform(0, 2, 50)
    expected = StandardScaler().fit(X, sample_weight=weight).transform(X)
    X[:, 3] = 0.1  # does not vary, but its mean is not exact
    layer = standardisation(Samples(torch.tensor(X), torch.zeros(50), torch.tensor(weight)))
    assert layer.eps > 0  # torch 2.11 takes no less
    standardised = layer(torch.tensor(X)).numpy()
    np.testing.assert_allclose(standardised[:, :3], expected[:, :3], atol=1e-12)
    np.testing.assert_allclose(standardised[:, 3], 0, atol=1e-12)
    assert not layer.training


def test_classes_are_agreed_on():
    known = np.array([1, 2, 5])
    assert agree_on_classes(None, known) is known
    assert agree_on_classes([5, 1, 2], known) is known
    for named, before, told in (
        (None, None, "the first call of partial_fit must name all classes, got classes=None. "
                     "Pass classes=np.unique(y) of all labels that will come."),
        ([1, 2], known, "classes must be those of the first call, [1, 2, 5], got [1, 2]. "
                        "Leave them out, or train a clone for other classes."),
        ([3], None, "a classifier needs samples of at least 2 classes with a positive weight, got one class. "
                    "Check y and the weights; for one-class problems use a detector."),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(told)):
            agree_on_classes(named, before)


def test_labels_beyond_the_classes_are_named():
    assert class_positions(np.array(["y", "x"]), np.array(["x", "y"])).tolist() == [1, 0]
    told = (
        "y must hold labels among the classes [0, 1], got [2, 7] too. "
        "Name all classes in the first call of partial_fit."
    )
    with pytest.raises(ValueError, match=re.escape(told)):
        class_positions(np.array([0, 2, 7, 2]), np.array([0, 1]))


@pytest.mark.parametrize(("rows", "told"), [(1, "has one sample: "), (3, "has 3 samples that are all alike: ")])
def test_samples_that_tell_no_scale_are_warned_of(rows, told):
    samples = Samples(torch.ones(rows, 2), torch.zeros(rows, dtype=torch.int64), torch.ones(rows))
    with pytest.warns(UserWarning, match=rf"^the first call of partial_fit fixes mean and scale .*, and it {told}"):
        check_spread(samples)
