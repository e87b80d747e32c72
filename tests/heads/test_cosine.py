"""The heads that compare directions: formulas, sizes, and the theorem that names the control."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxsep import heads, simplex
from maxsep.lab import networks

NAMES = ("cosine", "cosine_maxsep", "maxsep_cosine", "centred_cosine")


@pytest.fixture
def x():
    return torch.randn(7, 12, generator=torch.Generator().manual_seed(3))


def cosines(x, rows):
    return F.cosine_similarity(x[:, None], rows[None], dim=-1)


def test_formulas(x):
    plain = heads.build("cosine", 12, 5, radius=2.0)
    torch.testing.assert_close(plain(x), 2 * cosines(x, plain.weight))
    behind = heads.build("cosine_maxsep", 12, 5, radius=2.0)
    torch.testing.assert_close(behind(x), 2 * cosines(x, behind.weight) @ simplex(5))
    true = heads.build("maxsep_cosine", 12, 5, radius=2.0)
    torch.testing.assert_close(true(x), 2 * cosines(x @ true.weight.T + true.bias, simplex(5).T))
    control = heads.build("centred_cosine", 12, 5, radius=2.0)
    plain = x @ control.weight.T + control.bias
    corners = torch.eye(5) - 1 / 5
    torch.testing.assert_close(control(x), 2 * cosines(plain - plain.mean(1, keepdim=True), corners))


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_features_times_class_vectors(name, x):
    head = heads.build(name, 12, 5, radius=0.5)
    torch.testing.assert_close(0.5 * head.features(x) @ head.class_vectors().T, head(x))
    torch.testing.assert_close(head.class_vectors().norm(dim=1), torch.ones(5))


@pytest.mark.parametrize("name", ["cosine", "cosine_maxsep"])
def test_rows_start_at_length_one_from_a_uniform_cube(name):
    torch.manual_seed(0)
    weight = heads.build(name, 12, 5).weight
    torch.manual_seed(0)
    drawn = torch.empty_like(weight).uniform_(-1, 1)
    torch.testing.assert_close(weight, drawn / drawn.norm(dim=1, keepdim=True))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("cosine", 469_904), ("cosine_maxsep", 469_840), ("maxsep_cosine", 469_939), ("centred_cosine", 470_004)],
)
def test_parameters_of_the_true_resnet32(name, expected):
    network = networks.build("resnet32", 100)
    network.head = heads.build(name, 64, 100)
    assert sum(p.numel() for p in network.parameters()) == expected


@pytest.mark.parametrize("name", NAMES)
def test_no_linear_form_but_a_folded_one_at_any_length(name, x):
    head = heads.build(name, 12, 5, radius=0.7)
    with pytest.raises(ValueError, match=r"cosines have no linear form. Use folded\(\)"):
        head.linear_form()
    scales = (1.0, 1e4) if head.bias is not None else (1e-3, 1.0, 1e4)
    for scale in scales:
        torch.testing.assert_close(head.folded()(x * scale), head(x * scale), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_features_of_length_zero_give_numbers(name):
    head = heads.build(name, 12, 5)
    zero = torch.zeros(2, 12, requires_grad=True)
    head(zero).square().sum().backward()
    assert bool(head(zero).isfinite().all())
    assert bool(zero.grad.isfinite().all())


def test_true_cosines_walk_the_path_of_the_centred_control():
    """Under SGD with momentum and weight decay, from the same start and with steps C/(C-1) times as long."""
    torch.manual_seed(0)
    classes, rate = 5, 0.3
    true = heads.build("maxsep_cosine", 12, classes, dtype=torch.float64)
    control = heads.build("centred_cosine", 12, classes, dtype=torch.float64)
    matrix = simplex(classes, dtype=torch.float64)
    with torch.no_grad():
        control.weight.copy_(matrix.T @ true.weight)
        control.bias.copy_(matrix.T @ true.bias)
    for parameter in control.parameters():
        parameter.register_hook(lambda gradient: gradient * classes / (classes - 1))
    body = [nn.Linear(12, 12, dtype=torch.float64) for _ in range(2)]
    body[1].load_state_dict(body[0].state_dict())
    models = [nn.Sequential(body[0], true), nn.Sequential(body[1], control)]
    steps = [torch.optim.SGD(m.parameters(), rate, momentum=0.9, weight_decay=1e-2, nesterov=True) for m in models]
    x, y = torch.randn(40, 12, dtype=torch.float64), torch.arange(40) % classes
    start = models[0](x).detach()
    for _ in range(30):
        for model, step in zip(models, steps, strict=True):
            step.zero_grad()
            F.cross_entropy(30 * model(x), y).backward()
            step.step()
    torch.testing.assert_close(models[0](x), models[1](x), rtol=1e-9, atol=1e-10)
    assert bool((models[0](x) - start).abs().max() > 0.1)


@pytest.mark.parametrize("name", ["cosine", "cosine_maxsep"])
def test_a_cosine_layer_has_no_bias(name):
    assert heads.build(name, 4, 3, bias=False).bias is None
    with pytest.raises(ValueError, match="compares directions and has no bias, got bias=True"):
        heads.build(name, 4, 3, bias=True)
