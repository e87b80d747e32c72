import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep import detect
from maxsep.lab.ood.evaluate import histogram, measure_draws, measure_pair
from maxsep.lab.ood.scores import logit_scores

SCORES = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30).map(torch.tensor)


@given(SCORES, SCORES)
def test_a_histogram_has_common_bins_every_image_and_the_gap(known, outside):
    told = histogram(known, outside, bins=7)
    assert len(told["edges"]) == 8
    for side in ("known", "outside"):
        assert sum(told[side]) == pytest.approx(1, abs=1e-5)
    assert told["gap"] == pytest.approx(float(known.double().mean() - outside.double().mean()))


def test_the_gap_in_standard_deviations_does_not_depend_on_the_scale():
    known, outside = torch.tensor([3.0, 5.0]), torch.tensor([0.0, 2.0])
    one, ten = histogram(known, outside), histogram(10 * known, 10 * outside)
    assert one["gap_in_stds"] == pytest.approx(ten["gap_in_stds"]) == pytest.approx(3.0)
    assert histogram(torch.ones(2), torch.ones(2))["gap_in_stds"] is None


def test_draws_are_without_replacement_and_the_same_every_time():
    known, outside = torch.randn(50), torch.randn(20)
    whole = measure_draws(known, outside, 99, 3)
    assert whole["size"] == 20
    assert whole["auroc"] == {"mean": pytest.approx(measure_pair(known, outside)["auroc"]), "std": pytest.approx(0)}
    assert measure_draws(known, outside, 5, 3) == measure_draws(known, outside, 5, 3)
    assert measure_draws(known, outside, 5, 1)["auroc"]["std"] == 0


def test_softmax_and_energy_are_those_of_the_scaled_logits():
    cosines = torch.rand(20, 5, generator=torch.Generator().manual_seed(0)) * 2 - 1
    plain, scaled = logit_scores(cosines), logit_scores(cosines, 30.0)
    for name in ("max_logit", "max_logit_centred"):
        assert torch.equal(plain[name], scaled[name])
    by_hand = torch.exp(30 * cosines.double())
    torch.testing.assert_close(scaled["max_softmax"], by_hand.amax(1) / by_hand.sum(1), rtol=1e-5, atol=0)
    torch.testing.assert_close(scaled["energy"], by_hand.sum(1).log(), rtol=1e-5, atol=1e-5)
    centred = detect.energy(30 * cosines, centre=True)
    torch.testing.assert_close(scaled["energy_centred"], centred)
