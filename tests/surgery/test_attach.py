from types import SimpleNamespace

import pytest
import torch
from small_models import mlp
from torch import nn

import maxsep
from maxsep import MaxSeparationHead
from maxsep.surgery import replace_classifier


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
@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_frozen_parameters_stay_frozen_with_their_weights_alone(keep_weights, frozen):
    model = mlp()
    model[2].get_parameter(frozen).requires_grad_(False)
    head = maxsep.attach(model, keep_weights=keep_weights)[2]
    assert [name for name, p in head.named_parameters() if not p.requires_grad] == [frozen] * keep_weights


@pytest.mark.parametrize("keep_weights", [True, False])
def test_class_order_is_passed_on(keep_weights):
    model, x = mlp(), torch.randn(5, 4)
    before = model(x).softmax(-1)
    head = maxsep.attach(model, class_order=[2, 0, 1], keep_weights=keep_weights)[2]
    assert head.class_order.tolist() == [2, 0, 1]
    assert torch.allclose(model(x).softmax(-1), before, atol=1e-6) == keep_weights
    torch.testing.assert_close(maxsep.fold(model)(x), model(x))
    plain = MaxSeparationHead(6, 3)
    plain.load_state_dict({name: value for name, value in head.state_dict().items() if name != "class_order"})
    features = torch.randn(5, 6)
    torch.testing.assert_close(head(features)[:, [2, 0, 1]], plain(features))  # column i holds class_order[i]


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"num_classes": 1}, ValueError, "num_classes"),
        ({"num_classes": 5, "keep_weights": True}, ValueError, "num_classes"),
        ({"radius": 0}, ValueError, "radius"),
        ({"class_order": [0, 0, 1]}, ValueError, "class_order"),
    ],
)
def test_bad_options_change_nothing(options, error, name):
    model = mlp()
    with pytest.raises(error, match=name):
        maxsep.attach(model, **options)
    assert isinstance(model[2], nn.Linear)


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


def nested(**attributes) -> nn.Module:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 3)))
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def test_plain_weights_are_loaded_before():
    trained, model = mlp(), mlp()
    with pytest.raises(ValueError, match=r"'2\.weight'.*keep_weights"):
        maxsep.attach(mlp()).load_state_dict(trained.state_dict())
    model.load_state_dict(trained.state_dict())
    x = torch.randn(5, 4)
    torch.testing.assert_close(maxsep.attach(model, keep_weights=True)(x).softmax(-1), trained(x).softmax(-1))


def test_weights_are_kept_before_a_softmax_alone():
    for kind in (nn.Softmax(-1), nn.LogSoftmax(1), nn.Softmin(-1), nn.Identity()):
        model, x = nn.Sequential(mlp(), kind), torch.randn(5, 4)
        expected = model(x)
        torch.testing.assert_close(maxsep.attach(model, keep_weights=True)(x).softmax(-1), expected.softmax(-1))
    for kind in (nn.ReLU(), nn.GELU(), nn.Tanh(), nn.Softplus(), nn.LogSigmoid(), nn.Softmax(0)):
        with pytest.raises(ValueError, match="keep_weights"):  # it sees the mean logit, which P drops
            maxsep.attach(nn.Sequential(mlp(), kind), keep_weights=True)
        assert maxsep.attach(nn.Sequential(mlp(), kind), 5)(x).shape == (5, 5)


def test_numbers_of_classes_above_the_head_are_updated_if_they_agreed():
    model = nested(num_classes=3, num_labels=4)
    model[0].num_classes = 3
    maxsep.attach(model, 5)
    assert (model.num_classes, model.num_labels, model[0].num_classes) == (5, 4, 5)


def test_configuration_of_another_size_is_left_alone():
    config = SimpleNamespace(id2label={0: "a", 1: "b"}, num_labels=2)
    maxsep.attach(nested(config=config), 5)
    assert config.id2label == {0: "a", 1: "b"}
