import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.detect import auroc, energy, max_logit, max_softmax

every = pytest.mark.parametrize("score", [max_softmax, max_logit, energy])


def test_hand_computed_values():
    logits = torch.tensor([[math.log(3.0), 0.0], [math.log(6.0), math.log(2.0)]])
    assert max_softmax(logits).tolist() == pytest.approx([0.75, 0.75])
    assert max_logit(logits).tolist() == pytest.approx([math.log(3), math.log(6)])
    assert energy(logits).tolist() == pytest.approx([math.log(4), math.log(8)])
    assert energy(logits, 0.5).tolist() == pytest.approx([0.5 * math.log(10), 0.5 * math.log(40)])


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), classes=st.integers(2, 9), shift=st.floats(-50, 50), temperature=st.floats(0.1, 100))
def test_centred_scores_are_invariant_to_a_common_shift(seed, classes, shift, temperature):
    logits = torch.randn(5, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 4
    shifted = energy(logits + shift, temperature, centre=True)
    torch.testing.assert_close(shifted, energy(logits, temperature, centre=True))
    torch.testing.assert_close(max_logit(logits + shift, centre=True), max_logit(logits, centre=True))
    torch.testing.assert_close(max_softmax(logits + shift), max_softmax(logits))
    torch.testing.assert_close(energy(logits + shift), energy(logits) + shift)
    assert (shifted >= temperature * math.log(classes) - 1e-9).all()
    assert (max_logit(logits, centre=True) >= 0).all()


def test_confident_samples_do_not_tie():
    sure, surer = torch.tensor([[20.0, 0.0]]), torch.tensor([[25.0, 0.0]])
    assert sure.softmax(-1).max() == surer.softmax(-1).max() == 1  # in float32
    assert auroc(max_softmax(surer), max_softmax(sure)) == 1


def test_energy_tends_to_the_largest_logit_without_overflow():
    logits = torch.tensor([[1000.0, 999.0], [-2000.0, -1000.0]])
    torch.testing.assert_close(energy(logits, 1e-3), max_logit(logits))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@every
def test_any_dtype_and_shape_gives_float64(score, dtype):
    logits = torch.arange(24).reshape(2, 3, 4).to(dtype)
    assert (score(logits).dtype, score(logits).shape) == (torch.float64, (2, 3))
    assert score(logits[:0]).shape == (0, 3)
    torch.testing.assert_close(score(logits)[1, 2], score(logits[1, 2]))


@every
def test_invalid_logits(score):
    for logits, error in [
        (torch.tensor([[1, 2]]), TypeError),
        ([[1.0, 2.0]], TypeError),
        (torch.tensor(1.0), ValueError),
        (torch.zeros(3, 0), ValueError),
    ]:
        with pytest.raises(error, match="logits"):
            score(logits)
