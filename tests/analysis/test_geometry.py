import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from maxsep import simplex
from maxsep.analysis import angular_fisher_score, neural_collapse


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


def fisher_by_definition(x, y):
    within = between = 0.0
    for label in y.unique():
        members = x[y == label]
        mean = members.mean(0)
        within += sum(1 - cosine(row, mean) for row in members)
        between += len(members) * (1 - cosine(mean, x.mean(0)))
    return within / between


@given(seed=st.integers(0, 10_000), rows=st.integers(4, 30), classes=st.integers(2, 5))
def test_angular_fisher_score_is_the_published_formula(seed, rows, classes):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 6, generator=generator, dtype=torch.float64) + 0.5
    y = torch.cat([torch.arange(2), torch.randint(classes, (rows - 2,), generator=generator)])
    score = angular_fisher_score(x, y)
    assert score == pytest.approx(fisher_by_definition(x, y), rel=1e-9)
    assert angular_fisher_score(7 * x, y) == pytest.approx(score, rel=1e-9)


def test_angular_fisher_score_by_hand():
    y = torch.tensor([0, 0, 1, 1])
    assert angular_fisher_score(torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]), y) == pytest.approx(0, abs=1e-12)
    assert math.isinf(angular_fisher_score(torch.ones(4, 2), y))
    for x, labels in [(torch.ones(3), y[:3]), (torch.ones(2, 2), y), (torch.ones(0, 2), y[:0])]:
        with pytest.raises(ValueError, match="features"):
            angular_fisher_score(x, labels)


def collapse_by_definition(x, y, W, b):
    K, N = len(W), len(x)
    mu_G = x.mean(0)
    M = torch.stack([x[y == c].mean(0) for c in range(K)]) - mu_G
    apart = x - (M + mu_G)[y]
    sigma_w, sigma_b = apart.T @ apart / N, M.T @ M / K
    target = (torch.eye(K) - torch.ones(K, K) / K) / (K - 1) ** 0.5
    gram, aligned = W @ W.T, W @ M.T
    return {
        "nc1": float(torch.trace(sigma_w @ torch.linalg.pinv(sigma_b, hermitian=True))) / K,
        "nc2": float((gram / gram.norm() - target).norm()),
        "nc3": float((aligned / aligned.norm() - target).norm()),
        "nc4": float((W @ mu_G + b).norm()),
    }


def samples(seed, rows, width, classes):
    generator = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.arange(classes), torch.randint(classes, (rows,), generator=generator)])
    x = torch.randn(len(y), width, dtype=torch.float64, generator=generator) + 2
    W = torch.randn(classes, width, dtype=torch.float64, generator=generator)
    return x, y, W, torch.randn(classes, dtype=torch.float64, generator=generator)


@settings(max_examples=40)
@example(seed=2, rows=8, width=2, classes=2)  # class means that are close to each other
@given(seed=st.integers(0, 1000), rows=st.integers(4, 30), width=st.integers(1, 8), classes=st.integers(2, 5))
def test_neural_collapse_is_the_published_formula(seed, rows, width, classes):
    data = samples(seed, rows, width, classes)
    assert neural_collapse(*data) == pytest.approx(collapse_by_definition(*data), rel=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("width", [9, 20])
def test_a_simplex_is_complete_collapse(offset, width):
    corners = torch.zeros(10, width, dtype=torch.float64)
    corners[:, :9] = simplex(10, dtype=torch.float64).T
    rotation = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(0)).double()).Q
    W = 3 * corners @ rotation
    x, y = (corners @ rotation).repeat(5, 1) + offset, torch.arange(10).repeat(5)
    measures = neural_collapse(x, y, W, -W @ x.mean(0))
    # features of size 1e6 are rounded at 1e-10
    assert measures == pytest.approx({"nc1": 0, "nc2": 0, "nc3": 0, "nc4": 0}, abs=1e-12 + 1e-13 * offset)
    assert neural_collapse(x, y, W)["nc4"] == pytest.approx(float((W @ x.mean(0)).norm()), rel=1e-9, abs=1e-12)


X, Y, W = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1]), torch.eye(2)


@pytest.mark.parametrize(
    ("x", "y", "weight", "bias", "name"),
    [
        (X, Y, torch.ones(1, 2), None, "weight"),
        (X, Y, W * 0, None, "weight"),
        (X, Y, W, torch.ones(3), "bias"),
        (X, Y + 1, W, None, "labels"),
        (X, Y * 0, W, None, "labels"),
        (X[:0], Y[:0], W, None, "features"),
        (X / 0, Y, W, None, "features"),
        (X * 0 + 0.1, Y, W, None, "class means"),
    ],
)
def test_invalid_arguments(x, y, weight, bias, name):
    with pytest.raises((ValueError, TypeError), match=name):
        neural_collapse(x, y, weight, bias)
