import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from maxsep import MaxSeparationHead, simplex
from maxsep.analysis import neural_collapse


def by_the_book(x, y, W, b):
    K, N = len(W), len(x)
    mu_G = x.mean(0)
    M = torch.stack([x[y == c].mean(0) for c in range(K)]) - mu_G
    away = x - (M + mu_G)[y]
    sigma_w, sigma_b = away.T @ away / N, M.T @ M / K
    target = (torch.eye(K) - torch.ones(K, K) / K) / (K - 1) ** 0.5
    gram, aligned = W @ W.T, W @ M.T
    return {
        "nc1": float(torch.trace(sigma_w @ torch.linalg.pinv(sigma_b, hermitian=True))) / K,
        "nc2": float((gram / gram.norm() - target).norm()),
        "nc3": float((aligned / aligned.norm() - target).norm()),
        "nc4": float((W @ mu_G + b).norm()),
    }


def made(seed, rows, width, classes):
    generator = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.arange(classes), torch.randint(classes, (rows,), generator=generator)])
    x = torch.randn(len(y), width, dtype=torch.float64, generator=generator) + 2
    W = torch.randn(classes, width, dtype=torch.float64, generator=generator)
    return x, y, W, torch.randn(classes, dtype=torch.float64, generator=generator)


@settings(max_examples=40)
@example(seed=2, rows=8, width=2, classes=2)  # means close to each other beside their distance from the origin
@given(seed=st.integers(0, 1000), rows=st.integers(4, 30), width=st.integers(1, 8), classes=st.integers(2, 5))
def test_it_is_the_published_formula(seed, rows, width, classes):
    data = made(seed, rows, width, classes)
    assert neural_collapse(*data) == pytest.approx(by_the_book(*data), rel=1e-6)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 10))
def test_scale_and_order_of_samples_do_not_matter(seed, scale):
    x, y, W, b = made(seed, 20, 6, 4)
    told = neural_collapse(x, y, W, b)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    moved = neural_collapse(x[order] * scale, y[order], W * 3, b)
    for name in ("nc1", "nc2", "nc3"):
        assert moved[name] == pytest.approx(told[name], rel=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("width", [9, 20])
def test_a_simplex_is_complete_collapse(offset, width):
    corners = torch.zeros(10, width, dtype=torch.float64)
    corners[:, :9] = simplex(10, dtype=torch.float64).T
    rotation = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(0)).double()).Q
    W = 3 * corners @ rotation
    x, y = (corners @ rotation).repeat(5, 1) + offset, torch.arange(10).repeat(5)
    bias = -W @ x.mean(0)  # takes the global mean away
    told = neural_collapse(x, y, W, bias)
    # features of size 1e6 are themselves rounded at 1e-10
    assert told == pytest.approx({"nc1": 0, "nc2": 0, "nc3": 0, "nc4": 0}, abs=1e-12 + 1e-13 * offset)
    assert neural_collapse(x, y, W)["nc4"] == pytest.approx(float((W @ x.mean(0)).norm()), rel=1e-9, abs=1e-12)


def test_a_far_origin_does_not_blow_up_the_spread():
    x, y, W, b = made(0, 60, 5, 4)
    y = torch.arange(len(y)) % 4
    near, far = neural_collapse(x, y, W, b)["nc1"], neural_collapse(x + 1e6, y, W, b)["nc1"]
    assert far == pytest.approx(near, rel=1e-6)


def test_the_matrix_of_a_head_is_a_simplex_by_construction():
    head = MaxSeparationHead(6, 4)
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    told = neural_collapse(head.features(x), torch.arange(40) % 4, head.class_vectors())
    assert told["nc2"] == pytest.approx(0, abs=1e-6)
    assert told["nc1"] > 0.1


def test_hand_computed_spread():
    # means -1 and 1, each class one unit to either side in the first feature only: within 1, between 1, K = 2
    x = torch.tensor([[-2.0, 5.0], [0.0, 5.0], [0.0, 5.0], [2.0, 5.0]])
    told = neural_collapse(
        x, torch.tensor([0, 0, 1, 1]), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), torch.tensor([3.0, 4.0])
    )
    assert told == pytest.approx({"nc1": 0.5, "nc2": 0.0, "nc3": 0.0, "nc4": 5.0}, abs=1e-12)


X, Y, W = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1]), torch.eye(2)


@pytest.mark.parametrize(
    ("x", "y", "weight", "bias", "message"),
    [
        (X, Y, torch.ones(3), None, r"weight must be \(K, D\) with at least 2 classes, got shape \(3,\)"),
        (X, Y, torch.ones(1, 2), None, r"weight must be \(K, D\) with at least 2 classes, got shape \(1, 2\)"),
        (X, Y, W, torch.ones(3), r"bias must be \(2,\), one number per row of weight, got shape \(3,\)"),
        (X, Y, torch.eye(3)[:2], None, "weight takes 3 features, but the features have 2"),
        (X, Y + 1, W, None, r"labels must lie in 0\.\.1, the rows of weight, got 1\.\.2"),
        (X, Y - 1, W, None, r"labels must lie in 0\.\.1, the rows of weight, got -1\.\.0"),
        (X, Y * 0, W, None, "every class needs a sample, but 1 of 2 have none"),
        (X * 0 + 0.1, Y, W, None, "all class means coincide, so nothing is separated"),
        (X, Y, W * 0, None, "the weight is zero on all features or on all class means"),
        (X, Y, torch.ones(2, 2), None, "the weight is zero on all features or on all class means"),
        (X[:0], Y[:0], W, None, r"features must be \(N, D\) and labels \(N,\) with N at least 1, got \(0, 2\)"),
        (X, Y[:1], W, None, r"got \(2, 2\) and \(1,\)"),
        (X / 0, Y, W, None, "features hold NaN or infinite values"),
    ],
)
def test_bad_input_is_explained(x, y, weight, bias, message):
    with pytest.raises(ValueError, match=message):
        neural_collapse(x, y, weight, bias)


def test_whole_numbers_are_no_features():
    with pytest.raises(TypeError, match="features must be a real floating-point tensor"):
        neural_collapse(X.long(), Y, W)
    with pytest.raises(TypeError, match="weight must be a tensor, got list"):
        neural_collapse(X, Y, [[1.0]])
