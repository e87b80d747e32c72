import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from maxsep.lab.data import long_tail_counts
from maxsep.lab.engine import losses, train
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec, options
from maxsep.losses import BalancedSoftmaxLoss, LabelAwareSmoothingLoss, LDAMLoss, LogitAdjustedLoss


def test_cross_entropy_smooths_on_demand():
    logits, target = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    plain = losses.build_loss(RunSpec(), [1, 1, 1])(logits, target)
    smooth = losses.build_loss(RunSpec(loss_options=options(label_smoothing=0.2)), [1, 1, 1])(logits, target)
    assert torch.equal(plain, F.cross_entropy(logits, target))
    assert torch.equal(smooth, F.cross_entropy(logits, target, label_smoothing=0.2))


def test_squared_cosine_looks_at_the_right_class_only():
    loss = losses.build_loss(RunSpec(loss="squared_cosine"), [1, 1])
    cosines = torch.tensor([[1.0, -1.0], [0.5, 0.5]])
    assert loss(cosines, torch.tensor([0, 1])).item() == pytest.approx((0 + 0.25) / 2)


def test_an_unknown_loss_lists_the_known():
    known = "balanced_softmax, cross_entropy, label_aware_smoothing, ldam, logit_adjusted, squared_cosine"
    with pytest.raises(ValueError, match=rf"unknown loss 'hinge'. Known: {known}\."):
        losses.build_loss(RunSpec(loss="hinge"), [1])


LONG_TAIL = {
    "balanced_softmax": ({}, BalancedSoftmaxLoss([50, 5])),
    "ldam": ({"max_margin": 0.4, "scale": 10}, LDAMLoss([50, 5], max_margin=0.4, scale=10)),
    "logit_adjusted": ({"tau": 1.5}, LogitAdjustedLoss([50, 5], tau=1.5)),
    "label_aware_smoothing": (
        {"smooth_head": 0.3, "smooth_tail": 0.05},
        LabelAwareSmoothingLoss([50, 5], smooth_head=0.3, smooth_tail=0.05),
    ),
}
DEFAULTS = {
    "balanced_softmax": BalancedSoftmaxLoss([50, 5]),
    "ldam": LDAMLoss([50, 5]),
    "logit_adjusted": LogitAdjustedLoss([50, 5]),
    "label_aware_smoothing": LabelAwareSmoothingLoss([50, 5], 0.4, 0.1),
}
LOGITS, TARGET = torch.tensor([[0.3, -0.2], [0.1, 0.9]]), torch.tensor([0, 1])


@pytest.mark.parametrize("name", LONG_TAIL)
def test_losses_of_the_long_tail_take_class_counts_and_options(name):
    given, expected = LONG_TAIL[name]
    loss = losses.build_loss(RunSpec(loss=name, loss_options=options(**given)), [50, 5])
    assert type(loss) is type(expected)
    assert torch.equal(loss(LOGITS, TARGET), expected(LOGITS, TARGET))


@pytest.mark.parametrize("name", DEFAULTS)
def test_losses_of_the_long_tail_have_defaults(name):
    loss = losses.build_loss(RunSpec(loss=name), [50, 5])
    assert torch.equal(loss(LOGITS, TARGET), DEFAULTS[name](LOGITS, TARGET))


@pytest.mark.parametrize("name", LONG_TAIL)
def test_losses_of_the_long_tail_refuse_a_class_without_images(name):
    with pytest.raises(ValueError, match="class_counts must be at least 1, got 0 for class 1"):
        losses.build_loss(RunSpec(loss=name), [50, 0])


@pytest.mark.parametrize("name", LONG_TAIL)
def test_a_run_trains_on_the_long_tail(tmp_path, name):
    head = "cosine" if name == "ldam" else "maxsep"
    spec = RunSpec(imbalance=0.1, head=head, loss=name, epochs=1, max_train=200, max_test=100, batch_size=64)
    metrics = Run(train(spec, runs=tmp_path, progress=False)).metrics
    assert math.isfinite(metrics["train_loss"])
    assert math.isfinite(metrics["loss"])


@pytest.mark.parametrize("loss", losses.loss_names())
def test_unknown_options_are_refused(loss):
    with pytest.raises(ValueError, match=rf"loss '{loss}' does not take the options \['margin'\]"):
        losses.build_loss(RunSpec(loss=loss, loss_options=options(margin=1)), [1])


KNOWN = {
    "balanced_softmax": "none",
    "cross_entropy": "label_smoothing=0",
    "label_aware_smoothing": "smooth_head=0.4, smooth_tail=0.1",
    "ldam": "max_margin=0.5, scale=30, reweight=effective (by default none), reweight_from=0, reweight_beta=0.9999",
    "logit_adjusted": "tau=1",
    "squared_cosine": "none",
}


@pytest.mark.parametrize("loss", losses.loss_names())
def test_an_unknown_option_is_answered_with_all_that_there_are(loss):
    with pytest.raises(ValueError, match="does not take") as caught:
        losses.build_loss(RunSpec(loss=loss, loss_options=options(margin=1, reweight="effective")), [1, 1])
    assert str(caught.value).endswith(f". Known: {KNOWN[loss]}.")
    assert ("'reweight'" in str(caught.value)) == (loss != "ldam")


@pytest.mark.parametrize("loss", losses.loss_names())
def test_the_defaults_are_what_a_loss_does_without_options(loss):
    given = {key: value for key, value in losses.loss_defaults(loss).items() if not key.startswith("reweight")}
    told = losses.build_loss(RunSpec(loss=loss, loss_options=options(**given)), [50, 5])
    assert torch.equal(told(LOGITS, TARGET), losses.build_loss(RunSpec(loss=loss), [50, 5])(LOGITS, TARGET))
    if "reweight" in losses.loss_defaults(loss):  # None stands for leaving it out, and is no value of it
        with pytest.raises(ValueError, match=r"unknown re-weighting None. Known: effective. Leave it out for none"):
            losses.build_loss(RunSpec(loss=loss, loss_options=options(reweight=None)), [50, 5])
    losses.loss_defaults(loss)["margin"] = 1.0
    assert "margin" not in losses.loss_defaults(loss), "the table is nobody's to change"


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, math.nan])
def test_smoothing_beyond_its_range_is_refused_before_training(smoothing):
    with pytest.raises(ValueError, match=r"label_smoothing must be a number in \[0, 1\], got"):
        losses.build_loss(RunSpec(loss_options=options(label_smoothing=smoothing)), [1, 1])


def test_losses_can_be_added_once(monkeypatch):
    monkeypatch.setattr(losses, "_LOSSES", dict(losses._LOSSES))
    losses.register_loss("counted", lambda spec, counts: lambda logits, target: logits.sum() * counts[0])
    assert losses.build_loss(RunSpec(loss="counted"), [3])(torch.ones(1, 2), torch.zeros(1)).item() == 6
    losses.build_loss(RunSpec(loss="counted", loss_options=options(its_own=1)), [3])
    with pytest.raises(ValueError, match="the loss 'counted' exists already"):
        losses.register_loss("counted", lambda spec, counts: F.cross_entropy)


DEFERRED = RunSpec(
    loss="ldam", loss_options=options(max_margin=0.4, reweight="effective", reweight_from=160), epochs=200
)


def test_deferred_weights_are_those_of_the_protocol():
    counts = long_tail_counts(500, 100, 0.01)
    loss = losses.build_loss(DEFERRED, counts)
    assert loss.max_margin == 0.4
    losses.reweight(loss, DEFERRED, counts, 159)
    assert torch.equal(loss.weight, torch.ones(100, dtype=torch.float64))
    losses.reweight(loss, DEFERRED, counts, 160)
    assert loss.weight[0].item() == pytest.approx(0.0449, abs=5e-5)
    assert loss.weight[-1].item() == pytest.approx(4.3783, abs=5e-5)
    losses.reweight(loss, DEFERRED, counts, 3)  # a pure function of the epoch, in whatever order
    assert loss.weight.unique().tolist() == [1.0]


def test_losses_without_deferred_weights_are_left_alone():
    loss = LDAMLoss([50, 5], weight=[1.0, 2.0])
    losses.reweight(loss, RunSpec(loss="ldam"), [50, 5], 500)
    assert loss.weight.tolist() == [1.0, 2.0]
    losses.reweight(F.cross_entropy, RunSpec(), [50, 5], 0)


def test_an_unknown_weighting_is_named():
    with pytest.raises(ValueError, match=r"unknown re-weighting 'inverse'. Known: effective"):
        losses.build_loss(RunSpec(loss="ldam", loss_options=options(reweight="inverse")), [50, 5])


@pytest.mark.parametrize("given", [{"reweight_from": 16}, {"reweight_beta": 0.99, "reweight_from": 16}])
def test_when_and_how_to_reweigh_ask_for_it(given):
    spec = RunSpec(loss="ldam", loss_options=options(**given))
    assert dict(spec.loss_options) == given, "the spec, and so the name of its run, is what was given"
    told = spec.replace(loss_options=options(reweight="effective", **given))
    weights = []
    for each in (spec, told):
        loss = losses.build_loss(each, [500, 5])
        losses.reweight(loss, each, [500, 5], 15)
        assert loss.weight.tolist() == [1.0, 1.0]
        losses.reweight(loss, each, [500, 5], 16)
        weights.append(loss.weight)
    assert torch.equal(*weights)
    assert weights[0][1] > 1
    assert torch.equal(losses.last_loss(spec, [500, 5]).weight, weights[0])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"reweight_from": -1}, r"reweight_from must be an epoch, counted from 0, got -1. Name one such as 160 of 200"),
        ({"reweight_from": 0.8}, r"reweight_from must be an epoch, counted from 0, got 0.8"),
        ({"reweight": "effective", "reweight_beta": 1.0}, r"beta must be a number in \[0, 1\), got 1.0"),
    ],
)
def test_a_weighting_that_would_fail_later_is_refused_now(given, told):
    with pytest.raises(ValueError, match=told):
        losses.build_loss(RunSpec(loss="ldam", loss_options=options(**given)), [50, 5])


@given(scale=st.none() | st.floats(0.5, 60), seed=st.integers(0, 99))
def test_the_scale_of_a_spec_is_that_of_its_loss(scale, seed):
    """Without its margin, ldam is the likelihood of softmax(softmax_scale * cosines)."""
    chosen = {"max_margin": 0.0} | ({} if scale is None else {"scale": scale})
    spec = RunSpec(loss="ldam", loss_options=options(**chosen))
    cosines = torch.rand(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    target = torch.tensor([0, 1, 2, 3, 0, 1])
    likelihood = -(spec.softmax_scale * cosines).log_softmax(1)[torch.arange(6), target].mean()
    torch.testing.assert_close(losses.build_loss(spec, [9, 5, 2, 1])(cosines, target), likelihood)
