import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep import heads, simplex
from maxsep.losses import SquaredCosineLoss


def test_a_value_by_hand():
    loss = SquaredCosineLoss(torch.tensor([[2.0, 0.0], [0.0, -3.0]]))
    features = torch.tensor([[3.0, 4.0], [0.0, 1.0], [-7.0, 0.0]])  # cosines 0.6, -1 and 0 with their class
    assert loss(features, torch.tensor([0, 1, 1])).item() == pytest.approx((0.16 + 4 + 1) / 3)


@given(num_classes=st.integers(2, 20), stretch=st.floats(1e-3, 1e3), seed=st.integers(0, 9))
@settings(max_examples=25)
def test_only_directions_count(num_classes, stretch, seed):
    generator = torch.Generator().manual_seed(seed)
    prototypes = simplex(num_classes, dtype=torch.float64).T
    x = torch.randn(5, num_classes - 1, generator=generator, dtype=torch.float64)
    target = torch.randint(num_classes, (5,), generator=generator)
    value = SquaredCosineLoss(prototypes)(x, target)
    torch.testing.assert_close(SquaredCosineLoss(prototypes * stretch)(x / stretch, target), value)
    assert 0 <= value <= 4
    torch.testing.assert_close(
        SquaredCosineLoss(prototypes)(prototypes[target], target), torch.zeros_like(value), atol=1e-15, rtol=0
    )


def test_it_goes_with_any_head_that_has_class_vectors():
    head = heads.build("hpn", 8, 5, iterations=50)
    x, target = torch.randn(6, 8), torch.tensor([0, 1, 2, 3, 4, 0])
    cosines = head(x)[torch.arange(6), target]
    value = SquaredCosineLoss(head.class_vectors())(head.features(x), target)
    torch.testing.assert_close(value, (1 - cosines).square().mean())


def test_a_feature_without_direction_has_no_gradient():
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0]], requires_grad=True)
    loss = SquaredCosineLoss(torch.eye(2))
    loss(x, torch.tensor([0, 1])).backward()
    assert x.grad[0].tolist() == [0, 0]
    assert x.grad[1].abs().min() > 0
    assert loss(x[:1], torch.tensor([0])).item() == 1


def test_prototypes_are_copied_and_get_no_gradient():
    prototypes = torch.eye(2, requires_grad=True)
    loss = SquaredCosineLoss(prototypes)
    with torch.no_grad():
        prototypes.fill_(7)
    assert not loss(torch.eye(2), torch.tensor([0, 1])).requires_grad
    assert loss(torch.eye(2), torch.tensor([0, 1])).item() == 0


@pytest.mark.parametrize(
    ("prototypes", "error", "message"),
    [
        ([[1.0, 0.0]], TypeError, "prototypes must be a tensor, got list"),
        (torch.eye(2).long(), TypeError, "prototypes must be a real floating-point tensor"),
        (
            torch.zeros(3),
            ValueError,
            r"\(classes, width\) with at least 2 classes, got shape \(3,\). Transpose a matrix",
        ),
        (torch.ones(1, 3), ValueError, r"got shape \(1, 3\)"),
        (torch.ones(3, 0), ValueError, r"got shape \(3, 0\)"),
        (torch.zeros(2, 3), ValueError, "finite and not zero, got one of length 0 for class 0. Give every class a"),
        (torch.tensor([[1.0], [float("nan")]]), ValueError, "got one of length nan for class 1"),
        (torch.eye(2, device="meta"), ValueError, "prototypes are on the meta device and have no values. Pass real"),
    ],
)
def test_bad_prototypes(prototypes, error, message):
    with pytest.raises(error, match=message):
        SquaredCosineLoss(prototypes)


def test_it_says_its_numbers():
    assert repr(SquaredCosineLoss(torch.ones(3, 2))) == "SquaredCosineLoss(num_classes=3, width=2)"
