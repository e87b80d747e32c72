import pytest
import torch
from torch import nn

import maxsep
from maxsep import MaxSeparationHead
from maxsep.heads import ScaledHead, build, names
from maxsep.surgery import replace_classifier


def mlp(**options) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, **options))


def test_in_place_and_the_old_number_of_classes_by_default():
    model = mlp()
    assert maxsep.attach(model, radius=0.1) is model
    assert repr(model[2]) == "MaxSeparationHead(in_features=6, num_classes=3, radius=0.1)"


def test_bare_layer_gives_the_head_and_is_left_alone():
    layer = nn.Linear(6, 3)
    before = layer.weight.clone()
    head = maxsep.attach(layer, 5)
    assert isinstance(head, MaxSeparationHead)
    assert head.num_classes == 5
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("keep_weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_device_dtype_bias_and_mode_are_kept(keep_weights, dtype):
    model = mlp(bias=False).to(dtype).eval()
    head = maxsep.attach(model, keep_weights=keep_weights)[2]
    assert head.weight.dtype == dtype
    assert head.bias is None
    assert not head.training
    assert maxsep.attach(mlp().to("meta"), keep_weights=keep_weights)[2].weight.is_meta


@pytest.mark.parametrize("keep_weights", [False, True])
def test_frozen_parameters_stay_frozen_one_by_one(keep_weights):
    model = mlp()
    model[2].weight.requires_grad_(False)
    head = maxsep.attach(model, keep_weights=keep_weights)[2]
    assert (head.weight.requires_grad, head.bias.requires_grad) == (False, True)
    model = mlp()
    model[2].bias.requires_grad_(False)
    head = maxsep.attach(model, keep_weights=keep_weights)[2]
    assert (head.weight.requires_grad, head.bias.requires_grad) == (True, False)


def test_keep_weights_keeps_every_probability():
    model, x = mlp(), torch.randn(50, 4)
    before = model(x).softmax(-1)
    maxsep.attach(model, radius=0.1, keep_weights=True)
    torch.testing.assert_close(model(x).softmax(-1), before)


def test_keep_weights_with_the_number_of_classes_spelt_out():
    assert maxsep.attach(mlp(), 3, keep_weights=True)[2].num_classes == 3


def test_keep_weights_with_another_number_of_classes():
    model = mlp()
    with pytest.raises(ValueError, match=r"keep_weights=True takes over a layer of 3 classes, got num_classes=5.*grow"):
        maxsep.attach(model, 5, keep_weights=True)
    assert isinstance(model[2], nn.Linear)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1,), ValueError, "num_classes must be at least 2, got 1"),
        ((2.0,), TypeError, "num_classes must be an int, got float"),
        ((True,), TypeError, "num_classes must be an int, got bool"),
        ((3, 0), ValueError, "radius must be positive and finite, got 0"),
        ((3, float("nan")), ValueError, "radius must be positive and finite, got nan"),
        ((3, "1"), TypeError, "radius must be a number, got str"),
    ],
)
def test_bad_numbers(arguments, error, message):
    model = mlp()
    with pytest.raises(error, match=message):
        maxsep.attach(model, *arguments)
    assert isinstance(model[2], nn.Linear)


@pytest.mark.parametrize("kind", [name for name in names() if name not in ("etf", "hpn")])
def test_controls_on_any_network(kind):
    model = mlp().double()
    replace_classifier(model, lambda old: build(kind, old.in_features, 5))
    assert model(torch.randn(2, 4, dtype=torch.float64)).shape == (2, 5)


def test_replaced_layer_is_built_from_the_old_one():
    model = mlp()
    old = model[2]
    seen = []
    head = ScaledHead(6, 3)
    replace_classifier(model, lambda layer: seen.append(layer) or head, classifier="2")
    assert seen == [old]
    assert model[2] is head
    assert replace_classifier(old, lambda layer: head) is head


def test_failing_build_changes_nothing():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.aux = nn.Linear(4, 3)
            self.head = nn.Linear(4, 3)

    model = Two()
    before = (model.aux, model.head)
    made = iter([nn.Linear(4, 3)])
    with pytest.raises(StopIteration):
        replace_classifier(model, lambda old: next(made))
    assert (model.aux, model.head) == before


def test_training_learns_through_the_swapped_head():
    torch.manual_seed(0)
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    x[torch.arange(60), y] += 3
    model = maxsep.attach(mlp())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    assert (model(x).argmax(-1) == y).float().mean() > 0.9
