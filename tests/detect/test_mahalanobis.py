import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.covariance import EmpiricalCovariance
from torch import nn

from maxsep.detect import MAGNITUDES, Mahalanobis, MahalanobisDetector


def samples(seed=0, rows=60, width=5, classes=3):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % classes
    corners = torch.randn(classes, width, generator=generator) * 4
    mix = torch.randn(width, width, generator=generator)
    return corners[y] + torch.randn(rows, width, generator=generator) @ mix, y


def moments(x, y):
    means = torch.stack([x[y == label].mean(0) for label in y.unique()])
    centred = torch.cat([x[y == label] - x[y == label].mean(0) for label in y.unique()])
    return means, centred


def by_definition(x, y, queries):
    means, centred = moments(x.double(), y)
    precision = torch.from_numpy(EmpiricalCovariance().fit(centred.numpy()).precision_)
    apart = queries.double()[:, None] - means
    return (-0.5 * torch.einsum("ncd,de,nce->nc", apart, precision, apart)).amax(1)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), width=st.integers(1, 6), classes=st.integers(1, 4))
@example(seed=225, width=6, classes=2)  # nearly singular
def test_scores_are_the_published_ones_whole_or_in_batches(seed, width, classes):
    x, y = samples(seed, 40, width, classes)
    queries = torch.randn(7, width, generator=torch.Generator().manual_seed(seed)) * 5
    expected = by_definition(x, y, queries)
    # an inverse loses as many digits as the condition number has
    condition = torch.linalg.cond(moments(x.double(), y)[1].T.cov().reshape(width, width)).item()
    near = {"rtol": 1e-8 + 1e-12 * condition, "atol": 1e-8}
    torch.testing.assert_close(Mahalanobis().fit(x, y).score(queries), expected, **near)
    streamed = Mahalanobis().fit((x[i : i + 7], y[i : i + 7]) for i in range(0, 40, 7))
    torch.testing.assert_close(streamed.score(queries), expected, **near)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    sizes=st.lists(st.integers(0, 6), max_size=6),
    offset=st.sampled_from([0.0, 1e3, -1e7]),
)
def test_any_batches_give_the_moments_of_the_whole(seed, sizes, offset):
    sizes = [3, *sizes]
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(sum(sizes), 3, dtype=torch.float64, generator=generator)
    y = torch.randint(-2, 5, (sum(sizes),), generator=generator)
    detector = Mahalanobis().fit(zip((noise + offset).split(sizes), y.split(sizes), strict=True))
    means, centred = moments(noise, y)
    rounding = 1e-12 + 1e-14 * abs(offset)
    assert detector.classes.tolist() == y.unique().tolist()
    torch.testing.assert_close(detector.means - offset, means, rtol=0, atol=rounding)
    torch.testing.assert_close(detector.covariance, centred.T @ centred / len(y), rtol=1e-12, atol=100 * rounding)


def test_half_precision_is_accumulated_in_float64():
    detector, x = Mahalanobis(), torch.tensor([[1024.0], [1025.0]]).half()
    for _ in range(100):
        detector.partial_fit(x, torch.zeros(2, dtype=torch.int32))
    assert detector.means.tolist() == [[1024.5]]
    assert detector.covariance.item() == pytest.approx(0.25, rel=1e-12)


def test_moments_and_scores_far_from_the_origin_are_exact():
    # integers of size 2^50 are exact in float64, the sum of a batch of them is not
    place, number = 2.0**50 + 3, torch.arange(204)
    y, signs = number % 3, torch.stack([number // 3 % 2, number // 6 % 2], 1) * 2 - 1
    offsets = torch.tensor([8.0, 0.0], dtype=torch.float64)
    detector = Mahalanobis().fit(place + y[:, None] * offsets + signs, y)
    assert torch.equal(detector.means, place + torch.arange(3)[:, None] * offsets)
    assert torch.equal(detector.covariance, torch.eye(2, dtype=torch.float64))
    queries = torch.tensor([[3.0, 0.0], [5.0, 0.0], [17.0, 3.0]], dtype=torch.float64)  # nearest to 0, 8 and 16
    assert detector.score(place + queries).tolist() == [-4.5, -4.5, -5.0]


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize(("factor", "is_kept"), [(0.6, False), (1.5, True)])
def test_directions_below_the_rank_threshold_are_ignored(scale, factor, is_kept):
    width = 8
    smallest = factor * width * torch.finfo(torch.float64).eps  # relative to the largest eigenvalue
    deviations = torch.ones(width, dtype=torch.float64)
    deviations[-1] = math.sqrt(smallest)
    x = scale * torch.cat([torch.diag(deviations), -torch.diag(deviations)])
    detector = Mahalanobis().fit(x, torch.zeros(2 * width, dtype=torch.int64))
    along, across = scale * torch.eye(width, dtype=torch.float64)[[0, -1]]
    # the variance of each direction is its deviation squared times 2 / 16
    assert detector.score(along[None]).item() == pytest.approx(-width / 2)
    assert detector.score(across[None]).item() == (pytest.approx(-width / 2 / smallest) if is_kept else 0)


def test_fit_starts_anew_and_partial_fit_continues():
    x, y = samples()
    once = Mahalanobis().fit(x, y).score(x)
    again = Mahalanobis().fit(x * 9, y)
    assert not torch.allclose(again.score(x), once)
    torch.testing.assert_close(again.fit(x, y).score(x), once)
    torch.testing.assert_close(Mahalanobis().fit(x[:30], y[:30]).partial_fit(x[30:], y[30:]).score(x), once)


class Net(nn.Module):
    """Images (B, 2, 3, 3) to features (B, 4); it ignores the last row of pixels and counts its runs."""

    def __init__(self):
        super().__init__()
        self.layer, self.drop, self.runs = nn.Linear(12, 4), nn.Dropout(0.5), 0

    def features(self, x):
        self.runs += 1
        return self.drop(self.layer(x[:, :, :2].flatten(1)).tanh())


@pytest.fixture
def data():
    torch.manual_seed(0)
    return Net().double(), torch.randn(40, 2, 3, 3, dtype=torch.float64), torch.arange(40) % 3


def test_sweeps_score_every_magnitude_with_one_gradient(data):
    net, x, y = data
    detector = MahalanobisDetector(net, std=(0.5, 0.25)).fit(zip(x.split(7), y.split(7), strict=True))
    assert net.runs == 6
    net.runs = 0
    swept = detector.sweep(part for part in x.split(9))
    assert net.runs == 5 * (1 + len(MAGNITUDES))
    assert net.training
    assert tuple(swept) == MAGNITUDES == (0, 0.01, 0.005, 0.002, 0.0014, 0.001, 0.0005)
    for magnitude, scores in swept.items():
        detector.magnitude = magnitude
        torch.testing.assert_close(scores, detector.score(x), rtol=1e-9, atol=1e-12)
    direct = detector.distances.sweep(net.features, x, [0.01, 0.0], (0.5, 0.25))
    torch.testing.assert_close(direct[0.01], swept[0.01], rtol=1e-9, atol=1e-12)


def test_an_unfitted_detector_refuses_before_the_model_runs(data):
    net, x, _ = data
    detector = MahalanobisDetector(net)
    for call in (detector.score, detector.sweep, detector.threshold):
        with pytest.raises(ValueError, match="fit"):
            call([x])
    assert not net.runs
    with pytest.raises(ValueError, match="fit"):
        Mahalanobis().score(torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("x", "y", "error"),
    [
        (torch.ones(2, 3), torch.zeros(3).long(), ValueError),
        (torch.ones(2, 3), torch.zeros(2), TypeError),
        (torch.ones(2, 3).long(), torch.zeros(2).long(), TypeError),
        (torch.ones(0, 3), torch.zeros(0).long(), ValueError),
        (torch.tensor([[1.0, math.nan]]), torch.zeros(1).long(), ValueError),
        ([], None, ValueError),
        ([(torch.ones(2, width), torch.zeros(2).long()) for width in (3, 4)], None, ValueError),
    ],
)
def test_invalid_training_data(x, y, error):
    with pytest.raises(error, match=r"features|labels|fit"):
        Mahalanobis().fit(x, y)


def test_invalid_arguments(data):
    net, x, y = data
    convolutions = nn.Sequential()
    convolutions.features = nn.Linear(3, 2)  # a submodule, not a method
    for model in (nn.Linear(3, 2), convolutions):
        with pytest.raises(TypeError, match="features"):
            MahalanobisDetector(model)
    with pytest.raises(ValueError, match="magnitude"):
        MahalanobisDetector(net, magnitude=-1)
    detector = MahalanobisDetector(net).fit([(x, y)])
    with pytest.raises(ValueError, match="magnitude"):
        detector.sweep(x, [-0.1])
    net.layer = nn.Linear(12, 5).double()
    with pytest.raises(ValueError, match="features"):
        detector.score(x)
    constant = Mahalanobis().fit(torch.eye(3), torch.arange(3))
    with pytest.raises(ValueError, match="covariance"):
        constant.score(torch.eye(3))
