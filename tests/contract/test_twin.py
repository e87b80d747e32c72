"""The twin theorem: under SGD the matrix after a trained layer is a plain head with another learning rate."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxsep import heads

STEPS = 400


def cross_entropy(logits, target):
    return F.cross_entropy(logits, target)


def energy_penalised(logits, target):
    return F.cross_entropy(logits, target) + 0.01 * logits.logsumexp(-1).square().mean()


def cosine(logits, target):
    return (1 - F.normalize(logits, dim=-1).gather(1, target[:, None])).square().mean()


def binary(logits, target):
    return F.binary_cross_entropy_with_logits(logits, F.one_hot(target, logits.shape[1]).to(logits))


def path(head_name, *, num_classes, radius, loss, factor=None, optimiser=torch.optim.SGD, steps=STEPS, **options):
    torch.manual_seed(0)
    width = 16
    backbone = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, width), nn.ReLU()).double()
    torch.manual_seed(1)
    head = heads.build(head_name, width, num_classes, radius=radius, dtype=torch.float64)
    if factor is not None:
        head.factor = factor
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(64, 8, dtype=torch.float64, generator=generator)
    y = torch.randint(num_classes, (64,), generator=generator)
    update = optimiser([*backbone.parameters(), *head.parameters()], **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(update, steps)
    losses = []
    for _ in range(steps):
        update.zero_grad()
        value = loss(head(backbone(x)), y)
        value.backward()
        update.step()
        schedule.step()
        losses.append(value.item())
    weights = [parameter.detach() for parameter in backbone.parameters()]
    return torch.tensor(losses, dtype=torch.float64), weights, head(backbone(x)).detach()


def distance(one, other):
    losses, weights, logits = (
        (one[0] - other[0]).abs().max().item(),
        max((a - b).abs().max().item() for a, b in zip(one[1], other[1], strict=True)),
        (one[2] - other[2]).abs().max().item(),
    )
    return max(losses, weights, logits)


SGD = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}


@pytest.mark.parametrize("num_classes", [10, 40])
@pytest.mark.parametrize("radius", [1.0, 0.1])
@pytest.mark.parametrize("nesterov", [False, True])
def test_twin_takes_the_same_path(num_classes, radius, nesterov):
    setting = {"num_classes": num_classes, "radius": radius, "loss": cross_entropy, "nesterov": nesterov, **SGD}
    assert distance(path("maxsep", **setting), path("twin", **setting)) <= 1e-12


@pytest.mark.parametrize("loss", [energy_penalised, cosine, binary])
def test_twin_takes_the_same_path_for_any_loss(loss):
    setting = {"num_classes": 10, "radius": 0.1, "loss": loss, "nesterov": True, **SGD}
    assert distance(path("maxsep", **setting), path("twin", **setting)) <= 1e-12


@pytest.mark.parametrize("radius", [1.0, 0.1])
def test_without_the_factor_the_paths_separate(radius):
    setting = {"num_classes": 10, "radius": radius, "loss": cross_entropy, **SGD}
    assert distance(path("maxsep", **setting), path("twin", factor=1.0, **setting)) > 1e-3


def test_adam_is_another_matter():
    setting = {"num_classes": 10, "radius": 0.1, "loss": cross_entropy, "optimiser": torch.optim.Adam, "lr": 1e-2}
    assert distance(path("maxsep", steps=50, **setting), path("twin", steps=50, **setting)) > 1e-3
