"""Under SGD the matrix after a trained layer trains as a plain layer does, in any order and any rotation of P."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead, heads, simplex

WIDTH, SGD = 16, {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}


def energy_penalised(logits, target):
    centred = logits - logits.mean(-1, keepdim=True)
    return F.cross_entropy(logits, target) + 0.01 * centred.square().mean()


def path(head, *, loss=F.cross_entropy, optimiser=torch.optim.SGD, steps=200, options=SGD):
    """Train a network and the head in float64; return all losses, the network and the logits as one vector."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, WIDTH), nn.ReLU()).double()
    x, target = torch.randn(64, 8, dtype=torch.float64), torch.randint(head.num_classes, (64,))
    update = optimiser([*network.parameters(), *head.parameters()], **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(update, steps)
    values = []
    for _ in range(steps):
        update.zero_grad()
        value = loss(head(network(x)), target)
        value.backward()
        update.step()
        schedule.step()
        values.append(value.detach()[None])
    logits = head(network(x))
    values.append((logits - logits.mean(-1, keepdim=True)).detach().flatten())
    return torch.cat([*values, *(p.detach().flatten() for p in network.parameters())])


def apart(one, other, **setting):
    return (path(one, **setting) - path(other, **setting)).abs().max().item()


def control_and_matrix(num_classes, radius):
    torch.manual_seed(1)
    control = heads.ControlHead(WIDTH, num_classes, radius, dtype=torch.float64)
    return control, MaxSeparationHead.from_linear(control.folded(), radius)


@pytest.mark.parametrize("num_classes", [2, 10, 40])
@pytest.mark.parametrize("radius", [1.0, 0.1])
@pytest.mark.parametrize("loss", [F.cross_entropy, energy_penalised])
def test_the_control_takes_the_path_of_the_matrix(num_classes, radius, loss):
    options = SGD | {"nesterov": True}
    assert apart(*control_and_matrix(num_classes, radius), loss=loss, options=options) <= 1e-12


@pytest.mark.parametrize("bias", [True, False])
def test_control_and_matrix_start_from_the_same_layer(bias):
    torch.manual_seed(1)
    linear, x = nn.Linear(WIDTH, 10, bias, dtype=torch.float64), torch.randn(5, WIDTH, dtype=torch.float64)
    linear.weight.requires_grad_(False)
    both = [kind.from_linear(linear.eval(), 0.3) for kind in (heads.ControlHead, MaxSeparationHead)]
    for head in both:
        torch.testing.assert_close(head(x).softmax(-1), linear(x).softmax(-1), atol=1e-14, rtol=0)
        trained = {name for name, parameter in head.named_parameters() if parameter.requires_grad}
        assert (trained, head.training) == ({"bias"} if bias else set(), False)
    torch.testing.assert_close(both[0](x), both[1](x), atol=1e-14, rtol=0)
    with pytest.raises(TypeError, match="linear"):
        heads.ControlHead.from_linear(both[1])


def test_neither_scaled_nor_adam_does():
    control, matrix = control_and_matrix(10, 1.0)
    scaled = heads.ScaledHead(WIDTH, 10, dtype=torch.float64)
    scaled.load_state_dict(control.folded().state_dict() | {"_extra_state": scaled.get_extra_state()})
    assert apart(scaled, matrix) > 1e-3
    assert apart(*control_and_matrix(10, 0.1), optimiser=torch.optim.Adam, options={"lr": 0.01}, steps=50) > 1e-3


def test_the_control_starts_with_the_covariance_of_the_matrix():
    classes, radius, width = 6, 0.5, 40_000
    torch.manual_seed(0)
    for name in ("control", "maxsep"):
        weight, _ = heads.build(name, width, classes, radius, dtype=torch.float64).linear_form()
        expected = radius**2 * classes / (classes - 1) * (torch.eye(classes) - 1 / classes) / 3
        torch.testing.assert_close((weight @ weight.T).float(), expected, atol=0.002, rtol=0)


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_the_order_of_classes_matters_under_adam_alone(optimiser):
    torch.manual_seed(1)
    linear = nn.Linear(WIDTH, 10, dtype=torch.float64)
    one, other = (MaxSeparationHead.from_linear(linear, 0.5, class_order=order) for order in (None, torch.randperm(10)))
    options = SGD if optimiser is torch.optim.SGD else {"lr": 0.01}
    distance = apart(one, other, optimiser=optimiser, options=options, steps=100)
    assert distance <= 1e-12 if optimiser is torch.optim.SGD else distance > 1e-3


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_a_rotation_matters_under_adam_alone(optimiser):
    torch.manual_seed(1)
    plain = MaxSeparationHead(WIDTH, 10, 0.5, dtype=torch.float64)
    rotated = heads.build("maxsep_rotated", WIDTH, 10, 0.5, dtype=torch.float64, rotation=3)
    with torch.no_grad():
        for name, parameter in rotated.named_parameters():
            parameter.copy_(rotated.matrix.T @ plain.get_parameter(name))
    options = SGD if optimiser is torch.optim.SGD else {"lr": 0.01}
    distance = apart(plain, rotated, optimiser=optimiser, options=options, steps=100)
    assert distance <= 1e-12 if optimiser is torch.optim.SGD else distance > 1e-3


def test_true_cosines_take_the_path_of_the_centred_control():
    """From the same start, with steps of the control C/(C-1) times as long."""
    torch.manual_seed(1)
    classes, matrix = 5, simplex(5, dtype=torch.float64)
    true, control = (
        heads.build(name, WIDTH, classes, 8.0, dtype=torch.float64) for name in ("maxsep_cosine", "centred_cosine")
    )
    with torch.no_grad():
        for name, parameter in control.named_parameters():
            parameter.copy_(matrix.T @ true.get_parameter(name))
            parameter.register_hook(lambda gradient: gradient * classes / (classes - 1))
    assert apart(true, control, steps=50) <= 1e-9
