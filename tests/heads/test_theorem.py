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


def sigmoid_per_class(logits, target):
    return F.binary_cross_entropy_with_logits(logits, F.one_hot(target, logits.shape[-1]).double())


def norm_clipping(optimiser, gradient):
    parameters = optimiser.param_groups[0]["params"]
    gradient()
    assert nn.utils.clip_grad_norm_(parameters, 0.01) > 0.01
    optimiser.step()


def value_clipping(optimiser, gradient):
    gradient()
    nn.utils.clip_grad_value_(optimiser.param_groups[0]["params"], 1e-4)
    optimiser.step()


def sharpness_aware(optimiser, gradient):
    """SAM (Foret et al. 2021): the gradient at the worst point of a small ball."""
    gradient()
    parameters = optimiser.param_groups[0]["params"]
    factor = 0.05 / nn.utils.get_total_norm([p.grad for p in parameters])
    moves = [p.grad * factor for p in parameters]
    with torch.no_grad():
        torch._foreach_add_(parameters, moves)
    gradient()
    with torch.no_grad():
        torch._foreach_sub_(parameters, moves)
    optimiser.step()


def decoupled_decay(optimiser, gradient):
    gradient()
    group = optimiser.param_groups[0]
    with torch.no_grad():
        for parameter in group["params"]:
            parameter.mul_(1 - group["lr"] * 0.02)
    optimiser.step()


def layerwise_rates(optimiser, gradient):
    """LARS (You et al. 2017): a step in proportion to the norm of each parameter."""
    gradient()
    with torch.no_grad():
        for parameter in optimiser.param_groups[0]["params"]:
            parameter.grad *= parameter.norm() / (parameter.grad.norm() + 0.01 * parameter.norm())
    optimiser.step()


def orthogonalised(optimiser, gradient):
    """Step along the polar factor of the momentum: Muon (Jordan 2024), exact and without scaling by shape."""
    gradient()
    with torch.no_grad():
        for parameter in optimiser.param_groups[0]["params"]:
            buffer = optimiser.state[parameter].setdefault("mean", torch.zeros_like(parameter))
            buffer.mul_(0.9).add_(parameter.grad)
            if parameter.dim() == 2:
                u, values, v = torch.linalg.svd(buffer, full_matrices=False)
                kept = values > 1e-9 * values[0]
                parameter.grad = u[:, kept] @ v[kept]
    optimiser.step()


def plain_step(optimiser, gradient):
    gradient()
    optimiser.step()


def path(head, *, loss=F.cross_entropy, optimiser=torch.optim.SGD, steps=400, options=SGD, step=plain_step):
    """Train a network and the head in float64; return all losses, the network and the logits as one vector."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, WIDTH), nn.ReLU()).double()
    x, target = torch.randn(64, 8, dtype=torch.float64), torch.randint(head.num_classes, (64,))
    update = optimiser([*network.parameters(), *head.parameters()], **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(update, steps)
    values = []

    def gradient():
        update.zero_grad()
        value = loss(head(network(x)), target)
        value.backward()
        values.append(value.detach()[None])

    for _ in range(steps):
        step(update, gradient)
        schedule.step()
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


@pytest.mark.parametrize("radius", [0.1, 3.0])
@pytest.mark.parametrize("bias", [True, False])
def test_control_and_matrix_start_from_the_same_layer(bias, radius):
    torch.manual_seed(1)
    linear, x = nn.Linear(WIDTH, 10, bias, dtype=torch.float64), torch.randn(5, WIDTH, dtype=torch.float64)
    linear.weight.requires_grad_(False)
    both = [kind.from_linear(linear.eval(), radius) for kind in (heads.ControlHead, MaxSeparationHead)]
    for head in both:
        torch.testing.assert_close(head(x).softmax(-1), linear(x).softmax(-1), atol=1e-14, rtol=0)
        trained = {name for name, parameter in head.named_parameters() if parameter.requires_grad}
        assert (trained, head.training) == ({"bias"} if bias else set(), False)
    torch.testing.assert_close(both[0](x), both[1](x), atol=1e-14, rtol=0)
    with pytest.raises(TypeError, match="linear"):
        heads.ControlHead.from_linear(both[1])


@pytest.mark.parametrize("step", [norm_clipping, sharpness_aware, decoupled_decay, layerwise_rates, orthogonalised])
@pytest.mark.parametrize("num_classes", [10, 40])
def test_so_it_does_under_all_that_commutes_with_rotations(num_classes, step):
    options = SGD | ({"weight_decay": 0.0} if step is decoupled_decay else {})
    steps = 30 if step is orthogonalised else 400  # polar factors amplify rounding
    distance = apart(*control_and_matrix(num_classes, 0.3), step=step, options=options, steps=steps)
    assert distance <= 1e-12


def test_what_works_by_coordinate_or_by_row_or_sees_a_shift_does_not():
    control, matrix = control_and_matrix(10, 1.0)
    scaled = heads.ScaledHead(WIDTH, 10, dtype=torch.float64)
    scaled.load_state_dict(control.folded().state_dict() | {"_extra_state": scaled.get_extra_state()})
    assert apart(scaled, matrix, steps=100) > 1e-3
    assert apart(*control_and_matrix(10, 0.1), optimiser=torch.optim.Adam, options={"lr": 0.01}, steps=50) > 1e-3
    assert apart(*control_and_matrix(10, 0.3), step=value_clipping, steps=100) > 1e-3
    assert apart(*control_and_matrix(10, 0.3), loss=sigmoid_per_class, steps=100) > 1e-3
    cosine, cosine_matrix = (heads.build(name, WIDTH, 10, dtype=torch.float64) for name in ("cosine", "cosine_maxsep"))
    with torch.no_grad():  # the head of LDAM normalises its rows
        cosine.weight.copy_(0.9**0.5 * simplex(10, dtype=torch.float64).T @ cosine_matrix.weight)
    assert apart(cosine, cosine_matrix, steps=100) > 1e-3


@pytest.mark.parametrize("radius", [0.1, 1.0])
def test_the_map_is_an_isometry_and_its_mean_gets_no_gradient(radius):
    """V = sqrt((C-1)/C) P^T W keeps scalar products, has zero mean, and cross-entropy gives the mean no gradient."""
    matrix = simplex(10, dtype=torch.float64)
    one, other = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    v, w = (0.9**0.5 * matrix.T @ rows for rows in (one, other))
    torch.testing.assert_close((v * w).sum(), (one * other).sum(), atol=1e-12, rtol=0)
    assert v.mean(0).abs().max() < 1e-14
    plain = nn.Linear(WIDTH, 10, dtype=torch.float64)
    update = torch.optim.SGD(plain.parameters(), lr=0.1, weight_decay=0.1)
    mean = plain.weight.detach().mean(0)
    for _ in range(5):
        update.zero_grad()
        F.cross_entropy(plain(torch.randn(8, WIDTH, dtype=torch.float64)), torch.randint(10, (8,))).backward()
        update.step()
    torch.testing.assert_close(plain.weight.mean(0), mean * 0.99**5, atol=1e-15, rtol=0)


def test_the_control_starts_with_the_covariance_of_the_matrix():
    classes, radius, width = 6, 0.5, 40_000
    torch.manual_seed(0)
    for name in ("control", "maxsep"):
        weight, _ = heads.build(name, width, classes, radius, dtype=torch.float64).linear_form()
        expected = radius**2 * classes / (classes - 1) * (torch.eye(classes) - 1 / classes) / 3
        torch.testing.assert_close((weight @ weight.T).float(), expected, atol=0.002, rtol=0)


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_order_and_rotation_matter_under_adam_alone(optimiser):
    torch.manual_seed(1)
    linear = nn.Linear(WIDTH, 10, dtype=torch.float64)
    one, other = (MaxSeparationHead.from_linear(linear, 0.5, class_order=order) for order in (None, torch.randperm(10)))
    rotated = heads.build("maxsep_rotated", WIDTH, 10, 0.5, dtype=torch.float64, rotation=3)
    with torch.no_grad():
        for name, parameter in rotated.named_parameters():
            parameter.copy_(rotated.matrix.T @ one.get_parameter(name))
    options = SGD if optimiser is torch.optim.SGD else {"lr": 0.01}
    expected, *paths = (path(h, optimiser=optimiser, options=options, steps=100) for h in (one, other, rotated))
    for distance in ((actual - expected).abs().max() for actual in paths):
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
