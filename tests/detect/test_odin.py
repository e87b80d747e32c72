from types import SimpleNamespace

import pytest
import torch
from torch import nn

from maxsep.detect import ODIN, max_softmax


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3)
    )


def test_without_a_step_it_is_the_tempered_softmax():
    model, x = network().eval(), torch.randn(5, 2, 2, 2)
    expected = max_softmax(model(x).double() / 10)
    torch.testing.assert_close(ODIN(model, temperature=10, magnitude=0).score(x), expected.detach())


def test_the_step_of_a_linear_model_is_known():
    # f = (2x, 0): class 0 is predicted, its probability grows with x, and the step is +magnitude / std
    model = nn.Linear(1, 2, bias=False)
    model.weight.data = torch.tensor([[2.0], [0.0]])
    score = ODIN(model, temperature=4.0, magnitude=0.5, std=2.0).score(torch.tensor([[1.0]]))
    assert score.item() == pytest.approx(torch.tensor(2 * 1.25 / 4).sigmoid().item(), abs=1e-6)


def test_the_step_raises_scores_and_leaves_the_model_as_it_was():
    model, x = network().train(), torch.randn(30, 2, 2, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plain, stepped = (ODIN(model, magnitude=magnitude).score(x) for magnitude in (0, 0.01))
    assert (stepped > plain).all()
    assert all(part.training for part in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    with torch.inference_mode():
        torch.testing.assert_close(ODIN(model, magnitude=0.01).score(x), stepped)


def test_half_precision_keeps_the_direction_at_a_high_temperature():
    # the gradient of log S itself would be 1e-8 times the weights and vanish in float16
    model = nn.Linear(1, 2, bias=False).half()
    model.weight.data = torch.tensor([[-1.0], [1.0]]).half()
    x = torch.tensor([[2.0]]).half()
    assert (ODIN(model, 1e8, 0.5).score(x) > ODIN(model, 1e8, 0.0).score(x)).all()


def test_a_model_that_returns_an_object_with_logits():
    x = torch.randn(4, 3)
    told = ODIN(lambda x: SimpleNamespace(logits=x * 2)).score(x)
    torch.testing.assert_close(told, ODIN(lambda x: x * 2).score(x))
    with pytest.raises(TypeError, match=r"the model must return logits as a tensor.*got str"):
        ODIN(lambda x: "no").score(x)


def test_a_tensor_is_held_to_the_contract_of_every_detector():
    odin, x = ODIN(network().eval()[-1], temperature=10), torch.randn(5, 2, 16)
    for data in (x, [x]):
        with pytest.raises(ValueError, match=r"inputs \(5, 2, 16\) must have one score for each of its rows"):
            odin.score(data)
    with pytest.raises(ValueError, match=r"a single input as x\[None\]"):
        odin.score(x[0, 0])
    torch.testing.assert_close(odin.score(x[0]), odin.score([x[0, :1], x[0, 1:]]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature must be a positive finite number, got 0"),
        ({"magnitude": -1}, "magnitude must be zero or a positive finite number, got -1"),
        ({"magnitude": float("nan")}, "magnitude must be zero or a positive finite number, got nan"),
    ],
)
def test_bad_options_are_explained(options, message):
    with pytest.raises(ValueError, match=message):
        ODIN(nn.Identity(), **options)
