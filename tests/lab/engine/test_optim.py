"""Optimisers, their groups, and learning rates as the protocols have them."""

import itertools
import math

import pytest
import torch
from torch import nn

from maxsep.heads.controls import LogitScaledHead, PlainHead
from maxsep.lab.engine.optim import SCHEDULES, build_optimiser, learning_rate, set_learning_rate
from maxsep.lab.spec import RunSpec, options


def test_optimisers_take_the_specs_numbers_and_leave_out_frozen_parameters():
    spec = RunSpec(learning_rate=0.3, momentum=0.8, nesterov=True, weight_decay=1e-3)
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    (group,) = build_optimiser(spec, layer).param_groups
    assert (group["lr"], group["momentum"], group["nesterov"], group["weight_decay"]) == (0.3, 0.8, True, 1e-3)
    assert len(group["params"]) == 1
    adamw = build_optimiser(RunSpec(optimiser="adamw", learning_rate=0.01), layer)
    assert isinstance(adamw, torch.optim.AdamW)
    assert adamw.param_groups[0]["weight_decay"] == 5e-4
    with pytest.raises(ValueError, match="lion"):
        build_optimiser(RunSpec(optimiser="lion"), layer)


def test_the_rate_is_set_as_a_number_or_in_place():
    layer = nn.Linear(2, 2)
    plain, captured = build_optimiser(RunSpec(), layer), build_optimiser(RunSpec(), layer, capturable=True)
    rate = captured.param_groups[0]["lr"]
    for optimiser in (plain, captured):
        set_learning_rate(optimiser, 0.25)
    assert plain.param_groups[0]["lr"] == rate.item() == 0.25
    assert captured.param_groups[0]["lr"] is rate


class Headed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.head = LogitScaledHead(PlainHead(2, 2))


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("fields", [{"head_rate": 0.2}, {"head_decay": 3.0}, {"head_rate": 0.2, "head_decay": 0.0}])
def test_the_head_may_have_its_own_rate_and_decay_but_its_factors_do_not(fields, capturable):
    network, spec = Headed(), RunSpec(**fields)
    optimiser = build_optimiser(spec, network, capturable=capturable)
    rest, head = optimiser.param_groups
    assert {id(p) for p in head["params"]} == {id(p) for p in network.head.head.parameters()}
    assert any(parameter is network.head.scale for parameter in rest["params"])
    set_learning_rate(optimiser, 0.5)
    assert (float(rest["lr"]), float(head["lr"])) == pytest.approx((0.5, 0.5 * spec.head_rate))
    assert (rest["weight_decay"], head["weight_decay"]) == (5e-4, 5e-4 * spec.head_decay)
    network.body.requires_grad_(False)
    network.head.scale.requires_grad_(False)
    assert [len(group["params"]) for group in build_optimiser(spec, network).param_groups] == [2]


def rates(spec, *epochs):
    return [learning_rate(spec, epoch) for epoch in epochs]


def test_the_papers_cosine_and_step_decay_change_once_an_epoch():
    spec = RunSpec(schedule="cosine", epochs=200)
    assert rates(spec, *range(200)) == [0.05 * (1 + math.cos(math.pi * epoch / 200)) for epoch in range(200)]
    assert learning_rate(spec, 7, 3, 98) == learning_rate(spec, 7, 97, 98)
    spec = RunSpec(schedule="step", epochs=90, schedule_options=options(every=30, factor=0.1))
    assert rates(spec, *range(90)) == [0.1 * 0.1**fallen for fallen in range(3) for _ in range(30)]
    spec = RunSpec(schedule="step", epochs=10, schedule_options=options(every=4, factor=0.5))
    assert rates(spec, *range(10)) == [0.1] * 4 + [0.05] * 4 + [0.025] * 2


def test_ldam_and_mislas_warm_up_fall_twice_and_stretch_with_the_run():
    spec = RunSpec(schedule="ldam", epochs=200)
    # the protocol counts epochs from 1: t = 1, 5, 6, 160, 161, 180, 181, 200
    assert rates(spec, 0, 4, 5, 159, 160, 179, 180, 199) == pytest.approx([0.02, 0.1, 0.1, 0.1, 1e-3, 1e-3, 1e-5, 1e-5])
    assert rates(RunSpec(schedule="mislas", epochs=200), 1, 5, 160, 180) == pytest.approx([0.04, 0.1, 0.01, 0.001])
    for name in ("ldam", "mislas"):
        long, short = RunSpec(schedule=name, epochs=200), RunSpec(schedule=name, epochs=50)
        assert rates(short, 39, 40, 44, 45, 49) == rates(long, 159, 160, 179, 180, 199)


@pytest.mark.parametrize(("epochs", "first", "second"), [(7, 6, 6), (33, 26, 30), (1, 1, 1), (13, 10, 12)])
def test_ldam_falls_at_the_nearest_epoch_where_the_run_does_not_divide(epochs, first, second):
    spec = RunSpec(schedule="ldam", epochs=epochs, schedule_options=options(warmup=0))
    expected = [0.1 if e < first else 1e-3 if e < second else 1e-5 for e in range(epochs)]
    assert rates(spec, *range(epochs)) == pytest.approx(expected)


def test_cosine_per_step_counts_updates_from_one_to_the_floor():
    spec = RunSpec(schedule="cosine_steps", epochs=100)
    updates = range(1, 100 * 391 + 1)
    expected = [1e-6 + (0.1 - 1e-6) * 0.5 * (1 + math.cos(math.pi * i / (100 * 391))) for i in updates]
    found = [learning_rate(spec, epoch, step, 391) for epoch in range(100) for step in range(391)]
    assert found == pytest.approx(expected, rel=1e-12, abs=0)
    assert all(later < earlier for earlier, later in itertools.pairwise(found))
    cold, warm = (spec.replace(epochs=3, schedule_options=options(ramp=epochs)) for epochs in (0, 9))  # half of 9 steps
    assert learning_rate(warm, 0, 0, 3) == pytest.approx(learning_rate(cold, 0, 0, 3) / 4.5, rel=1e-12)


def falling(epoch, length=200):
    return 1e-4 + 0.0999 * (1 + math.cos(math.pi * ((epoch - 1) % length) / length)) / 2


@pytest.mark.parametrize(("epochs", "cycles"), [(600, 3), (200, 1)])
def test_every_epoch_of_the_open_set_schedule(epochs, cycles):
    spec = RunSpec(schedule="restarts", epochs=epochs, schedule_options=options(cycles=cycles))
    found = rates(spec, *range(epochs))
    assert found[0] == pytest.approx(1e-4, rel=1e-12)
    assert found[1:11] == pytest.approx([1e-4 + 0.00992850 * epoch for epoch in range(1, 11)], abs=1e-7)
    assert found[10:12] == pytest.approx([0.0993850] * 2, abs=5e-8)  # one epoch late: the same once more
    assert found[11:] == pytest.approx([falling(epoch) for epoch in range(11, epochs)], rel=1e-12)
    assert learning_rate(spec, 7, 0, 235) == learning_rate(spec, 7, 234, 235)


def test_a_cycle_is_a_whole_number_of_epochs_and_may_do_without_warm_up():
    spec = RunSpec(schedule="restarts", epochs=200)
    assert rates(spec, 66, 67, 133, 199) == pytest.approx([falling(66, 66), 0.1, 0.1, 0.1])
    spec = spec.replace(schedule_options=options(cycles=1, warmup=0))
    assert rates(spec, 0, 1, 2) == pytest.approx([0.1, 0.1, falling(2)])


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "restarts"])
def test_every_schedule_may_warm_up_linearly(name):
    spec = RunSpec(schedule=name, epochs=30)
    cold, warm = (spec.replace(schedule_options=options(warmup=epochs)) for epochs in (0, 4))
    expected = [rate * factor for rate, factor in zip(rates(cold, *range(6)), (0.25, 0.5, 0.75, 1, 1, 1), strict=True)]
    assert rates(warm, *range(6)) == pytest.approx(expected)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_positive_and_never_above_the_base(name):
    for epochs in (1, 2, 30):
        spec = RunSpec(schedule=name, epochs=epochs)
        assert all(0 < learning_rate(spec, epoch, step, 3) <= 0.1 for epoch in range(epochs) for step in range(3))


@pytest.mark.parametrize(
    ("schedule", "values"),
    [("linear", {}), ("cosine", {"every": 3}), ("milestones", {"at": (5, 3), "factors": (0.1, 0.01)})],
)
def test_unknown_schedules_and_options_are_refused(schedule, values):
    with pytest.raises(ValueError, match=schedule):
        learning_rate(RunSpec(schedule=schedule, schedule_options=options(**values)), 0)
