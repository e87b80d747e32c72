import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep import simplex
from maxsep.analysis import pairwise_angles


def test_the_order_is_that_of_the_upper_triangle():
    vectors = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [-1.0, 0.0]])
    assert pairwise_angles(vectors).tolist() == pytest.approx([45, 90, 180, 45, 135, 90])


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_the_corners_of_a_simplex_are_equally_far_apart(classes):
    angles = pairwise_angles(simplex(classes, dtype=torch.float64).T)
    assert angles.shape == (classes * (classes - 1) // 2,)
    torch.testing.assert_close(angles, torch.full_like(angles, math.degrees(math.acos(-1 / (classes - 1)))))


@pytest.mark.parametrize("angle", [1e-12, 1e-8, 1e-4, 1.0, 90.0, 179.0, 180 - 1e-9])
def test_small_and_flat_angles_keep_their_digits(angle):
    turned = [math.cos(math.radians(angle)), math.sin(math.radians(angle))]
    told = pairwise_angles(torch.tensor([[1.0, 0.0], turned], dtype=torch.float64)).item()
    assert told == pytest.approx(angle, rel=1e-9, abs=1e-13)
    assert 180 - told == pytest.approx(180 - angle, rel=1e-5, abs=1e-13)


@settings(max_examples=40)
@given(st.integers(0, 1000), st.integers(2, 6), st.integers(1, 5))
def test_lengths_and_rotations_do_not_matter_and_order_only_permutes(seed, rows, width):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, dtype=torch.float64, generator=generator)
    angles = pairwise_angles(x)
    lengths = torch.rand(rows, 1, dtype=torch.float64, generator=generator) + 0.1
    rotation = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64, generator=generator)).Q
    torch.testing.assert_close(pairwise_angles(x * lengths @ rotation), angles, atol=1e-6, rtol=0)
    torch.testing.assert_close(pairwise_angles(x.flip(0)).sort().values, angles.sort().values)
    assert (angles >= 0).all()
    assert (angles <= 180).all()


def test_equal_opposite_tiny_and_huge_vectors():
    assert pairwise_angles(torch.tensor([[0.1, 0.7], [0.3, 2.1]])).item() == pytest.approx(0, abs=1e-5)
    assert pairwise_angles(torch.tensor([[0.1, 0.7], [-0.1, -0.7]])).item() == 180
    extremes = torch.tensor([[1e200, 1e200], [1e-200, 0.0]], dtype=torch.float64)
    assert pairwise_angles(extremes).item() == pytest.approx(45)
    assert pairwise_angles(torch.ones(1, 3)).shape == (0,)
    assert pairwise_angles(torch.ones(0, 3)).shape == (0,)


@pytest.mark.parametrize(
    ("vectors", "kind", "message"),
    [
        (torch.ones(3), ValueError, r"vectors must be \(N, D\), one vector per row, got shape \(3,\)"),
        (
            torch.tensor([[1.0], [0.0], [0.0]]),
            ValueError,
            r"a zero vector has no direction, got one in row 1 \(2 in all",
        ),
        (torch.ones(2, 0), ValueError, r"a zero vector has no direction, got one in row 0 \(2 in all"),
        (torch.tensor([[1.0], [float("nan")]]), ValueError, "vectors hold NaN or infinite values"),
        (torch.ones(2, 2).int(), TypeError, "vectors must be a real floating-point tensor"),
    ],
)
def test_bad_input_is_explained(vectors, kind, message):
    with pytest.raises(kind, match=message):
        pairwise_angles(vectors)
