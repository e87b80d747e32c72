import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.optim import Lookahead
from torch import nn
from torch.nn.utils import parametrizations

import maxsep
from maxsep import MaxSeparationHead, fold, grow
from maxsep.heads import ETFHead, ScaledHead

CLASSES, MORE, SEED = st.integers(2, 100), st.integers(1, 30), st.integers(0, 2**31)
OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


@given(CLASSES, MORE, st.floats(1e-2, 1e2), SEED)
def test_old_logits_stay_and_new_ones_are_zero(num_classes, more, radius, seed):
    torch.manual_seed(seed)
    head, x = MaxSeparationHead(6, num_classes, radius).double(), torch.randn(20, 6).double()
    grown = grow(head, more)
    assert type(grown) is MaxSeparationHead
    assert (grown.num_classes, grown.radius) == (num_classes + more, radius)
    expected = nn.functional.pad(head(x), (0, more))
    torch.testing.assert_close(grown(x), expected, rtol=0, atol=1e-12 * expected.abs().max().item())
    assert torch.equal(grown(x)[:, :num_classes].argmax(-1), head(x).argmax(-1))


def test_new_classes_are_appended_to_the_class_order():
    head, x = MaxSeparationHead(6, 4, class_order=[3, 1, 0, 2]).double(), torch.randn(5, 6).double()
    model = grow(nn.Sequential(head), 2)
    assert model[0].class_order.tolist() == [3, 1, 0, 2, 4, 5]
    torch.testing.assert_close(model(x), nn.functional.pad(head(x), (0, 2)), rtol=0, atol=1e-12)
    torch.testing.assert_close(fold(model)(x), model(x), rtol=0, atol=1e-12)


def test_single_and_half_precision():
    torch.manual_seed(0)
    head, x = MaxSeparationHead(16, 1000), torch.randn(8, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        grown = grow(head, 50)
    assert (grown(x)[:, :1000] - head(x)).abs().max() <= 1e-5 * head(x).abs().max()
    grown = grow(MaxSeparationHead(16, 10, bias=False, dtype=torch.bfloat16).eval(), 3)
    assert grown.weight.dtype == torch.bfloat16
    assert grown.bias is None
    assert not grown.training


def test_many_classes_in_linear_memory():
    assert grow(MaxSeparationHead(1, 1_000_000), 5).weight.shape == (1_000_004, 1)


def test_model_is_changed_in_place_and_a_bare_head_is_not():
    head = MaxSeparationHead(6, 3)
    head.weight.requires_grad_(False)
    model = nn.Sequential(nn.Linear(4, 6), head)
    model.num_classes = 3
    before = torch.get_rng_state()
    assert grow(model, 2) is model
    assert torch.equal(torch.get_rng_state(), before)
    assert model.num_classes == model[1].num_classes == 5
    assert (model[1].weight.requires_grad, model[1].bias.requires_grad) == (False, True)
    assert head.num_classes == 3


@pytest.mark.parametrize("normalise", [False, True])
def test_etf_grows_into_its_reserved_vertices(normalise):
    torch.manual_seed(0)
    head = ETFHead(12, 4, 2.0, normalise=normalise, reserved=3, bias=True).eval()
    with torch.no_grad():
        head.bias.normal_()
    x = torch.randn(10, 12)
    grown = grow(head, 2)
    assert (grown.num_classes, grown.reserved, grown.width) == (6, 1, head.width)
    torch.testing.assert_close(grown(x)[:, :4], head(x))
    assert grown(x)[:, 4:].abs().min() > 0
    assert not grown.training
    with pytest.raises(ValueError, match="new_classes"):
        grow(head, 4)


def descend(optimiser: torch.optim.Optimizer, loss) -> float:
    def closure():
        optimiser.zero_grad()
        value = loss()
        value.backward()
        return value

    return optimiser.step(closure).item()


def trained(kind: str, steps: int = 10) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), MaxSeparationHead(6, 5, 0.7)).double()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.05}]
    optimiser = OPTIMISERS[kind](groups)
    train(model, optimiser, steps)
    return model, optimiser


def train(model: nn.Module, optimiser: torch.optim.Optimizer, steps: int) -> float:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x, y = torch.randn(8, 4, generator=generator).double(), torch.randint(5, (8,), generator=generator)
        loss = descend(optimiser, lambda x=x, y=y: nn.functional.cross_entropy(model(x), y))
    return loss


@pytest.mark.parametrize("kind", ["sgd", "nesterov"])
def test_momentum_moves_the_old_classes_as_before(kind):
    """With gradients of zero only momentum and weight decay act: the composed rows take the same steps."""
    model, optimiser = trained(kind)
    other, other_optimiser = copy.deepcopy((model, optimiser))
    grow(other, 3, optimiser=other_optimiser)
    for net, opt in ((model, optimiser), (other, other_optimiser)):
        for _ in range(5):
            for parameter in net.parameters():
                parameter.grad = torch.zeros_like(parameter)
            opt.step()
    for actual, expected in zip(fold(other[2]).parameters(), fold(model[2]).parameters(), strict=True):
        torch.testing.assert_close(actual[:5], expected, rtol=0, atol=1e-12)
        assert actual[5:].abs().max() < 1e-12
    assert torch.equal(other[0].weight, model[0].weight)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_adam_keeps_its_step_and_second_moments_and_new_rows_start_at_their_mean(kind):
    model, optimiser = trained(kind)
    old = {key: value.clone() for key, value in optimiser.state[model[2].weight].items()}
    grow(model, 3, optimiser=optimiser)
    state = optimiser.state[model[2].weight]
    assert state["step"] == old["step"] == 10
    assert state["exp_avg"].shape == (7, 6)
    for key in {"exp_avg_sq", "max_exp_avg_sq"} & old.keys():
        assert torch.equal(state[key][:4], old[key])
        torch.testing.assert_close(state[key][4:], old[key].mean(0).expand(3, 6))


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_training_continues_after_growth(kind):
    model, optimiser = trained(kind)
    head, count = model[2], len(optimiser.state)
    grow(model, 3, optimiser=optimiser)
    assert optimiser.param_groups[1]["params"] == [model[2].weight, model[2].bias]
    assert optimiser.param_groups[1]["lr"] == 0.05
    assert len(optimiser.state) == count
    assert head.weight not in optimiser.state
    first = train(model, optimiser, 1)
    assert train(model, optimiser, 60) < first
    optimiser.load_state_dict(copy.deepcopy(optimiser.state_dict()))  # as from a checkpoint
    train(model, optimiser, 2)


@pytest.mark.parametrize("kind", [torch.optim.RMSprop, torch.optim.LBFGS, lambda p: Lookahead(torch.optim.AdamW(p))])
def test_other_optimisers_with_state_are_refused_before_anything_changes(kind):
    model, x = nn.Sequential(nn.Linear(4, 6), MaxSeparationHead(6, 5)), torch.randn(3, 4)
    head, optimiser = model[1], kind(model.parameters())
    descend(optimiser, lambda: model(x).square().sum())
    with pytest.raises(TypeError, match=type(optimiser).__name__):
        grow(model, 1, optimiser=optimiser)
    assert model[1] is head
    assert optimiser.param_groups[0]["params"][2] is head.weight


def test_shared_heads_and_weights_stay_shared():
    heads, x = nn.ModuleList(MaxSeparationHead(6, 5) for _ in range(2)), torch.randn(3, 6)
    heads[1].weight = heads[0].weight
    heads.append(heads[0])
    optimiser = torch.optim.SGD(heads.parameters(), lr=0.1, momentum=0.9)
    descend(optimiser, lambda: sum(head(x).square().sum() for head in heads))
    before = [head(x) for head in heads]
    grow(heads, 2, optimiser=optimiser)
    assert heads[0] is heads[2]
    assert heads[0].weight is heads[1].weight
    assert heads[0].bias is not heads[1].bias
    assert optimiser.param_groups[0]["params"] == list(heads.parameters())
    assert set(optimiser.state) == set(heads.parameters())
    for head, logits in zip(heads, before, strict=True):
        torch.testing.assert_close(head(x)[:, :5], logits, atol=1e-6, rtol=1e-5)


def test_head_grown_in_inference_mode_can_be_trained():
    model, x = nn.Sequential(MaxSeparationHead(4, 5)), torch.randn(3, 4)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    descend(optimiser, lambda: model(x).square().sum())
    with torch.inference_mode():
        grow(model, 2, optimiser=optimiser)
    before = model[0].weight.clone()
    descend(optimiser, lambda: model(x).square().sum())
    assert not torch.equal(model[0].weight, before)


def tied() -> nn.Module:
    model = nn.ModuleDict({"words": nn.Embedding(4, 6), "head": MaxSeparationHead(6, 5)})
    model["head"].weight = model["words"].weight
    return model


HEAD = MaxSeparationHead(4, 3)
OTHER = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("model", "new_classes", "optimiser", "error", "message"),
    [
        (HEAD, 0, None, ValueError, "new_classes"),
        (nn.Linear(4, 3), 1, None, ValueError, "Linear has no head"),
        (nn.Sequential(ScaledHead(4, 3)), 1, None, TypeError, "ScaledHead at '0'"),
        (nn.DataParallel(HEAD), 1, None, ValueError, "DataParallel"),
        (nn.ModuleList([HEAD, MaxSeparationHead(4, 2)]), 1, None, ValueError, "'0': 3, '1': 2"),
        (parametrizations.weight_norm(MaxSeparationHead(6, 5)), 1, None, ValueError, "weight"),
        (tied(), 1, None, ValueError, r"words\.weight"),
        (HEAD, 1, OTHER, ValueError, "optimiser"),
    ],
)
def test_refused(model, new_classes, optimiser, error, message):
    with pytest.raises(error, match=message):
        maxsep.grow(model, new_classes, optimiser=optimiser)
