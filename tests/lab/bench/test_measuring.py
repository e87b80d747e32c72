import pytest
import torch

from maxsep.lab.bench import OPERATIONS, Sizes, cases, measure, measuring
from maxsep.lab.bench.cases import PLAIN

SMALL = {"batch": 4, "features": 8, "seconds": 0.0}


def test_every_operation_has_times_and_ratios(fused_loss):
    heard = []
    rows = measure([5, 20], **SMALL, on_start=lambda *what: heard.append(what))
    assert heard == [(operation, classes) for classes in (5, 20) for operation in OPERATIONS]
    found = {(row.operation, row.classes, row.form) for row in rows}
    expected = {("construction", "maxsep"), ("construction", "dense"), ("construction", "plain")}
    expected |= {(operation, form) for operation in ("product", "head") for form in ("maxsep", "dense", "plain")}
    expected |= {("head", "fused")}
    assert found == {(operation, classes, form) for classes in (5, 20) for operation, form in expected}
    assert set(fused_loss) == {(5, 4), (20, 4)}
    for row in rows:
        assert row.problem is None
        assert 0 <= row.milliseconds.low <= row.milliseconds.median <= row.milliseconds.high
        assert row.ratio.low <= row.ratio.median <= row.ratio.high
        assert row.rounds == 3
        if row.form == PLAIN:
            assert row.ratio.low == row.ratio.high == 1


def test_ratios_are_taken_round_by_round(monkeypatch):
    times = {"maxsep": [1.0, 10.0, 4.0], "fused": [3.0] * 3, "dense": [2.0] * 3, "plain": [1.0, 5.0, 2.0]}
    monkeypatch.setattr(measuring, "alternate", lambda ready, **_: {name: times[name] for name in ready})
    row = next(row for row in measure([5], **SMALL) if (row.operation, row.form) == ("head", "maxsep"))
    assert row.ratio.median == 2.0, "the median of 1, 2, 2, not 4 over 2 of different rounds"
    assert row.milliseconds.median == 4000.0


def test_what_needs_too_much_memory_is_not_run_and_says_so():
    sizes = Sizes(50, 4, 8, torch.device("cpu"))
    dense = next(form for form in OPERATIONS["head"](sizes) if form.name == "dense")
    rows = measure([50], **SMALL, free_memory=lambda: dense.needs - 1)
    missing = [row for row in rows if row.milliseconds is None]
    assert [(row.operation, row.form) for row in missing] == [("head", "dense")]
    assert missing[0].problem == "needs about 0.0 GiB, 0.0 GiB are free"
    assert not missing[0].failed


def test_without_a_plain_layer_there_is_no_ratio():
    sizes = Sizes(50, 4, 8000, torch.device("cpu"))
    plain = OPERATIONS["product"](sizes)[-1]
    rows = measure([50], batch=4, features=8000, seconds=0.0, free_memory=lambda: plain.needs - 1)
    ours = next(row for row in rows if (row.operation, row.form) == ("product", "maxsep"))
    assert ours.ratio is None
    assert ours.milliseconds is not None
    assert ours.problem == "no plain nn.Linear to compare with"


@pytest.mark.parametrize(
    ("error", "told", "failed"),
    [
        (torch.OutOfMemoryError("no"), "ran out of memory", False),
        (MemoryError(), "ran out of memory", False),
        (RuntimeError("it\nbroke"), "RuntimeError: it broke", True),
    ],
)
def test_a_form_that_breaks_does_not_hide(error, told, failed, monkeypatch):
    def broken(head, x, target):
        raise error

    monkeypatch.setattr(cases, "fused_cross_entropy", broken)
    rows = {row.form: row for row in measure([5], **SMALL) if row.operation == "head"}
    assert (rows["fused"].problem, rows["fused"].failed) == (told, failed)
    assert rows["fused"].milliseconds is None
    assert rows["maxsep"].ratio is not None


def test_all_forms_of_an_operation_compute_the_same_thing():
    """With one layer in all of them: the dense product is ours, and gradients have the shapes of their parameters."""
    sizes = Sizes(7, 4, 8, torch.device("cpu"))
    for operation in ("product", "head"):
        for form in OPERATIONS[operation](sizes):
            gradients = form.prepare()()
            assert all(bool(gradient.isfinite().all()) for gradient in gradients)
            wide = 8 if operation == "head" or form.name == PLAIN else 6
            assert gradients[0].shape == (4, wide)
            rows = 7 if form.name == PLAIN else 6
            assert [tuple(g.shape) for g in gradients[1:]] == ([] if wide == 6 else [(rows, 8), (rows,)])
