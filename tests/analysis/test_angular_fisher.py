import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep.analysis import angular_fisher_score


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


def by_the_book(x, y):
    within = between = 0.0
    for label in y.unique():
        members = x[y == label]
        mean = members.mean(0)
        within += sum(1 - cosine(row, mean) for row in members)
        between += len(members) * (1 - cosine(mean, x.mean(0)))
    return within / between


@given(seed=st.integers(0, 10_000), rows=st.integers(4, 30), classes=st.integers(2, 5))
def test_it_is_the_published_formula_and_ignores_scale(seed, rows, classes):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 6, generator=generator, dtype=torch.float64) + 0.5
    y = torch.cat([torch.arange(2), torch.randint(classes, (rows - 2,), generator=generator)])
    score = angular_fisher_score(x, y)
    assert score == pytest.approx(by_the_book(x, y), rel=1e-9)
    assert angular_fisher_score(7 * x, y) == pytest.approx(score, rel=1e-9)


def test_classes_in_one_point_score_zero_and_one_direction_is_infinite():
    y = torch.tensor([0, 0, 1, 1])
    assert angular_fisher_score(torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]), y) == pytest.approx(0, abs=1e-12)
    assert math.isinf(angular_fisher_score(torch.ones(4, 2), y))


@pytest.mark.parametrize(
    ("x", "y"), [(torch.ones(3), torch.ones(3)), (torch.ones(2, 2), torch.ones(3)), (torch.ones(0, 2), torch.ones(0))]
)
def test_wrong_shapes_are_named(x, y):
    with pytest.raises(ValueError, match=r"features must be \(N, D\) and labels \(N,\)"):
        angular_fisher_score(x, y)
