"""The contract of every detector, then the details of `LogitDetector` and `ODIN`."""

import copy
import inspect
import weakref
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from maxsep import MaxSeparationHead, detect
from maxsep.detect import (
    ODIN,
    Detector,
    LogitDetector,
    MahalanobisDetector,
    energy,
    max_logit,
    max_softmax,
    threshold_at_tpr,
)

STD = torch.tensor([0.5, 0.25])[:, None, None]
NEAR = {"rtol": 1e-9, "atol": 1e-12}


class Net(nn.Module):
    """Images (B, 2, 2, 2) to logits (B, 4); dropout and batch normalisation depend on the mode."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.5))
        self.head = MaxSeparationHead(5, 4)
        self.body[2].eval()  # a frozen layer

    def features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.features(x))


def by_logits(function, **options):
    return lambda net, x: function(net(x), **options)


def stepped(x, objective):
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(leaf).sum(), leaf)
    return x - 0.01 * torch.where(gradient >= 0, 1.0, -1.0) / STD


def by_odin(net, x):
    return max_softmax(net(stepped(x, lambda x: -(net(x) / 10).log_softmax(-1).amax(-1))) / 10)


def distances_by_definition(net, x):
    h = net.features(TRAIN[0])
    means = torch.stack([h[TRAIN[1] == label].mean(0) for label in range(4)])
    centred = h - means[TRAIN[1]]
    apart = net.features(x)[:, None] - means
    precision = torch.linalg.pinv(centred.T @ centred / len(h), hermitian=True)
    return (apart @ precision * apart).sum(-1).amin(1) / 2


def by_distance_after_a_step(net, x):
    return -distances_by_definition(net, stepped(x, lambda x: distances_by_definition(net, x)))


DETECTORS = {
    "max_softmax": (lambda net: LogitDetector(net, max_softmax), by_logits(max_softmax)),
    "max_logit": (lambda net: LogitDetector(net, max_logit), by_logits(max_logit)),
    "energy": (
        lambda net: LogitDetector(net, energy, temperature=2.0, centre=True),
        by_logits(energy, temperature=2.0, centre=True),
    ),
    "odin": (lambda net: ODIN(net, 10.0, 0.01, (0.5, 0.25)), by_odin),
    "odin_no_step": (lambda net: ODIN(net, 10.0, 0.0), lambda net, x: max_softmax(net(x) / 10)),
    "mahalanobis": (MahalanobisDetector, lambda net, x: -distances_by_definition(net, x)),
    "mahalanobis_step": (lambda net: MahalanobisDetector(net, 0.01, (0.5, 0.25)), by_distance_after_a_step),
}
"""A detector over a network, and its definition for a network in evaluation mode."""

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
    with pytest.raises(TypeError, match="abstract"):
        Detector(nn.Identity())


@every
def test_scores_equal_their_definition_in_evaluation_mode(name):
    scores = fitted(name).score(X)
    torch.testing.assert_close(scores, DETECTORS[name][1](network().eval(), X).detach(), rtol=1e-7, atol=1e-9)
    assert (scores.dtype, scores.device.type, scores.requires_grad) == (torch.float64, "cpu", False)


@every
@settings(max_examples=5)
@given(cuts=st.lists(st.integers(0, 11), max_size=4).map(sorted))
def test_scores_do_not_depend_on_the_batches(name, cuts):
    detector = fitted(name)
    parts = torch.tensor_split(X, cuts)  # of any size, also empty
    torch.testing.assert_close(detector.score(parts), detector.score(X), **NEAR)


@every
def test_data_is_read_once_and_labels_are_ignored(name):
    detector = DETECTORS[name][0](network())
    assert detector.fit(pair for pair in [TRAIN]) is detector
    whole = detector.score(X)
    for loader in (
        (part for part in X.split(3)),
        ([part] for part in X.split(3)),
        ((part, torch.zeros(len(part)), "a path") for part in X.split(3)),
    ):
        torch.testing.assert_close(detector.score(loader), whole, **NEAR)


@every
def test_the_model_keeps_modes_weights_and_gradients(name):
    net = network()
    before = copy.deepcopy(net.state_dict())
    modes = [part.training for part in net.modules()]
    assert set(modes) == {True, False}
    detector = fitted(name, net)
    assert [part.training for part in net.modules()] == modes
    detector.score([X])
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
def test_grad_modes_of_the_caller_do_not_matter(name):
    net = network()
    whole = fitted(name, net).score(X)
    for mode in (torch.inference_mode, torch.enable_grad):
        with mode():
            detector = fitted(name, net)
            torch.testing.assert_close(detector.score([X]), whole, **NEAR)
        torch.testing.assert_close(detector.score([X]), whole, **NEAR)


@every
def test_only_scores_are_kept_in_memory(name):
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
    assert max(alive[1:]) == alive[1]


def test_thresholds():
    detector = fitted("odin")
    assert detector.threshold(X.split(4), tpr=0.5) == pytest.approx(threshold_at_tpr(detector.score(X), 0.5), rel=1e-9)


@every
def test_invalid_data(name):
    detector = fitted(name)
    for data, error in [([], ValueError), (X.numpy(), TypeError), ([{"image": X}], TypeError), ([()], TypeError)]:
        with pytest.raises(error, match=r"loader|batch"):
            detector.score(data)
    assert detector.score(X[:0]).shape == (0,)


@pytest.mark.parametrize("name", ["energy", "odin"])
def test_one_score_per_input_is_required(name):
    with pytest.raises(ValueError, match=r"\(6,\)"):
        DETECTORS[name][0](nn.Flatten(0, 1)).score([torch.randn(3, 2, 4)])  # (B, 2, 4) to (2 B, 4)


LOGITS = torch.tensor([[5.0, 4.0, 3.0], [0.0, 0.0, 0.0]])


def test_logit_detector_takes_any_function_and_models_with_a_logits_attribute():
    def margin(logits):
        first, second = logits.topk(2).values.unbind(-1)
        return first - second

    model = lambda x: SimpleNamespace(logits=3 * x)  # noqa: E731
    assert LogitDetector(model, margin).score([LOGITS]).tolist() == [3.0, 0.0]
    assert LogitDetector(nn.Identity(), max_logit, centre=True).score(LOGITS).tolist() == [1.0, 0.0]
    torch.testing.assert_close(ODIN(model).score(LOGITS), ODIN(lambda x: 3 * x).score(LOGITS))


def test_invalid_functions_options_and_models():
    with pytest.raises(ValueError, match="temperature"):
        LogitDetector(nn.Identity(), energy, temperature=0).score(LOGITS)
    for output in (lambda x: (x, x), lambda x: "no"):
        with pytest.raises(TypeError, match="logits"):
            LogitDetector(output, energy).score(LOGITS)
    with pytest.raises(ValueError, match="temperature"):
        ODIN(nn.Identity(), temperature=0)
    for magnitude in (-1, float("nan")):
        with pytest.raises(ValueError, match="magnitude"):
            ODIN(nn.Identity(), magnitude=magnitude)


def test_odin_keeps_its_direction_in_half_precision_at_a_high_temperature():
    # the gradient of log S is 1e-8 times the weights and would vanish in float16
    model = nn.Linear(1, 2, bias=False).half()
    model.weight.data = torch.tensor([[-1.0], [1.0]]).half()
    x = torch.tensor([[2.0]]).half()
    assert (ODIN(model, 1e8, 0.5).score(x) > ODIN(model, 1e8, 0.0).score(x)).all()


def test_the_step_divides_by_the_std_of_each_channel_and_counts_zero_gradients_as_positive():
    def model(x):
        seen.append(x.detach())
        return torch.stack([x[:, 0].sum(-1), torch.zeros(len(x))], 1)  # channel 1 has no gradient

    seen = []
    x = torch.tensor([[[3.0, 1.0], [0.0, 2.0]]], dtype=torch.bfloat16)  # one sample, two channels, two pixels
    ODIN(model, 1.0, 1.0, std=[0.5, 2.0]).score(x)
    assert (seen[-1] - x).tolist() == [[[2.0, 2.0], [-0.5, -0.5]]]
    assert seen[-1].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("model", "x", "std", "error"),
    [
        (lambda x: x.detach(), torch.zeros(1, 2), None, ValueError),
        (lambda x: x.sqrt(), torch.full((1, 2), -1.0), None, ValueError),
        (nn.Identity(), torch.zeros(1, 2), [1.0], ValueError),
        (nn.Identity(), torch.zeros(1, 2), [1.0, 0.0], ValueError),
    ],
)
def test_invalid_steps(model, x, std, error):
    with pytest.raises(error, match=r"\bx\b|std"):
        ODIN(model, std=std).score(x)
