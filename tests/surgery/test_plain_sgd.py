"""A plain layer continues the training of the matrix: same logits in every later step."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim import lr_scheduler as schedules

from maxsep import MaxSeparationHead, attach
from maxsep.heads import ControlHead, PlainHead
from maxsep.surgery import to_plain_sgd

STEPS = 60
SCHEDULES = {
    "none": lambda update: [],
    "lambda": lambda update: [schedules.LambdaLR(update, lambda step: 0.98**step)],
    "onecycle": lambda update: [schedules.OneCycleLR(update, 0.1, total_steps=STEPS)],
    "restarts": lambda update: [schedules.CosineAnnealingWarmRestarts(update, 9)],
    "two": lambda update: [schedules.StepLR(update, 20, 0.5), schedules.ExponentialLR(update, 0.99)],
    "warm-up": lambda update: [
        schedules.SequentialLR(
            update, [schedules.LinearLR(update, 0.1, total_iters=10), schedules.CosineAnnealingLR(update, STEPS)], [30]
        )
    ],
}


class Training:
    """A small network with dropout and the matrix, trained in float64 on two micro-batches a step."""

    def __init__(self, *, radius=0.1, bias=True, order=None, dropout=0.0, schedule="none", groups="one", **options):
        torch.manual_seed(0)
        head = MaxSeparationHead(16, 7, radius, bias, class_order=order)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(dropout), head).double()
        self.update = SGD(self.groups(groups), lr=0.05, **options)
        self.schedulers = SCHEDULES[schedule](self.update)
        self.x, self.target = torch.randn(12, 8, dtype=torch.float64), torch.randint(7, (12,))

    def groups(self, kind):
        body, head = self.model[:3], self.model[3]
        if kind == "one":
            return self.model.named_parameters()
        if kind == "own":
            return [{"params": body.parameters()}, {"params": head.parameters(), "lr": 0.2, "weight_decay": 0.03}]
        by_dimension = {2: [], 1: []}
        for parameter in self.model.parameters():
            by_dimension[parameter.dim()].append(parameter)
        return [{"params": by_dimension[2]}, {"params": by_dimension[1], "weight_decay": 0.0}]

    def accumulate(self, rows):
        F.cross_entropy(self.model(self.x[rows]), self.target[rows]).backward()

    def run(self, change=None):
        """Return the logits of every step; in the middle of step `change` the matrix is replaced."""
        logits = []
        for step in range(STEPS - 1):
            self.accumulate(slice(0, 6))
            if step == change:
                self.model = to_plain_sgd(self.model, self.update, *self.schedulers)
            self.accumulate(slice(6, 12))
            self.update.step()
            self.update.zero_grad()
            for scheduler in self.schedulers:
                scheduler.step()
            logits.append(self.model(self.x).detach())
        return torch.stack(logits)


def apart(before, **setting):
    """Return the largest distance of logits in all steps, and the training that was changed."""
    ours, plain = Training(**setting).run(), Training(**setting)
    worst = (plain.run(before) - ours).abs().max().item()
    assert type(plain.model[3]) is nn.Linear
    assert plain.model[3].weight.mean(0).abs().max() < 1e-14
    return worst, plain


@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.01},
        {"momentum": 0.9, "weight_decay": 0.01, "bias": False, "dropout": 0.2},
        {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True, "groups": "own"},
        {"momentum": 0.9, "weight_decay": 0.01, "dampening": 0.3, "groups": "no decay", "order": [3, 1, 0, 2, 6, 5, 4]},
    ],
)
@pytest.mark.parametrize("radius", [0.1, 3.0])
@pytest.mark.parametrize("before", [0, 20])
def test_the_plain_layer_goes_on_alike(before, radius, options):
    assert apart(before, radius=radius, **options)[0] <= 1e-12


@pytest.mark.parametrize("groups", ["one", "own", "no decay"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_go_on_alike(schedule, groups):
    worst, plain = apart(20, schedule=schedule, groups=groups, momentum=0.9, weight_decay=0.01)
    assert worst <= 1e-12
    trained = [parameter for group in plain.update.param_groups for parameter in group["params"]]
    assert {id(parameter) for parameter in trained} == {id(parameter) for parameter in plain.model.parameters()}
    plain.update.load_state_dict(plain.update.state_dict())
    assert all(len(s.get_last_lr()) == len(plain.update.param_groups) for s in plain.schedulers)


def test_several_heads_and_a_frozen_bias():
    def training():
        torch.manual_seed(0)
        model = nn.ModuleList([MaxSeparationHead(4, 3, 0.1), MaxSeparationHead(4, 5, 2.0)]).double()
        model[0].bias.requires_grad_(False)
        trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        return model, SGD(trained, lr=0.1, momentum=0.9, weight_decay=0.01)

    (ours, update), (plain, plain_update), x = training(), training(), torch.randn(6, 4, dtype=torch.float64)
    to_plain_sgd(plain, plain_update)
    for _ in range(20):
        for model, optimiser in ((ours, update), (plain, plain_update)):
            optimiser.zero_grad()
            sum(F.cross_entropy(head(x), torch.arange(6) % 3) for head in model).backward()
            optimiser.step()
    for head, layer in zip(ours, plain, strict=True):
        torch.testing.assert_close(layer(x), head(x), atol=1e-12, rtol=0)
    assert {type(layer) for layer in plain} == {nn.Linear}
    assert not plain[0].bias.requires_grad
    assert [group["param_names"] for group in plain_update.param_groups] == [["1.weight", "1.bias"], ["0.weight"]]


def test_a_bare_head_and_a_head_at_two_places():
    head = MaxSeparationHead(4, 3)
    assert type(to_plain_sgd(head, SGD(head.parameters(), 0.1))) is nn.Linear
    model = nn.Sequential(head, nn.LogSoftmax(1), head, nn.Softmax(-1))  # softmax ignores the mean logit
    to_plain_sgd(model, SGD(model.parameters(), 0.1))
    assert model[0] is model[2]
    assert type(model[0]) is nn.Linear


def refusals():
    head = MaxSeparationHead(4, 3)
    yield head, torch.optim.Adam(head.parameters()), [], "SGD"
    yield head, type("SAM", (SGD,), {})(head.parameters(), 0.1), [], "SAM"
    yield head, SGD(head.parameters(), 0.1, maximize=True), [], "maximize"
    yield head, SGD([head.weight], 0.1), [], "bias"
    update = SGD(head.parameters(), 0.1)
    yield head, update, [schedules.CosineAnnealingLR(update, 10, eta_min=0.01)], "eta_min"
    yield head, update, [schedules.ReduceLROnPlateau(update)], "ReduceLROnPlateau"
    foreign = type("CosineLRScheduler", (), {"optimizer": update})()  # as timm's, which has no eta_min
    yield head, update, [foreign], r"^(?!.*eta_min).*CosineLRScheduler"
    yield head, update, [], "schedulers"
    yield head, update, [schedules.StepLR(SGD(head.parameters(), 0.1), 3)], "StepLR"
    for other in (PlainHead(4, 3), ControlHead(4, 3), nn.Linear(4, 3)):
        yield other, SGD(other.parameters(), 0.1), [], "MaxSeparationHead"
    tied = nn.Sequential(nn.Linear(4, 2), MaxSeparationHead(4, 3))
    tied[1].weight = tied[0].weight
    yield tied, SGD(tied.parameters(), 0.1), [], "shares"
    convolution = attach(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)))
    yield convolution, SGD(convolution.parameters(), 0.1), [], "ReLU.*'0"  # it sees the mean logit
    for kind in (nn.GELU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.LogSigmoid):
        model = nn.Sequential(MaxSeparationHead(4, 3), kind())
        yield model, SGD(model.parameters(), 0.1), [], kind.__name__
    for register in ("register_step_pre_hook", "register_step_post_hook"):
        update = SGD(head.parameters(), 0.1)
        getattr(update, register)(lambda *_: None)
        yield head, update, [], "optimiser"
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        clipped = MaxSeparationHead(4, 3)
        getattr(clipped.weight, register)(lambda gradient: None)
        yield clipped, SGD(clipped.parameters(), 0.1), [], "weight"
    other = type("Other", (MaxSeparationHead,), {})(4, 3)  # its plain form may have another factor
    yield other, SGD(other.parameters(), 0.1), [], "Other"
    for register in ("forward", "forward_pre", "full_backward", "full_backward_pre"):
        watched = nn.Sequential(MaxSeparationHead(4, 3))
        getattr(watched[0], f"register_{register}_hook")(lambda *_: None)
        yield watched, SGD(watched.parameters(), 0.1), [], "hooks"


def test_what_cannot_go_on_alike_is_refused_and_unchanged():
    for model, update, schedulers, word in refusals():
        before = [dict(group) for group in update.param_groups]
        with pytest.raises((TypeError, ValueError), match=word):
            to_plain_sgd(model, update, *schedulers)
        assert [dict(group) for group in update.param_groups] == before
