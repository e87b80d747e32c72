from types import SimpleNamespace

import pytest
import torch
from torch import nn

from maxsep.detect import LogitDetector, energy, max_logit, max_softmax

LOGITS = torch.tensor([[5.0, 4.0, 3.0], [0.0, 0.0, 0.0]])


def test_options_reach_the_function():
    assert LogitDetector(nn.Identity(), max_logit).score(LOGITS).tolist() == [5.0, 0.0]
    assert LogitDetector(nn.Identity(), max_logit, centre=True).score(LOGITS).tolist() == [1.0, 0.0]
    cold = LogitDetector(nn.Identity(), energy, temperature=1e-3, centre=True).score(LOGITS)
    assert cold.tolist() == pytest.approx([1.0, 0.0], abs=2e-3)


def test_functions_of_one_s_own_and_models_that_answer_with_an_object():
    def margin(logits):
        first, second = logits.topk(2).values.unbind(-1)
        return first - second

    model = lambda x: SimpleNamespace(logits=3 * x)  # noqa: E731 - any callable is a model
    assert LogitDetector(model, margin).score([LOGITS]).tolist() == [3.0, 0.0]


@pytest.mark.parametrize(
    ("function", "options", "kind", "message"),
    [
        ("energy", {}, TypeError, r"function must map logits \(B, C\) to scores \(B,\), got str 'energy'"),
        (energy, {"temperature": 0}, ValueError, "temperature must be a positive finite number, got 0"),
        (max_softmax, {"centre": True}, TypeError, "unexpected keyword argument 'centre'"),
    ],
)
def test_bad_options_are_explained(function, options, kind, message):
    with pytest.raises(kind, match=message):
        LogitDetector(nn.Identity(), function, **options).score(LOGITS)


def test_bad_logits_are_explained():
    with pytest.raises(TypeError, match=r"the model must return logits as a tensor.*got tuple"):
        LogitDetector(lambda x: (x, x), energy).score(LOGITS)
    with pytest.raises(TypeError, match=r"logits must be a real floating-point tensor, got dtype torch.int64"):
        LogitDetector(nn.Identity(), energy).score(LOGITS.long())
