import copy

import pytest
import torch
from torch import nn

import maxsep
from maxsep import MaxSeparationHead, fold, grow
from maxsep.heads import ETFHead
from maxsep.surgery import carry_optimiser_state

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


def trained(kind: str, steps: int = 10) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), MaxSeparationHead(6, 5, 0.7)).double()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.05}]
    optimiser = OPTIMISERS[kind](groups)
    step(model, optimiser, steps)
    return model, optimiser


def step(model: nn.Module, optimiser: torch.optim.Optimizer, steps: int) -> float:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x, y = torch.randn(8, 4, generator=generator).double(), torch.randint(5, (8,), generator=generator)
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
    return loss.item()


@pytest.mark.parametrize("kind", ["sgd", "nesterov"])
def test_momentum_moves_the_old_classes_as_it_would_have(kind):
    """With no new gradient, what is left is momentum and weight decay: the composed rows take the same steps."""
    model, optimiser = trained(kind)
    other, other_optimiser = copy.deepcopy((model, optimiser))
    grow(other, 3, optimiser=other_optimiser)
    for net, opt in ((model, optimiser), (other, other_optimiser)):
        for _ in range(5):
            for parameter in net.parameters():
                parameter.grad = torch.zeros_like(parameter)
            opt.step()
    expected, actual = fold(model[2]), fold(other[2])
    torch.testing.assert_close(actual.weight[:5], expected.weight, rtol=0, atol=1e-12)
    torch.testing.assert_close(actual.bias[:5], expected.bias, rtol=0, atol=1e-12)
    torch.testing.assert_close(other[0].weight, model[0].weight, rtol=0, atol=0)
    assert actual.weight[5:].abs().max() < 1e-12


def test_momentum_is_mapped_as_the_weight_is():
    model, optimiser = trained("sgd")
    as_weight = copy.deepcopy(model[2])
    with torch.no_grad():
        as_weight.weight.copy_(optimiser.state[model[2].weight]["momentum_buffer"])
    expected = grow(as_weight, 3).weight
    grow(model, 3, optimiser=optimiser)
    torch.testing.assert_close(optimiser.state[model[2].weight]["momentum_buffer"], expected)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_adam_keeps_its_count_and_its_second_moments_stay_positive(kind):
    model, optimiser = trained(kind)
    old = {key: value.clone() for key, value in optimiser.state[model[2].weight].items()}
    grow(model, 3, optimiser=optimiser)
    state = optimiser.state[model[2].weight]
    assert state["step"] == old["step"] == 10
    assert state["exp_avg"].shape == state["exp_avg_sq"].shape == (7, 6)
    assert state["exp_avg_sq"].min() > 0
    assert state["exp_avg_sq"].dtype == torch.float64
    torch.testing.assert_close(state["exp_avg_sq"][5:], old["exp_avg_sq"].mean(0).expand(2, 6))
    if kind == "adam":
        assert state["max_exp_avg_sq"].shape == (7, 6)


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_training_goes_on_after_growth(kind):
    model, optimiser = trained(kind)
    heads = model[2]
    count = len(optimiser.state)
    grow(model, 3, optimiser=optimiser)
    assert optimiser.param_groups[1]["params"] == [model[2].weight, model[2].bias]
    assert optimiser.param_groups[1]["lr"] == 0.05
    assert len(optimiser.state) == count
    assert heads.weight not in optimiser.state
    before = model[2].weight.clone()
    first = step(model, optimiser, 1)
    assert not torch.equal(model[2].weight, before)
    assert step(model, optimiser, 60) < first
    optimiser.load_state_dict(copy.deepcopy(optimiser.state_dict()))  # what a checkpoint does
    step(model, optimiser, 2)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_first_step_of_adam_after_growth_is_not_longer_than_usual(kind):
    model, optimiser = trained(kind, steps=200)
    grow(model, 10, optimiser=optimiser)
    before = model[2].weight.clone()
    step(model, optimiser, 1)
    moved = (model[2].weight - before).abs()
    assert moved[5:].max() <= 2 * 0.05


def test_optimiser_that_has_not_stepped_yet_may_be_of_any_kind():
    head = MaxSeparationHead(4, 3)
    optimiser = torch.optim.RMSprop(head.parameters())
    grown = grow(head, 1, optimiser=optimiser)
    assert optimiser.param_groups[0]["params"] == [grown.weight, grown.bias]


def test_frozen_parameter_outside_the_optimiser():
    head = MaxSeparationHead(4, 3)
    head.bias.requires_grad_(False)
    optimiser = torch.optim.SGD([head.weight], lr=0.1)
    grown = grow(head, 1, optimiser=optimiser)
    assert optimiser.param_groups[0]["params"] == [grown.weight]


def test_plain_gradient_descent_has_nothing_to_map():
    head = MaxSeparationHead(4, 3)
    optimiser = torch.optim.SGD(head.parameters(), lr=0.1)
    head(torch.randn(2, 4)).square().sum().backward()
    optimiser.step()
    grown = grow(head, 1, optimiser=optimiser)
    grown(torch.randn(2, 4)).square().sum().backward()
    optimiser.step()
    assert set(optimiser.state) <= {grown.weight, grown.bias}


def test_bias_of_an_etf_head():
    head = ETFHead(9, 4, reserved=2, bias=True)
    optimiser = torch.optim.Adam(head.parameters())
    nn.functional.cross_entropy(head(torch.randn(8, 9)), torch.arange(8) % 4).backward()
    optimiser.step()
    old = optimiser.state[head.bias]
    grown = grow(head, 2, optimiser=optimiser)
    state = optimiser.state[grown.bias]
    assert torch.equal(state["exp_avg"], torch.cat([old["exp_avg"], torch.zeros(2)]))
    torch.testing.assert_close(state["exp_avg_sq"][4:], old["exp_avg_sq"].mean().expand(2))


def test_other_optimisers_with_state_are_refused_before_anything_changes():
    head = MaxSeparationHead(4, 3)
    model = nn.Sequential(head)
    optimiser = torch.optim.RMSprop(head.parameters())
    head(torch.randn(2, 4)).square().sum().backward()
    optimiser.step()
    with pytest.raises(TypeError, match="state of RMSprop cannot be carried over: only that of SGD, Adam and AdamW"):
        grow(model, 1, optimiser=optimiser)
    assert model[0] is head
    assert optimiser.param_groups[0]["params"][0] is head.weight


def test_optimiser_of_another_model():
    optimiser = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="this SGD trains no parameter of MaxSeparationHead"):
        grow(MaxSeparationHead(4, 3), 1, optimiser=optimiser)
    with pytest.raises(TypeError, match=r"optimiser must be a torch\.optim\.Optimizer, got str"):
        grow(MaxSeparationHead(4, 3), 1, optimiser="sgd")


def test_head_that_did_not_grow_from_the_other():
    head = MaxSeparationHead(4, 3)
    optimiser = torch.optim.SGD(head.parameters(), lr=0.1)
    for other in (MaxSeparationHead(4, 3), maxsep.heads.PlainHead(4, 5)):
        with pytest.raises(ValueError, match="new_head must be what grow made of old_head"):
            carry_optimiser_state(optimiser, head, other)
