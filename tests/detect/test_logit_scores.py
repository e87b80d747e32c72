import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep import separate
from maxsep.detect import auroc, energy, max_logit, max_softmax


def test_hand_computed_values():
    logits = torch.tensor([[math.log(3.0), 0.0], [math.log(6.0), math.log(2.0)]])
    assert max_softmax(logits).tolist() == pytest.approx([0.75, 0.75])
    assert max_logit(logits).tolist() == pytest.approx([math.log(3), math.log(6)])
    assert energy(logits).tolist() == pytest.approx([math.log(4), math.log(8)])
    assert energy(logits, 0.5).tolist() == pytest.approx([0.5 * math.log(10), 0.5 * math.log(40)])


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), classes=st.integers(2, 9), shift=st.floats(-50, 50), temperature=st.floats(0.1, 100))
def test_centred_scores_ignore_a_common_shift_and_keep_the_bounds_of_zero_sum_logits(seed, classes, shift, temperature):
    logits = torch.randn(5, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 4
    moved = energy(logits + shift, temperature, centre=True)
    torch.testing.assert_close(moved, energy(logits, temperature, centre=True))
    torch.testing.assert_close(max_logit(logits + shift, centre=True), max_logit(logits, centre=True))
    torch.testing.assert_close(max_softmax(logits + shift), max_softmax(logits))
    torch.testing.assert_close(energy(logits + shift), energy(logits) + shift)
    assert (moved >= temperature * math.log(classes) - 1e-9).all()
    assert (max_logit(logits, centre=True) >= 0).all()


def test_separated_logits_are_centred_already():
    logits = separate(torch.randn(6, 4, dtype=torch.float64))
    torch.testing.assert_close(energy(logits), energy(logits, centre=True))
    torch.testing.assert_close(max_logit(logits), max_logit(logits, centre=True))


def test_confident_samples_do_not_tie():
    # the float32 softmax of both is exactly 1
    sure, surer = torch.tensor([[20.0, 0.0]]), torch.tensor([[25.0, 0.0]])
    assert float(sure.softmax(-1).max()) == float(surer.softmax(-1).max()) == 1
    assert auroc(max_softmax(surer), max_softmax(sure)) == 1


def test_energy_tends_to_the_largest_logit_and_does_not_overflow():
    logits = torch.tensor([[1000.0, 999.0], [-2000.0, -1000.0]])
    torch.testing.assert_close(energy(logits, 1e-3), max_logit(logits))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("score", [max_softmax, max_logit, energy])
def test_any_type_and_shape_gives_float64_scores(score, dtype):
    logits = torch.arange(24).reshape(2, 3, 4).to(dtype)
    assert score(logits).dtype == torch.float64
    assert score(logits).shape == (2, 3)
    assert score(logits[:, 0][:0]).shape == (0,)
    torch.testing.assert_close(score(logits)[1, 2], score(logits[1, 2]))


@pytest.mark.parametrize("score", [max_softmax, max_logit, energy])
def test_nan_stays_nan_and_touches_no_other_sample(score):
    scores = score(torch.tensor([[float("nan"), 1.0], [2.0, 1.0]]))
    assert scores[0].isnan()
    assert scores[1].isfinite()


@pytest.mark.parametrize(
    ("logits", "kind", "message"),
    [
        (torch.tensor([[1, 2]]), TypeError, "logits must be a real floating-point tensor, got dtype torch.int64"),
        ([[1.0, 2.0]], TypeError, "logits must be a tensor, got list"),
        (torch.tensor(1.0), ValueError, r"logits must be \(\.\.\., C\) with at least one class, got shape \(\)"),
        (torch.zeros(3, 0), ValueError, r"with at least one class, got shape \(3, 0\)"),
    ],
)
@pytest.mark.parametrize("score", [max_softmax, max_logit, energy])
def test_bad_logits_are_explained(score, logits, kind, message):
    with pytest.raises(kind, match=message):
        score(logits)


@pytest.mark.parametrize("temperature", [0, -1.0, float("inf"), float("nan"), True, "1"])
def test_a_bad_temperature_is_explained(temperature):
    with pytest.raises(ValueError, match="temperature must be a positive finite number, got"):
        energy(torch.zeros(1, 2), temperature)
