"""The other basis: the same logits and the same training from other coordinates."""

import copy
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations, prune

import maxsep
from maxsep import MaxSeparation, MaxSeparationHead, change_basis, simplex
from maxsep.heads import LogitScaledHead, PlainHead
from maxsep.surgery import change_basis as exported
from maxsep.surgery import find_heads
from maxsep.surgery.change_basis import turn_rows

H, R = "householder", "recursive"
CLASSES, WIDTH, RADIUS = st.integers(2, 100), st.integers(1, 9), st.floats(0.01, 100)


def other(basis):
    return R if basis == H else H


@given(CLASSES, WIDTH, RADIUS, st.booleans(), st.sampled_from([H, R]))
def test_no_logit_changes_and_the_way_back_gives_the_head_back(num_classes, width, radius, bias, basis):
    head = MaxSeparationHead(width, num_classes, radius, bias, basis=basis, dtype=torch.float64)
    x = torch.randn(5, width, dtype=torch.float64)
    turned = change_basis(head, other(basis))
    assert (turned.basis, head.basis, turned.radius) == (other(basis), basis, radius)
    torch.testing.assert_close(turned(x), head(x), atol=1e-12 * radius, rtol=1e-12)
    again = change_basis(turned, basis)
    assert again.basis == basis
    torch.testing.assert_close(again.weight, head.weight, atol=1e-12, rtol=0)
    if bias:
        torch.testing.assert_close(again.bias, head.bias, atol=1e-12, rtol=0)


@given(CLASSES, st.sampled_from([H, R]))
def test_rows_are_turned_by_the_orthogonal_matrix(num_classes, basis):
    source, target = (simplex(num_classes, basis=b, dtype=torch.float64) for b in (basis, other(basis)))
    rows = torch.randn(num_classes - 1, 3, dtype=torch.float64)
    expected = (num_classes - 1) / num_classes * target @ source.T @ rows
    torch.testing.assert_close(turn_rows(rows, basis, other(basis)), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(turn_rows(rows[:, 0], basis, other(basis)), expected[:, 0], atol=1e-12, rtol=0)
    assert torch.equal(turn_rows(rows, basis, basis), rows)


def test_many_columns_are_turned_a_few_at_a_time(monkeypatch):
    rows = torch.randn(40, 33)
    expected = turn_rows(rows, R, H)
    monkeypatch.setattr(sys.modules["maxsep.surgery.change_basis"], "NUMBERS", 100)
    for given_rows in (rows, rows.T.contiguous().T):
        torch.testing.assert_close(turn_rows(given_rows, R, H), expected)


def test_many_classes_in_float32_and_half_precision():
    head, x = MaxSeparationHead(8, 20_000), torch.randn(4, 8)
    wide = copy.deepcopy(head).double()(x.double())
    turned = change_basis(head, H)
    assert (turned.double()(x.double()) - wide).abs().max() <= 1e-6 * wide.abs().max()  # rounded once, to float32
    half = change_basis(head.bfloat16(), H)
    assert half.weight.dtype == torch.bfloat16
    assert half.weight.device == head.weight.device


def test_mode_and_what_is_trained_are_kept_and_the_old_head_is_left_alone():
    head = MaxSeparationHead(6, 4).eval()
    head.weight.requires_grad_(False)
    before = head.weight.clone()
    turned = exported(head, H)
    assert not turned.training
    assert (turned.weight.requires_grad, turned.bias.requires_grad) == (False, True)
    assert turned.weight is not head.weight
    assert torch.equal(head.weight, before)
    assert change_basis(turned, H) is turned


def test_a_model_is_changed_in_place_with_all_its_heads():
    head = MaxSeparationHead(6, 4)
    model = nn.ModuleDict({"a": nn.Sequential(head), "b": head, "c": MaxSeparationHead(6, 3), "d": PlainHead(6, 3)})
    x = torch.randn(5, 6)
    before = {name: part(x) for name, part in model.items()}
    assert change_basis(model, H) is model
    assert model["a"][0] is model["b"]
    assert [head.basis for _, head in find_heads(model)] == [H, H, R]  # the plain head has none to choose
    for name, part in model.items():
        torch.testing.assert_close(part(x), before[name], atol=1e-6, rtol=1e-5)
    scaled = LogitScaledHead(MaxSeparationHead(6, 4))
    expected = scaled(x)
    assert change_basis(scaled, H) is scaled
    assert scaled.basis == H
    torch.testing.assert_close(scaled(x), expected, atol=1e-6, rtol=1e-5)


SGD = {
    "plain": {},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.9, "nesterov": True},
}


def train(model, optimiser, seed, steps=10):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x, y = torch.randn(8, 4, generator=generator).double(), torch.randint(5, (8,), generator=generator)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()


@pytest.mark.parametrize("options", SGD.values(), ids=SGD)
def test_sgd_goes_on_as_if_nothing_had_happened(options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), MaxSeparationHead(6, 5, 0.7)).double()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.05}]
    optimiser = torch.optim.SGD(groups, lr=0.1, **options)
    train(model, optimiser, 1)
    turned, its_optimiser = copy.deepcopy((model, optimiser))
    change_basis(turned, H, optimiser=its_optimiser)
    assert its_optimiser.param_groups[1]["params"][0] is turned[2].weight
    for net, opt in ((model, optimiser), (turned, its_optimiser)):
        train(net, opt, 2)
    x = torch.randn(9, 4).double()
    torch.testing.assert_close(turned(x), model(x), atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(turned[0].weight, model[0].weight, atol=1e-12, rtol=1e-10)


def test_an_optimiser_that_cannot_go_along_is_refused_and_nothing_is_changed():
    model = nn.Sequential(nn.Linear(4, 6), MaxSeparationHead(6, 5)).double()
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    fresh = change_basis(copy.deepcopy(model), H)  # no optimiser: fine
    assert fresh[1].basis == H
    train(model, adam, 0, steps=1)
    head = model[1]
    with pytest.raises(TypeError, match=r"state of Adam cannot be turned.*belongs to single coordinates.*build a new"):
        change_basis(model, H, optimiser=adam)
    stranger = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="this SGD trains no parameter of MaxSeparationHead"):
        change_basis(model, H, optimiser=stranger)
    assert model[1] is head
    assert adam.param_groups[0]["params"][2] is head.weight


def test_an_optimiser_without_state_goes_along():
    head = MaxSeparationHead(4, 3)
    adam = torch.optim.Adam(head.parameters(), lr=0.01)
    turned = change_basis(head, H, optimiser=adam)
    assert adam.param_groups[0]["params"] == [turned.weight, turned.bias]
    assert not adam.state


class Sharpened(MaxSeparationHead):
    def forward(self, x):
        return 2 * super().forward(x).clamp_min(0)


class Named(MaxSeparationHead):
    """A subclass with an attribute of its own."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.note = "kept"


def test_what_cannot_be_turned_says_so():
    with pytest.raises(ValueError, match=r"Linear has no MaxSeparationHead, the only head with a choice of basis"):
        change_basis(nn.Linear(4, 3), H)
    with pytest.raises(ValueError, match="basis must be one of recursive, householder, got 'other'"):
        change_basis(MaxSeparationHead(4, 3), "other")
    with pytest.raises(TypeError, match="change_basis takes a model or a head, got int"):
        change_basis(3, H)
    with pytest.raises(ValueError, match="the model is wrapped in DataParallel"):
        change_basis(nn.DataParallel(MaxSeparationHead(4, 3)), H)
    with pytest.raises(TypeError, match=r"Sharpened has a forward\(\) of its own"):
        change_basis(Sharpened(4, 3), H)
    with pytest.raises(TypeError, match=r"the MaxSeparation at '1' has no layer of its own.*basis='householder'"):
        change_basis(nn.Sequential(nn.Linear(4, 2), MaxSeparation(3)), H)


def test_a_subclass_keeps_what_it_has():
    turned = maxsep.change_basis(Named(4, 3), H)
    assert type(turned) is Named
    assert turned.note == "kept"


class Extended(MaxSeparationHead):
    """A subclass with parameters that its logits do not need."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.adapter = nn.Linear(4, 4)


def test_only_weight_and_bias_are_turned():
    head, x = Extended(6, 5), torch.randn(3, 6)
    optimiser = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    (head(x).square().sum() + head.adapter(x[:, :4]).square().sum() * head.temperature).backward()
    optimiser.step()
    kept = optimiser.state[head.adapter.weight]["momentum_buffer"]
    turned = change_basis(head, H, optimiser=optimiser)
    torch.testing.assert_close(turned(x), head(x), atol=1e-6, rtol=1e-5)
    assert torch.equal(turned.adapter.weight, head.adapter.weight)
    assert turned.temperature.item() == head.temperature.item()
    assert optimiser.param_groups[0]["params"] == list(turned.parameters())
    assert torch.equal(optimiser.state[turned.adapter.weight]["momentum_buffer"], kept)


@pytest.mark.parametrize("options", SGD.values(), ids=SGD)
def test_gradients_that_wait_for_a_step_go_along(options):
    torch.manual_seed(0)
    head, x = MaxSeparationHead(4, 5).double(), torch.randn(8, 4).double()
    optimiser = torch.optim.SGD(head.parameters(), lr=0.1, **options)
    train(head, optimiser, 1)
    head(x).square().sum().backward()
    turned, its_optimiser = copy.deepcopy((head, optimiser))
    for name, parameter in head.named_parameters():  # a copy of a parameter has no gradient
        turned.get_parameter(name).grad = parameter.grad.clone()
    turned = change_basis(turned, H, optimiser=its_optimiser)
    optimiser.step()
    its_optimiser.step()
    torch.testing.assert_close(turned(x), head(x), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("computed", ["weight", "bias"])
def test_a_computed_weight_is_refused(computed):
    head = parametrizations.weight_norm(MaxSeparationHead(6, 5), computed)
    model = nn.Sequential(MaxSeparationHead(6, 5), head)
    with pytest.raises(ValueError, match=rf"computes its {computed} from other parameters.*remove_parametrizations"):
        change_basis(model, H)
    assert model[0].basis == R
    pruned = prune.random_unstructured(MaxSeparationHead(6, 5), computed, 0.5)
    with pytest.raises(ValueError, match=rf"computes its {computed} from other parameters.*prune.remove"):
        change_basis(pruned, H)


def test_what_something_else_needs_as_it_is_is_not_turned():
    embedding, head = nn.Embedding(4, 6), MaxSeparationHead(6, 5)
    head.weight = embedding.weight
    model = nn.ModuleDict({"words": embedding, "head": head})
    with pytest.raises(ValueError, match=r"head at 'head' shares a parameter with 'words\.weight', for which it would"):
        change_basis(model, H)
    assert model["head"] is head
    assert head.basis == R
    turned = MaxSeparationHead(6, 5, basis=H)
    turned.weight = head.weight
    with pytest.raises(ValueError, match=r"head at '0' shares a parameter with '1\.weight'"):
        change_basis(nn.Sequential(head, turned), H)
