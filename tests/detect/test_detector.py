"""The contract that every detector meets."""

import copy
import inspect
import pickle
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from maxsep import MaxSeparationHead, detect
from maxsep.detect import (
    ODIN,
    Detector,
    LogitDetector,
    Mahalanobis,
    MahalanobisDetector,
    collect,
    energy,
    max_logit,
    max_softmax,
    ood_metrics,
    threshold_at_tpr,
)
from maxsep.detect.perturbation import step_direction

STD = (0.5, 0.25)


class Net(nn.Module):
    """Images (B, 2, 2, 2) to logits (B, 4), with parts whose answer depends on the mode."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.5))
        self.head = MaxSeparationHead(5, 4)
        self.body[2].eval()  # a part that stays in its own mode

    def features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.features(x))


def by_logits(function, **options):
    return lambda net, train, x: function(collect(net, [x]).logits, **options)


def by_odin(net, train, x):
    def surprise(x):
        return -(net(x) / 10).log_softmax(-1).amax(-1)

    net.eval()
    return max_softmax(collect(net, [x - 0.01 * step_direction(surprise, x, STD)]).logits / 10)


def by_distance(magnitude):
    def expected(net, train, x):
        found = collect(net, [train])
        distances = Mahalanobis().fit(found.features, found.labels)
        return distances.score(collect(net, [distances.perturb(net.features, x, magnitude, STD)]).features)

    return expected


DETECTORS = {
    "max_softmax": (lambda net: LogitDetector(net, max_softmax), by_logits(max_softmax)),
    "max_logit": (lambda net: LogitDetector(net, max_logit), by_logits(max_logit)),
    "max_logit_centred": (lambda net: LogitDetector(net, max_logit, centre=True), by_logits(max_logit, centre=True)),
    "energy": (lambda net: LogitDetector(net, energy), by_logits(energy)),
    "energy_centred": (
        lambda net: LogitDetector(net, energy, temperature=2.0, centre=True),
        by_logits(energy, temperature=2.0, centre=True),
    ),
    "odin": (lambda net: ODIN(net, 10.0, 0.01, STD), by_odin),
    "odin_no_step": (
        lambda net: ODIN(net, 10.0, 0.0),
        lambda net, train, x: max_softmax(collect(net, [x]).logits / 10),
    ),
    "mahalanobis": (MahalanobisDetector, by_distance(0.0)),
    "mahalanobis_step": (lambda net: MahalanobisDetector(net, 0.01, STD), by_distance(0.01)),
}
"""A detector over a network, and what it must answer by the functions and classes of logits and features."""

every = pytest.mark.parametrize("name", DETECTORS)


def images(count, seed):
    return torch.randn(count, 2, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


TRAIN = (images(40, 1), torch.arange(40) % 4)
X = images(11, 2)


def network():
    torch.manual_seed(0)
    return Net().double()


def fitted(name, net=None):
    return DETECTORS[name][0](net or network()).fit([TRAIN])


def test_every_public_detector_is_under_contract():
    public = {kind for kind in vars(detect).values() if inspect.isclass(kind) and issubclass(kind, Detector)}
    assert {type(fitted(name)) for name in DETECTORS} == public - {Detector}


@every
def test_scores_are_those_of_the_functions_and_classes_on_collected_answers(name):
    expected = DETECTORS[name][1](network(), TRAIN, X)
    scores = fitted(name).score(X)
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-12)
    assert (scores.dtype, scores.device.type, scores.requires_grad) == (torch.float64, "cpu", False)


@every
@settings(max_examples=5)
@given(cuts=st.lists(st.integers(0, 11), max_size=4).map(sorted))
def test_a_loader_and_its_concatenation_score_alike_whatever_the_batches(name, cuts):
    detector = fitted(name)
    parts = torch.tensor_split(X, cuts)  # of any size, also empty
    torch.testing.assert_close(detector.score(parts), detector.score(X), rtol=1e-9, atol=1e-12)


@every
@pytest.mark.parametrize("size", [1, 7, 40])
def test_the_batch_size_of_fitting_does_not_matter(name, size):
    loader = DataLoader(TensorDataset(*TRAIN), batch_size=size)
    found = DETECTORS[name][0](network()).fit(loader).score(X)
    torch.testing.assert_close(found, fitted(name).score(X), rtol=1e-7, atol=1e-9)


@every
def test_one_pass_is_enough_and_labels_are_not_looked_at(name):
    detector = DETECTORS[name][0](network())
    assert detector.fit(pair for pair in [TRAIN]) is detector
    whole = detector.score(X)
    for kind in (
        (part for part in X.split(3)),
        ([part] for part in X.split(3)),
        ((part, torch.zeros(len(part))) for part in X.split(3)),
        ((part, torch.zeros(len(part)), "a path") for part in X.split(3)),
    ):
        torch.testing.assert_close(detector.score(kind), whole, rtol=1e-9, atol=1e-12)


@every
def test_the_model_is_left_as_it_was(name):
    net = network()
    before = copy.deepcopy(net.state_dict())
    modes = [part.training for part in net.modules()]
    assert set(modes) == {True, False}
    detector = fitted(name, net)
    detector.score([X])
    detector.score(X)
    assert [part.training for part in net.modules()] == modes
    assert all(parameter.grad is None for parameter in net.parameters())
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)

    def broken():
        yield X
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        detector.score(broken())
    assert [part.training for part in net.modules()] == modes


@every
def test_grad_modes_of_the_caller_change_nothing(name):
    net = network()
    whole = fitted(name, net).score(X)
    for mode in (torch.inference_mode, torch.enable_grad):
        with mode():
            detector = fitted(name, net)
            torch.testing.assert_close(detector.score([X]), whole, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(detector.score([X]), whole, rtol=1e-9, atol=1e-12)


@every
def test_nothing_but_scores_is_kept(name):
    net, seen, alive = network(), [], []
    detector = fitted(name, net)
    net.body.register_forward_hook(lambda module, inputs, output: seen.append(weakref.ref(output)))

    def loader():
        for _ in range(6):
            batch = X.clone()
            seen.append(weakref.ref(batch))
            yield batch
            del batch
            alive.append(sum(reference() is not None for reference in seen))

    detector.score(loader())
    assert len(seen) >= 12
    assert max(alive[1:]) == alive[1], f"more and more stays in memory: {alive}"


@every
def test_a_threshold_keeps_the_wanted_share(name):
    detector = fitted(name)
    scores = detector.score(X)
    assert detector.threshold(X.split(4)) == pytest.approx(threshold_at_tpr(scores), rel=1e-9)
    assert detector.threshold(X, tpr=0.5) == threshold_at_tpr(scores, 0.5)


@every
def test_the_measures_take_the_scores(name):
    detector = fitted(name)
    told = ood_metrics(detector.score([TRAIN]), detector.score(5 * X))
    assert set(told) == {"auroc", "aupr", "fpr95", "fpr95_at_least"}


@every
@pytest.mark.parametrize("twin", [copy.deepcopy, lambda detector: pickle.loads(pickle.dumps(detector))])
def test_copies_and_pickles_are_whole_and_apart(name, twin):
    detector = fitted(name)
    whole, other = detector.score(X), twin(detector)
    with torch.no_grad():
        detector.model.body[1].weight.zero_()
    torch.testing.assert_close(other.score(X), whole)
    assert not torch.allclose(detector.score(X), whole)


@every
def test_bad_data_is_explained(name):
    detector = fitted(name)
    with pytest.raises(ValueError, match=r"the loader yields no batches, so there is nothing to read"):
        detector.score([])
    used = iter([X])
    detector.score(used)
    with pytest.raises(ValueError, match=r"make the generator anew if it was read before"):
        detector.score(used)
    with pytest.raises(TypeError, match=r"a batch must be a tensor or \(inputs, labels, ...\), got ndarray"):
        detector.score(X.numpy())
    assert detector.score(X[:0]).shape == (0,)


@pytest.mark.parametrize("name", [name for name in DETECTORS if "mahalanobis" not in name])
def test_a_model_that_does_not_answer_row_by_row_is_refused(name):
    detector = DETECTORS[name][0](nn.Flatten(0, 1))  # (B, 2, 4) to (2 B, 4): two answers for each input
    message = r"inputs \(3, 2, 4\) must have one score for each of its rows, got scores of shape \(6,\)"
    with pytest.raises(ValueError, match=message):
        detector.score([torch.randn(3, 2, 4)])


def test_samples_in_the_place_of_batches_are_refused():
    with pytest.raises(ValueError, match=r"inputs \(4,\) must have one score .* a single input as x\[None\]"):
        LogitDetector(nn.Identity(), energy).score(TensorDataset(torch.randn(3, 4)))


def test_a_detector_without_a_score_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        Detector(nn.Identity())


def test_nothing_to_learn_reads_nothing():
    loader = iter([TRAIN])
    LogitDetector(network(), energy).fit(loader)
    ODIN(network()).fit(loader)
    assert next(loader) is TRAIN


def test_scores_of_one_s_own_are_made_precise():
    class First(Detector):
        def score_batch(self, x):
            return self.model(x)[:, 0].half()

    assert First(lambda x: x).score([torch.ones(2, 3)]).dtype == torch.float64
