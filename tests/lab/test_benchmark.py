import pytest
import torch

from maxsep.lab import benchmark
from maxsep.lab.benchmark import alternate, clock_of, measure, operations, spread_of

SMALL = {"batch": 4, "features": 8, "seconds": 0.0}


def test_every_operation_has_times_and_ratios():
    rows = measure([5, 20], **SMALL)
    forms = {"product": 3, "head": 4}
    assert [row.operation for row in rows] == 2 * [name for name, count in forms.items() for _ in range(count)]
    for row in rows:
        assert row.problem is None
        assert 0 <= row.milliseconds.low <= row.milliseconds.median <= row.milliseconds.high
        if row.form == "plain":
            assert row.ratio.low == row.ratio.high == 1


def test_ratios_are_taken_round_by_round(monkeypatch):
    times = {"maxsep": [1.0, 10.0, 4.0], "fused": [3.0] * 3, "dense": [2.0] * 3, "plain": [1.0, 5.0, 2.0]}
    monkeypatch.setattr(benchmark, "alternate", lambda ready, **_: {name: times[name] for name in ready})
    row = next(row for row in measure([5], **SMALL) if (row.operation, row.form) == ("head", "maxsep"))
    assert (row.ratio.median, row.milliseconds.median) == (2.0, 4000.0)


@pytest.mark.parametrize(
    ("error", "failed"), [(torch.OutOfMemoryError("no"), False), (MemoryError(), False), (RuntimeError("broke"), True)]
)
def test_a_form_that_fails_does_not_stop_the_others(error, failed, monkeypatch):
    def broken(head, x, target):
        raise error

    monkeypatch.setattr(benchmark, "fused_cross_entropy", broken)
    monkeypatch.setattr(benchmark, "DENSE_LIMIT", 4)
    rows = {row.form: row for row in measure([5], **SMALL) if row.operation == "head"}
    assert (rows["fused"].milliseconds, rows["fused"].failed) == (None, failed)
    assert (rows["dense"].milliseconds, rows["dense"].failed) == (None, False)
    assert rows["maxsep"].ratio is not None


def test_gradients_have_the_shapes_of_their_parameters():
    for operation, forms in operations(7, 4, 8, torch.device("cpu")).items():
        for form, prepare in forms.items():
            gradients = prepare()()
            wide = 8 if operation == "head" or form == "plain" else 6
            rows = 7 if form == "plain" else 6
            shapes = [(4, wide), *([] if wide == 6 else [(rows, 8), (rows,)])]
            assert [tuple(gradient.shape) for gradient in gradients] == shapes


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 3), (10.0, 5), (1000.0, 7)])
def test_rounds_go_on_until_the_time_is_used(seconds, rounds):
    now = [0.0]

    def work(seconds):
        now[0] += seconds

    forms = {"slow": lambda: work(1.5), "fast": lambda: work(0.5)}
    times = alternate(forms, least=3, most=7, seconds=seconds, clock=lambda: now[0])
    assert times == {"slow": [1.5] * rounds, "fast": [0.5] * rounds}


def test_spread_and_clocks(monkeypatch):
    spread = spread_of([5, 1, 2, 100, 3, 4, 6, 7])
    assert (spread.median, spread.low, spread.high) == (4.5, 3, 6)
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    clock_of(torch.device("cuda"))()
    assert waited == [torch.device("cuda")]
    assert clock_of(torch.device("cpu"), 2) is not clock_of(torch.device("cpu"), 1)
