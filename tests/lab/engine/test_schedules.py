import itertools
import math

import pytest

from maxsep.lab.engine.optim import learning_rate, names
from maxsep.lab.spec import RunSpec, options


def rates(spec, *epochs):
    return [learning_rate(spec, epoch) for epoch in epochs]


def test_the_papers_cosine_is_stepped_once_an_epoch():
    spec = RunSpec(schedule="cosine", epochs=200)
    assert rates(spec, 0, 50, 100, 150, 199) == pytest.approx([0.1, 0.0853553, 0.05, 0.0146447, 6.168e-6], rel=1e-4)
    assert learning_rate(spec, 7, 3, 98) == learning_rate(spec, 7, 97, 98)
    assert rates(spec, *range(200)) == [0.05 * (1 + math.cos(math.pi * epoch / 200)) for epoch in range(200)]


def test_the_papers_step_decay_falls_every_thirty_epochs():
    spec = RunSpec(schedule="step", epochs=90, schedule_options=options(every=30, factor=0.1))
    assert rates(spec, 0, 29, 30, 59, 60, 89) == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert rates(spec, *range(90)) == [0.1 * 0.1**fallen for fallen in range(3) for _ in range(30)]


def test_ldam_warms_up_and_falls_twice():
    spec = RunSpec(schedule="ldam", epochs=200)
    # the protocol counts epochs from 1: t = 1, 5, 6, 160, 161, 180, 181, 200
    assert rates(spec, 0, 4, 5, 159, 160, 179, 180, 199) == pytest.approx([0.02, 0.1, 0.1, 0.1, 1e-3, 1e-3, 1e-5, 1e-5])


def test_mislas_falls_less():
    spec = RunSpec(schedule="mislas", epochs=200)
    assert rates(spec, 1, 5, 160, 180) == pytest.approx([0.04, 0.1, 0.01, 0.001])


@pytest.mark.parametrize("name", ["ldam", "mislas"])
def test_their_falls_stretch_with_the_run(name):
    long, short = RunSpec(schedule=name, epochs=200), RunSpec(schedule=name, epochs=50)
    assert rates(short, 39, 40, 44, 45, 49) == rates(long, 159, 160, 179, 180, 199)


def test_cosine_per_step_counts_updates_from_one_to_the_floor():
    spec = RunSpec(schedule="cosine_steps", epochs=100)
    assert learning_rate(spec, 99, 390, 391) == pytest.approx(1e-6)
    assert learning_rate(spec, 49, 390, 391) == pytest.approx((0.1 + 1e-6) / 2)
    assert learning_rate(spec, 0, 0, 391) < 0.1
    updates = range(1, 100 * 391 + 1)
    expected = [1e-6 + (0.1 - 1e-6) * 0.5 * (1 + math.cos(math.pi * i / (100 * 391))) for i in updates]
    found = [learning_rate(spec, epoch, step, 391) for epoch in range(100) for step in range(391)]
    assert found == pytest.approx(expected, rel=1e-12, abs=0)
    assert all(later < earlier for earlier, later in itertools.pairwise(found))


def test_restarts_follow_the_open_set_scripts():
    spec = RunSpec(schedule="restarts", epochs=600)
    assert rates(spec, 0, 1, 10) == pytest.approx([1e-4, 1e-4 + 0.0099285, 0.099385], rel=1e-5)
    assert rates(spec, 201, 401, 101) == pytest.approx([0.1, 0.1, 0.05005])
    assert learning_rate(spec, 599) == pytest.approx(0.000125, abs=5e-7)


def falling(epoch, length=200):
    return 1e-4 + 0.0999 * (1 + math.cos(math.pi * ((epoch - 1) % length) / length)) / 2


def test_every_epoch_of_the_open_set_schedule():
    spec = RunSpec(schedule="restarts", epochs=600)
    found = rates(spec, *range(600))
    assert found[0] == pytest.approx(1e-4, rel=1e-12)
    assert found[1:11] == pytest.approx([1e-4 + 0.00992850 * epoch for epoch in range(1, 11)], abs=1e-7)
    assert found[10] == pytest.approx(0.0993850, abs=5e-8)
    assert found[11:] == pytest.approx([falling(epoch) for epoch in range(11, 600)], rel=1e-12)
    assert found[11] == pytest.approx(0.0993850, abs=5e-8)  # one epoch late: the same once more
    assert [found[epoch] for epoch in (200, 201, 400, 401)] == pytest.approx([1.0616e-4, 0.1, 1.0616e-4, 0.1], rel=1e-4)
    assert found[599] == pytest.approx(0.000125, abs=5e-7)
    assert learning_rate(spec, 7, 0, 235) == learning_rate(spec, 7, 234, 235)


def test_zero_restarts_are_one_cycle():
    spec = RunSpec(schedule="restarts", epochs=200, schedule_options=options(cycles=1))
    found = rates(spec, *range(200))
    assert found[0] == pytest.approx(1e-4, rel=1e-12)
    assert found[1:11] == pytest.approx([1e-4 + 0.00992850 * epoch for epoch in range(1, 11)], abs=1e-7)
    assert found[11:] == pytest.approx([falling(epoch) for epoch in range(11, 200)], rel=1e-12)
    assert found[14] == pytest.approx(0.0989622, abs=1e-7)
    assert found[199] == pytest.approx(1.24647e-4, rel=1e-5)
    assert all(later <= earlier for earlier, later in itertools.pairwise(found[10:]))


def test_a_cycle_is_a_whole_number_of_epochs():
    spec = RunSpec(schedule="restarts", epochs=200)
    assert rates(spec, 66, 67, 133, 199) == pytest.approx([falling(66, 66), 0.1, 0.1, 0.1])
    assert all(0 < rate <= 0.1 for epochs in (1, 2, 3) for rate in rates(spec.replace(epochs=epochs), *range(epochs)))


def test_restarts_need_no_warm_up():
    spec = RunSpec(schedule="restarts", epochs=200, schedule_options=options(cycles=1, warmup=0))
    assert rates(spec, 0, 1, 2) == pytest.approx([0.1, 0.1, falling(2)])


def test_constant_may_warm_up():
    spec = RunSpec(schedule="constant", schedule_options=options(warmup=4))
    assert rates(spec, 0, 1, 3, 4, 19) == pytest.approx([0.025, 0.05, 0.1, 0.1, 0.1])


@pytest.mark.parametrize("name", names())
def test_every_schedule_is_positive_and_never_above_the_base(name):
    spec = RunSpec(schedule=name, epochs=30)
    assert all(0 < learning_rate(spec, epoch, step, 3) <= 0.1 for epoch in range(30) for step in range(3))


def test_an_unknown_schedule_lists_the_known():
    with pytest.raises(ValueError, match=r"unknown schedule 'linear'. Known: constant, cosine, "):
        learning_rate(RunSpec(schedule="linear"), 0)


def test_unknown_options_are_refused():
    with pytest.raises(ValueError, match=r"'cosine' does not take the options \{'every': 3\}"):
        learning_rate(RunSpec(schedule="cosine", schedule_options=options(every=3)), 0)


def test_milestones_need_a_factor_each():
    spec = RunSpec(schedule="milestones", schedule_options=options(at=(5, 3), factors=(0.1, 0.01)))
    with pytest.raises(ValueError, match="as many increasing epochs as factors"):
        learning_rate(spec, 0)
