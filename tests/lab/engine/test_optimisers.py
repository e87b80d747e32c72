import pytest
import torch
from torch import nn

from maxsep.heads.controls import LogitScaledHead, PlainHead
from maxsep.lab.engine.optim import build_optimiser, set_learning_rate
from maxsep.lab.spec import RunSpec


def test_sgd_takes_the_specs_numbers():
    spec = RunSpec(learning_rate=0.3, momentum=0.8, nesterov=True, weight_decay=1e-3)
    group = build_optimiser(spec, nn.Linear(2, 2)).param_groups[0]
    assert (group["lr"], group["momentum"], group["nesterov"], group["weight_decay"]) == (0.3, 0.8, True, 1e-3)
    assert len(group["params"]) == 2


def test_adamw_takes_the_specs_numbers():
    optimiser = build_optimiser(RunSpec(optimiser="adamw", learning_rate=0.01), nn.Linear(2, 2))
    assert isinstance(optimiser, torch.optim.AdamW)
    assert optimiser.param_groups[0]["weight_decay"] == 5e-4


def test_frozen_parameters_are_left_out():
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    assert len(build_optimiser(RunSpec(), layer).param_groups[0]["params"]) == 1


def test_the_rate_is_set_as_a_number_or_in_place():
    layer = nn.Linear(2, 2)
    plain, captured = build_optimiser(RunSpec(), layer), build_optimiser(RunSpec(), layer, capturable=True)
    rate = captured.param_groups[0]["lr"]
    for optimiser in (plain, captured):
        set_learning_rate(optimiser, 0.25)
    assert plain.param_groups[0]["lr"] == 0.25
    assert captured.param_groups[0]["lr"] is rate
    assert rate.item() == 0.25


def test_an_unknown_optimiser_lists_the_known():
    with pytest.raises(ValueError, match=r"unknown optimiser 'lion'. Known: adamw, sgd"):
        build_optimiser(RunSpec(optimiser="lion"), nn.Linear(2, 2))


class Headed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.head = LogitScaledHead(PlainHead(2, 2))


@pytest.mark.parametrize("capturable", [False, True])
def test_the_head_may_learn_at_its_own_rate_but_its_factors_do_not(capturable):
    network = Headed()
    optimiser = build_optimiser(RunSpec(head_rate=0.2), network, capturable=capturable)
    rest, head = optimiser.param_groups
    assert [p is q for p, q in zip(head["params"], network.head.head.parameters(), strict=True)] == [True, True]
    assert any(parameter is network.head.scale for parameter in rest["params"])
    set_learning_rate(optimiser, 0.5)
    assert (float(rest["lr"]), float(head["lr"])) == pytest.approx((0.5, 0.1))


def test_a_frozen_body_leaves_the_head_alone_in_its_group():
    network = Headed()
    network.body.requires_grad_(False)
    network.head.scale.requires_grad_(False)
    optimiser = build_optimiser(RunSpec(head_rate=0.2), network)
    assert [len(group["params"]) for group in optimiser.param_groups] == [2]
