import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import maxsep
from maxsep import MaxSeparationHead
from maxsep.heads import ETFHead, ScaledHead
from maxsep.heads.base import linear_from

CLASSES, MORE, SEED = st.integers(2, 100), st.integers(1, 30), st.integers(0, 2**31)


@given(CLASSES, MORE, st.floats(1e-2, 1e2), SEED)
def test_old_logits_stay_and_new_ones_are_zero(num_classes, more, radius, seed):
    torch.manual_seed(seed)
    head, x = MaxSeparationHead(6, num_classes, radius).double(), torch.randn(20, 6).double()
    grown = maxsep.grow(head, more)
    assert type(grown) is MaxSeparationHead
    assert (grown.num_classes, grown.radius) == (num_classes + more, radius)
    before, after = head(x), grown(x)
    scale = before.abs().max().item()
    torch.testing.assert_close(after[:, :num_classes], before, rtol=0, atol=1e-12 * scale)
    torch.testing.assert_close(
        after[:, num_classes:], torch.zeros_like(after[:, num_classes:]), rtol=0, atol=1e-12 * scale
    )
    assert torch.equal(after[:, :num_classes].argmax(-1), before.argmax(-1))


@given(CLASSES, MORE, SEED)
def test_it_is_fold_then_zero_rows_then_from_linear(num_classes, more, seed):
    torch.manual_seed(seed)
    head = MaxSeparationHead(6, num_classes, 0.3).double()
    plain = maxsep.fold(head)
    wider = linear_from(nn.functional.pad(plain.weight, (0, 0, 0, more)), nn.functional.pad(plain.bias, (0, more)))
    expected, grown = MaxSeparationHead.from_linear(wider, 0.3), maxsep.grow(head, more)
    torch.testing.assert_close(grown.weight, expected.weight, rtol=0, atol=1e-12)
    torch.testing.assert_close(grown.bias, expected.bias, rtol=0, atol=1e-12)


def test_single_precision_and_half_precision():
    torch.manual_seed(0)
    head, x = MaxSeparationHead(16, 1000), torch.randn(8, 16)
    difference = maxsep.grow(head, 50)(x)[:, :1000] - head(x)
    assert difference.abs().max() <= 1e-5 * head(x).abs().max()
    grown = maxsep.grow(MaxSeparationHead(16, 10, bias=False, dtype=torch.bfloat16).eval(), 3)
    assert grown.weight.dtype == torch.bfloat16
    assert grown.bias is None
    assert not grown.training


def test_second_growth_composes_with_the_first():
    torch.manual_seed(0)
    head = MaxSeparationHead(6, 4).double()
    twice, once = maxsep.grow(maxsep.grow(head, 2), 3), maxsep.grow(head, 5)
    torch.testing.assert_close(twice.weight, once.weight)
    torch.testing.assert_close(twice.bias, once.bias)


def test_model_is_changed_in_place_and_a_bare_head_is_not():
    head = MaxSeparationHead(6, 3)
    head.weight.requires_grad_(False)
    model = nn.Sequential(nn.Linear(4, 6), head)
    model.num_classes = 3
    assert maxsep.grow(model, 2) is model
    assert model.num_classes == model[1].num_classes == 5
    assert (model[1].weight.requires_grad, model[1].bias.requires_grad) == (False, True)
    assert head.num_classes == 3


def test_head_at_two_places_stays_one():
    head = MaxSeparationHead(4, 3)
    model = maxsep.grow(nn.ModuleList([head, head]), 2)
    assert model[0] is model[1]
    assert model[0].num_classes == 5


def test_random_state_is_left_alone():
    head = MaxSeparationHead(4, 3)
    before = torch.get_rng_state()
    maxsep.grow(head, 2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("normalise", [False, True])
def test_etf_grows_into_its_reserved_vertices(normalise):
    torch.manual_seed(0)
    head = ETFHead(12, 4, 2.0, normalise=normalise, reserved=3, bias=True).eval()
    with torch.no_grad():
        head.bias.normal_()
    x = torch.randn(10, 12)
    grown = maxsep.grow(head, 2)
    assert (grown.num_classes, grown.reserved, grown.width) == (6, 1, head.width)
    torch.testing.assert_close(grown(x)[:, :4], head(x))
    assert grown(x)[:, 4:].abs().min() > 0
    assert not grown.training


def test_etf_without_enough_reserved_vertices():
    with pytest.raises(ValueError, match="this ETFHead has 1 reserved vertices, got new_classes=2"):
        maxsep.grow(ETFHead(12, 4, reserved=1), 2)


def test_training_after_growth_learns_the_new_class():
    torch.manual_seed(0)
    y = torch.arange(80) % 4
    x = nn.functional.one_hot(y, 6).float() * 3 + 0.5 * torch.randn(80, 6)
    old = y < 3
    head = MaxSeparationHead(6, 3)
    optimiser = torch.optim.SGD(head.parameters(), lr=0.3, momentum=0.9)
    train(head, optimiser, x[old], y[old])
    head = maxsep.grow(head, 1, optimiser=optimiser)
    assert (head(x[old])[:, :3].argmax(-1) == y[old]).float().mean() > 0.95
    train(head, optimiser, x, y)
    assert (head(x).argmax(-1) == y).float().mean() > 0.95


def train(head: nn.Module, optimiser: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    for _ in range(50):
        optimiser.zero_grad()
        nn.functional.cross_entropy(head(x), y).backward()
        optimiser.step()


@pytest.mark.parametrize(
    ("new_classes", "error", "message"),
    [
        (0, ValueError, "new_classes must be at least 1, got 0"),
        (-1, ValueError, "new_classes must be at least 1, got -1"),
        (2.0, TypeError, "new_classes must be an int, got float"),
        (True, TypeError, "new_classes must be an int, got bool"),
    ],
)
def test_bad_counts(new_classes, error, message):
    with pytest.raises(error, match=message):
        maxsep.grow(MaxSeparationHead(4, 3), new_classes)


def test_models_that_cannot_grow():
    with pytest.raises(ValueError, match=r"Linear has no head of maxsep to grow.*keep_weights=True"):
        maxsep.grow(nn.Linear(4, 3), 1)
    with pytest.raises(TypeError, match=r"grow knows MaxSeparationHead.*got ScaledHead at '0'.*from_linear"):
        maxsep.grow(nn.Sequential(ScaledHead(4, 3)), 1)
    with pytest.raises(TypeError, match="grow takes a model or a head, got int"):
        maxsep.grow(3, 1)
    with pytest.raises(ValueError, match="the model is wrapped in DataParallel"):
        maxsep.grow(nn.DataParallel(MaxSeparationHead(4, 3)), 1)


def test_heads_of_different_tasks():
    model = nn.ModuleDict({"a": MaxSeparationHead(4, 3), "b": MaxSeparationHead(4, 2)})
    with pytest.raises(ValueError, match=r"different numbers of classes \('a': 3 classes, 'b': 2 classes\)"):
        maxsep.grow(model, 1)
