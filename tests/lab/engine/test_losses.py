"""Losses by name with their options, and deferred re-weighting."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from maxsep.lab.data import long_tail_counts
from maxsep.lab.engine import losses
from maxsep.lab.spec import RunSpec, options
from maxsep.losses import BalancedSoftmaxLoss, LabelAwareSmoothingLoss, LDAMLoss, LogitAdjustedLoss

LOGITS, TARGET = torch.tensor([[0.3, -0.2], [0.1, 0.9]]), torch.tensor([0, 1])
LONG_TAIL = {
    "balanced_softmax": [({}, BalancedSoftmaxLoss([50, 5]))],
    "ldam": [({"max_margin": 0.4, "scale": 10}, LDAMLoss([50, 5], 0.4, 10)), ({}, LDAMLoss([50, 5]))],
    "logit_adjusted": [({"tau": 1.5}, LogitAdjustedLoss([50, 5], tau=1.5)), ({}, LogitAdjustedLoss([50, 5]))],
    "label_aware_smoothing": [
        ({"smooth_head": 0.3, "smooth_tail": 0.05}, LabelAwareSmoothingLoss([50, 5], 0.3, 0.05)),
        ({}, LabelAwareSmoothingLoss([50, 5], 0.4, 0.1)),
    ],
}


def build(loss, counts=(50, 5), **values):
    return losses.build_loss(RunSpec(loss=loss, loss_options=options(**values)), counts)


def test_cross_entropy_and_squared_cosine():
    assert torch.equal(build("cross_entropy")(LOGITS, TARGET), F.cross_entropy(LOGITS, TARGET))
    smooth = build("cross_entropy", label_smoothing=0.2)
    assert torch.equal(smooth(LOGITS, TARGET), F.cross_entropy(LOGITS, TARGET, label_smoothing=0.2))
    cosines = torch.tensor([[1.0, -1.0], [0.5, 0.5]])
    assert build("squared_cosine")(cosines, TARGET).item() == pytest.approx((0 + 0.25) / 2)


@pytest.mark.parametrize("name", LONG_TAIL)
def test_losses_for_long_tails_take_class_counts_and_options(name):
    for values, expected in LONG_TAIL[name]:
        loss = build(name, **values)
        assert type(loss) is type(expected)
        assert torch.equal(loss(LOGITS, TARGET), expected(LOGITS, TARGET))
    with pytest.raises(ValueError, match="class_counts"):
        build(name, (50, 0))


@pytest.mark.parametrize("loss", losses.loss_names())
def test_defaults_are_what_a_loss_does_without_options_and_others_are_refused(loss):
    values = {key: value for key, value in losses.loss_defaults(loss).items() if not key.startswith("reweight")}
    assert torch.equal(build(loss, **values)(LOGITS, TARGET), build(loss)(LOGITS, TARGET))
    losses.loss_defaults(loss)["margin"] = 1.0
    assert "margin" not in losses.loss_defaults(loss), "the table cannot be changed"
    with pytest.raises(ValueError, match="margin") as caught:
        build(loss, margin=1)
    assert all(f"{key}=" in str(caught.value) for key in losses.loss_defaults(loss))


@pytest.mark.parametrize(
    ("loss", "values", "name"),
    [
        *(("cross_entropy", {"label_smoothing": value}, "label_smoothing") for value in (-0.1, 1.1, math.nan)),
        *(("ldam", {"reweight": value}, "reweight") for value in ("inverse", None)),
        *(("ldam", {"reweight_from": value}, "reweight_from") for value in (-1, 0.8)),
        ("ldam", {"reweight_beta": 1.0}, "beta"),
        ("hinge", {}, "hinge"),
    ],
)
def test_values_that_would_fail_later_are_refused_at_once(loss, values, name):
    with pytest.raises(ValueError, match=name):
        build(loss, **values)


def test_deferred_weights_are_those_of_the_protocol():
    deferred = options(max_margin=0.4, reweight="effective", reweight_from=160)
    spec = RunSpec(loss="ldam", loss_options=deferred, epochs=200)
    counts = long_tail_counts(500, 100, 0.01)
    loss = losses.build_loss(spec, counts)
    for epoch, first, last in ((159, 1, 1), (160, 0.0449, 4.3783), (3, 1, 1)):  # a pure function of the epoch
        losses.reweight(loss, spec, counts, epoch)
        assert (loss.weight[0].item(), loss.weight[-1].item()) == pytest.approx((first, last), abs=5e-5)
    assert losses.last_loss(spec.replace(stop_after=161), counts).weight[-1].item() == pytest.approx(4.3783, abs=5e-5)
    assert losses.last_loss(spec.replace(stop_after=160), counts).weight[-1].item() == 1
    loss = LDAMLoss([50, 5], weight=[1.0, 2.0])
    losses.reweight(loss, RunSpec(loss="ldam"), [50, 5], 500)
    assert loss.weight.tolist() == [1.0, 2.0], "without these options weights are left alone"


@pytest.mark.parametrize("values", [{"reweight_from": 16}, {"reweight_beta": 0.99, "reweight_from": 16}])
def test_when_and_how_to_reweigh_imply_it(values):
    spec = RunSpec(loss="ldam", loss_options=options(**values))
    assert dict(spec.loss_options) == values, "the spec, and so the name of its run, stays"
    weights = []
    for each in (spec, spec.replace(loss_options=options(reweight="effective", **values))):
        loss = losses.build_loss(each, [500, 5])
        losses.reweight(loss, each, [500, 5], 16)
        weights.append(loss.weight)
    assert torch.equal(*weights)
    assert weights[0][1] > 1


@given(scale=st.none() | st.floats(0.5, 60), seed=st.integers(0, 99))
def test_the_scale_of_a_spec_is_that_of_its_loss(scale, seed):
    """Without its margin, ldam is the likelihood of softmax(softmax_scale * cosines)."""
    chosen = {"max_margin": 0.0} | ({} if scale is None else {"scale": scale})
    spec = RunSpec(loss="ldam", loss_options=options(**chosen))
    cosines = torch.rand(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    target = torch.tensor([0, 1, 2, 3, 0, 1])
    likelihood = -(spec.softmax_scale * cosines).log_softmax(1)[torch.arange(6), target].mean()
    torch.testing.assert_close(losses.build_loss(spec, [9, 5, 2, 1])(cosines, target), likelihood)
