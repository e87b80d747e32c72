import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.losses import LDAMLoss, effective_number_weights

counts = st.lists(st.integers(1, 10**6), min_size=2, max_size=30)


def cifar100(imbalance):
    return [int(500 * imbalance ** (j / 99)) for j in range(100)]


@pytest.mark.parametrize(("imbalance", "head"), [(0.1, 0.28117), (0.02, 0.18803), (0.01, 0.15811)])
@pytest.mark.parametrize("max_margin", [0.5, 0.4])
def test_published_margins_of_cifar100(imbalance, head, max_margin):
    margins = LDAMLoss(cifar100(imbalance), max_margin).margins
    assert margins[0].item() == pytest.approx(head * max_margin / 0.5, abs=5e-6)
    assert margins[-1].item() == pytest.approx(max_margin, abs=1e-15)


def test_a_value_by_hand():
    loss = LDAMLoss([16, 1], max_margin=0.5, scale=2.0)  # margins 0.5 * (1/16)^(1/4) = 0.25 and 0.5
    cosines = torch.tensor([[0.5, -0.5], [0.3, 0.9]], dtype=torch.float64)
    first = torch.tensor(2 * -0.5 - 2 * 0.25).exp().log1p()  # -log p_0 = log(1 + e^(z_1 - z_0))
    second = torch.tensor(2 * 0.3 - 2 * 0.4).exp().log1p()
    assert loss(cosines, torch.tensor([0, 1])).item() == pytest.approx((first + second).item() / 2, abs=1e-7)
    loss.reweight([1.0, 3.0])
    assert loss(cosines, torch.tensor([0, 1])).item() == pytest.approx((first + 3 * second).item() / 4, abs=1e-7)


@given(counts=counts, seed=st.integers(0, 9))
@settings(max_examples=25)
def test_without_margin_it_is_scaled_weighted_cross_entropy(counts, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(7, len(counts), generator=generator, dtype=torch.float64)
    target = torch.randint(len(counts), (7,), generator=generator)
    weight = effective_number_weights(counts, dtype=torch.float64)
    value = LDAMLoss(counts, max_margin=0, scale=3, weight=weight)(x, target)
    torch.testing.assert_close(value, F.cross_entropy(3 * x, target, weight=weight), rtol=1e-13, atol=1e-15)


@given(counts=counts)
@settings(max_examples=50)
def test_rarer_classes_have_larger_margins(counts):
    margins = LDAMLoss(counts).margins.tolist()
    assert max(margins) == pytest.approx(0.5)
    assert min(margins) > 0
    pairs = sorted(zip(counts, margins, strict=True))
    # powers of equal numbers may differ in their last bit, inside a vector register and behind it
    assert all(a >= b * (1 - 1e-6) for (_, a), (_, b) in itertools.pairwise(pairs))


@given(counts=counts, seed=st.integers(0, 9))
@settings(max_examples=25)
def test_a_larger_margin_never_lowers_the_loss(counts, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(5, len(counts), generator=generator) * 2 - 1
    target = torch.randint(len(counts), (5,), generator=generator)
    assert LDAMLoss(counts, 0.5)(x, target) >= LDAMLoss(counts, 0.2)(x, target)


def test_classes_of_one_sample_all_have_the_largest_margin():
    assert LDAMLoss([1, 1, 1]).margins.tolist() == [0.5, 0.5, 0.5]


def test_reweighting_is_in_place_and_survives_moves():
    loss = LDAMLoss([500, 5])
    before = loss.weight
    assert before.tolist() == [1, 1]
    loss.reweight([0.5, 1.5])
    assert loss.weight is before
    assert loss.half().to("meta").to_empty(device="cpu").weight.tolist() == [0.5, 1.5]
    loss.reweight(None)
    assert loss.weight.tolist() == [1, 1]


def test_compiled_code_follows_the_weights():
    torch.compiler.reset()
    loss = LDAMLoss([500, 5])
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    x, target = torch.tensor([[0.5, -0.5], [0.3, 0.9]]), torch.tensor([0, 1])
    before = compiled(x, target)
    loss.reweight([0.1, 1.9])
    assert compiled(x, target).item() == pytest.approx(loss(x, target).item())
    assert compiled(x, target) != before


def test_the_weight_is_not_assigned():
    with pytest.raises(AttributeError, match="weight"):
        LDAMLoss([500, 5]).weight = torch.ones(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_margin": -0.1}, "max_margin must be a number of at least 0, got -0.1"),
        ({"scale": 0}, "scale must be a positive number, got 0"),
        ({"weight": [1.0]}, "weight must have an entry for each of the 2 classes"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        LDAMLoss([500, 5], **arguments)


def test_it_says_its_numbers():
    assert repr(LDAMLoss([500, 5])) == "LDAMLoss(num_classes=2, max_margin=0.5, scale=30)"


def test_logits_that_are_no_cosines_are_told_once():
    loss = LDAMLoss([500, 5])
    y = torch.tensor([0])
    loss(torch.tensor([[9.0, -9.0]]), y)  # cosines behind the matrix may exceed 1
    message = r"got a logit of size 12, and multiplies it by 30.*maxsep.heads.CosineHead.*or scale=1"
    with pytest.warns(UserWarning, match=message) as told:
        loss(torch.tensor([[9.0, -12.0]]), y)
    assert told[0].filename == __file__
    loss(torch.tensor([[90.0, -12.0]]), y)
    LDAMLoss([500, 5], scale=1)(torch.tensor([[90.0, -12.0]]), y)
