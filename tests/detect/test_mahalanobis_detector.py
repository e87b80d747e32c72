import pytest
import torch
from torch import nn

from maxsep.detect import MAGNITUDES, Mahalanobis, MahalanobisDetector


class Net(nn.Module):
    """Images (B, 2, 3, 3) to features (B, 4); it counts its runs."""

    def __init__(self):
        super().__init__()
        self.layer, self.drop, self.runs = nn.Linear(18, 4), nn.Dropout(0.5), 0

    def features(self, x):
        self.runs += 1
        return self.drop(self.layer(x.flatten(1)).tanh())


@pytest.fixture
def made():
    torch.manual_seed(0)
    x, y = torch.randn(40, 2, 3, 3, dtype=torch.float64), torch.arange(40) % 3
    return Net().double(), x, y


def test_the_fitted_part_is_that_of_the_features(made):
    net, x, y = made
    detector = MahalanobisDetector(net).fit(zip(x.split(7), y.split(7), strict=True))
    assert net.runs == 6, "fitting asks for features alone, once a batch"
    with torch.no_grad():
        expected = Mahalanobis().fit(net.eval().features(x), y)
    assert detector.distances.classes.tolist() == [0, 1, 2]
    torch.testing.assert_close(detector.distances.means, expected.means)
    torch.testing.assert_close(detector.distances.covariance, expected.covariance)


def test_the_sweep_scores_every_magnitude_of_a_loader_with_one_gradient(made):
    net, x, y = made
    detector = MahalanobisDetector(net, std=(0.5, 0.25)).fit([(x, y)])
    net.runs = 0
    swept = detector.sweep(part for part in x.split(9))
    assert net.runs == 5 * (1 + len(MAGNITUDES))
    assert net.training
    assert tuple(swept) == MAGNITUDES
    for magnitude, scores in swept.items():
        detector.magnitude = magnitude
        torch.testing.assert_close(scores, detector.score(x), rtol=1e-9, atol=1e-12)
        assert (scores.dtype, scores.device.type, scores.shape) == (torch.float64, "cpu", (40,))
    assert (swept[0.01] > swept[0.0]).float().mean() > 0.9, "the step leads towards the nearest class"
    torch.testing.assert_close(detector.sweep(x, [0.01, 0.0])[0.01], swept[0.01], rtol=1e-9, atol=1e-12)


def test_inputs_are_taken_to_the_model():
    class Elsewhere(nn.Linear):
        def features(self, x):
            assert x.device.type == "meta"
            return torch.randn(len(x), 4)

    detector = MahalanobisDetector(Elsewhere(3, 2, device="meta")).fit([(torch.zeros(9, 3), torch.arange(9) % 2)])
    assert detector.score([torch.zeros(5, 3)]).shape == detector.sweep(torch.zeros(5, 3), [0.0])[0.0].shape == (5,)


def test_the_step_is_divided_by_the_std(made):
    net, x, y = made
    coarse, fine = (MahalanobisDetector(net, 0.01, std).fit([(x, y)]).score(x) for std in (None, 0.5))
    torch.testing.assert_close(fine, MahalanobisDetector(net, 0.02).fit([(x, y)]).score(x))
    assert not torch.allclose(coarse, fine)


def test_fitting_starts_anew_and_a_failed_one_leaves_the_last(made):
    net, x, y = made
    detector = MahalanobisDetector(net).fit([(5 * x, y)])
    other = detector.score(x)
    once = detector.fit([(x, y)]).score(x)
    assert not torch.allclose(once, other)
    with pytest.raises(ValueError, match=r"fit needs labels, and a batch has none. Let the loader yield"):
        detector.fit([(5 * x, y), x])
    torch.testing.assert_close(detector.score(x), once, rtol=0, atol=0)


def test_what_is_not_fitted_says_so_before_the_model_runs(made):
    net, x, _ = made
    detector = MahalanobisDetector(net)
    for ask in (detector.score, detector.sweep, detector.threshold):
        with pytest.raises(ValueError, match=r"not fitted. Call fit\(loader\) with training batches"):
            ask([x])
    assert not net.runs


def test_bad_input_is_explained(made):
    net, x, y = made
    with pytest.raises(TypeError, match=r"must have a method `features` that gives \(B, D\), got Linear without one"):
        MahalanobisDetector(nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"magnitude must be zero or a positive finite number, got -1"):
        MahalanobisDetector(net, magnitude=-1)
    detector = MahalanobisDetector(net)
    with pytest.raises(TypeError, match=r"fit takes a loader of \(inputs, labels\) batches, got a tensor"):
        detector.fit(x)
    with pytest.raises(ValueError, match="the loader yields no batches"):
        detector.fit([])
    with pytest.raises(ValueError, match=r"labels a tensor \(N,\), got \(40, 4\) and \(39,\)"):
        detector.fit([(x, y[1:])])
    detector.fit([(x, y)])
    with pytest.raises(ValueError, match=r"magnitudes is empty. Pass at least one"):
        detector.sweep(x, [])
    with pytest.raises(ValueError, match=r"magnitude must be zero or a positive finite number, got -0\.1"):
        detector.sweep(x, [-0.1])
    net.layer = nn.Linear(18, 5).double()
    with pytest.raises(ValueError, match=r"features must be \(N, 4\) as in fit, got shape \(40, 5\)"):
        detector.score(x)
    net.features = lambda x: x
    with pytest.raises(ValueError, match=r"model.features must give \(B, D\), got shape \(40, 2, 3, 3\)"):
        MahalanobisDetector(net).fit([(x, y)])
