import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.covariance import EmpiricalCovariance
from torch import nn

from maxsep.detect import MAGNITUDES, Mahalanobis, mahalanobis


def made(seed=0, rows=60, width=5, classes=3):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % classes
    corners = torch.randn(classes, width, generator=generator) * 4
    mix = torch.randn(width, width, generator=generator)
    return corners[y] + torch.randn(rows, width, generator=generator) @ mix, y


def by_the_book(x, y, queries):
    x, queries = x.double(), queries.double()
    means = torch.stack([x[y == label].mean(0) for label in y.unique()])
    centred = torch.cat([x[y == label] - x[y == label].mean(0) for label in y.unique()])
    precision = torch.from_numpy(EmpiricalCovariance().fit(centred.numpy()).precision_)
    away = queries[:, None] - means
    return (-0.5 * torch.einsum("ncd,de,nce->nc", away, precision, away)).amax(1)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), width=st.integers(1, 6), classes=st.integers(1, 4))
@example(seed=225, width=6, classes=2)  # nearly singular
def test_it_is_the_published_score_whole_or_in_batches(seed, width, classes):
    x, y = made(seed, 40, width, classes)
    queries = torch.randn(7, width, generator=torch.Generator().manual_seed(seed)) * 5
    expected = by_the_book(x, y, queries)
    # an inverse loses as many digits as its matrix has in its condition
    within = torch.stack([x[y == label].double().T.cov().reshape(width, width) for label in y.unique()]).mean(0)
    near = {"rtol": 1e-8 + 1e-12 * torch.linalg.cond(within).item(), "atol": 1e-8}
    torch.testing.assert_close(Mahalanobis().fit(x, y).score(queries), expected, **near)
    streamed = Mahalanobis().fit((x[i : i + 7], y[i : i + 7]) for i in range(0, 40, 7))
    torch.testing.assert_close(streamed.score(queries), expected, **near)


def test_a_rank_deficient_covariance_is_pseudo_inverted():
    x, y = made(width=3)
    x = x.double()
    wide = torch.cat([x, x[:, :1] + x[:, 1:2]], 1)  # a fourth feature without news
    torch.testing.assert_close(Mahalanobis().fit(wide, y).score(wide), by_the_book(wide, y, wide), rtol=1e-6, atol=1e-8)


def test_no_invertible_change_of_coordinates_matters():
    x, y = made()
    x = x.double()
    scores = Mahalanobis().fit(x, y).score(x)
    matrix = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 3 * torch.eye(5)
    moved = x @ matrix + 1e4
    torch.testing.assert_close(Mahalanobis().fit(moved, y).score(moved), scores, rtol=1e-6, atol=1e-6)
    assert (scores <= 0).all()


def test_the_nearest_class_is_found_far_from_the_origin():
    y = torch.arange(30) % 3
    spread = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64).repeat_interleave(10)
    x = 1e9 + torch.stack([4.0 * y.double(), spread[torch.randperm(30)]], 1) + spread[:, None]
    scores = Mahalanobis().fit(x, y).score(x)
    torch.testing.assert_close(scores, by_the_book(x - 1e9, y, x - 1e9), rtol=1e-5, atol=1e-5)


def test_a_class_without_samples_is_no_class():
    x, y = made(classes=2)
    detector = Mahalanobis().fit(x + 50, torch.tensor([3, 9])[y])  # labels 0..2 and 4..8 never occur
    assert detector.classes.tolist() == [3, 9]
    assert detector.means.shape == (2, 5)
    torch.testing.assert_close(detector.score(x + 50), Mahalanobis().fit(x + 50, y).score(x + 50))


def test_fit_starts_anew_and_partial_fit_goes_on():
    x, y = made()
    once = Mahalanobis().fit(x, y).score(x)
    again = Mahalanobis().fit(x * 9, y)
    assert not torch.allclose(again.score(x), once)
    torch.testing.assert_close(again.fit(x, y).score(x), once)
    half = Mahalanobis().fit(x[:30], y[:30])
    before = half.score(x)
    torch.testing.assert_close(half.partial_fit(x[30:], y[30:]).score(x), once)
    assert not torch.allclose(before, once)


def test_scores_do_not_depend_on_the_block_size(monkeypatch):
    x, y = made()
    detector = Mahalanobis().fit(x, y)
    whole = detector.score(x)
    monkeypatch.setattr(mahalanobis, "_ROWS", 7)
    torch.testing.assert_close(detector.score(x), whole)
    assert detector.score(x[:0]).shape == (0,)
    assert detector.score(x[:1]).shape == (1,)


def test_nan_features_score_nan_alone():
    x, y = made()
    detector = Mahalanobis().fit(x, y)
    x[3, 1] = float("nan")
    assert detector.score(x).isnan().nonzero().tolist() == [[3]]


class Net(nn.Module):
    """Images (B, 2, 3, 3) to features (B, 4); the last row of pixels is not seen."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 4)
        self.drop = nn.Dropout(0.5)

    def features(self, x):
        return self.drop(self.layer(x[:, :, :2].flatten(1)).tanh())


@pytest.fixture
def fitted():
    torch.manual_seed(0)
    net, x, y = Net(), torch.randn(40, 2, 3, 3), torch.arange(40) % 3
    with torch.inference_mode():
        detector = Mahalanobis().fit(net.eval().features(x), y)
    return detector, net.train(), x


def test_the_step_is_the_published_one(fitted):
    detector, net, x = fitted
    std = (0.5, 0.25)
    stepped = detector.perturb(net.features, x, 0.01, std)
    assert net.training, "the mode is given back"
    assert all(parameter.grad is None for parameter in net.parameters())

    leaf = x.clone().requires_grad_()
    net.eval()
    h = net.features(leaf).double()
    away = h[:, None] - detector.means
    g = -0.5 * torch.einsum("ncd,de,nce->nc", away, torch.linalg.pinv(detector.covariance), away)
    (-g.amax(1)).mean().backward()
    sign = torch.where(leaf.grad >= 0, 1.0, -1.0)  # the unseen pixels have gradient 0, which counts as +1
    expected = x - 0.01 * sign / torch.tensor(std)[:, None, None]
    torch.testing.assert_close(stepped, expected)
    torch.testing.assert_close(stepped[:, 0, 2], x[:, 0, 2] - 0.02)
    with torch.no_grad():
        gain = detector.score(net.features(stepped)) - detector.score(net.features(x))
    assert (gain > 0).float().mean() > 0.9


def test_a_step_does_not_depend_on_the_rest_of_the_batch_or_on_grad_modes(fitted):
    detector, net, x = fitted
    whole = detector.perturb(net.features, x, 0.01)
    torch.testing.assert_close(detector.perturb(net.features, x[5:6], 0.01), whole[5:6])
    with torch.inference_mode():
        torch.testing.assert_close(detector.perturb(net.features, x, 0.01), whole)


def test_no_step_returns_the_inputs(fitted):
    detector, _, x = fitted
    assert detector.perturb(lambda x: x.detach(), x, 0) is x
    with pytest.raises(ValueError, match=r"magnitude must be zero or a positive finite number, got -0\.1"):
        detector.perturb(lambda x: x, x, -0.1)


def test_the_sweep_scores_every_magnitude(fitted):
    detector, net, x = fitted
    swept = detector.sweep(net.features, x, std=0.25)
    assert tuple(swept) == MAGNITUDES == (0, 0.01, 0.005, 0.002, 0.0014, 0.001, 0.0005)
    assert net.training
    net.eval()
    for magnitude, scores in swept.items():
        expected = detector.score(net.features(detector.perturb(net.features, x, magnitude, 0.25)))
        torch.testing.assert_close(scores, expected)
    assert list(detector.sweep(net.features, x, [0.0])) == [0.0]


def test_bad_input_is_explained():
    x, y = made()
    with pytest.raises(ValueError, match=r"has no means yet. Call fit\(features, labels\)"):
        Mahalanobis().score(x)
    with pytest.raises(TypeError, match="fit takes features with labels, or one iterable"):
        Mahalanobis().fit(x)
    with pytest.raises(TypeError, match="labels were given beside an iterable"):
        Mahalanobis().fit([(x, y)], y)
    with pytest.raises(ValueError, match="fit was given no batches"):
        Mahalanobis().fit([])
    detector = Mahalanobis().fit(x, y)
    with pytest.raises(ValueError, match=r"features must be \(N, 5\) as in fit, got shape \(60, 4\)"):
        detector.score(x[:, :4])
    with pytest.raises(TypeError, match="features must be a tensor, got list"):
        detector.score([[1.0]])


@pytest.mark.parametrize("rows", [1, 3])
def test_features_that_do_not_vary_inside_classes_have_no_distance(rows):
    detector = Mahalanobis().fit(torch.eye(3)[:rows], torch.arange(rows))
    with pytest.raises(ValueError, match=f"the {rows} features do not vary inside their {rows} classes"):
        detector.score(torch.eye(3))
