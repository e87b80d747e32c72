import pytest
import torch

from maxsep.lab.bench.timing import alternate, clock_of, spread_of


class Clock:
    """A clock that only the measured work moves."""

    now = 0.0

    def __call__(self):
        return self.now

    def work(self, seconds):
        def call():
            self.now += seconds

        return call


def test_forms_take_turns_after_a_call_that_is_not_measured():
    order = []
    alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, least=2, most=2)
    assert order == ["a", "b"] * 3
    order.clear()
    alternate({"a": lambda: order.append("a")}, least=2, most=2, warm=True)
    assert order == ["a", "a"]


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 3), (10.0, 5), (1000.0, 7)])
def test_rounds_go_on_until_the_time_is_used(seconds, rounds):
    clock = Clock()
    times = alternate({"slow": clock.work(1.5), "fast": clock.work(0.5)}, least=3, most=7, seconds=seconds, clock=clock)
    assert times == {"slow": [1.5] * rounds, "fast": [0.5] * rounds}


def test_spread():
    found = spread_of([5, 1, 2, 100, 3, 4, 6, 7])
    assert (found.median, found.low, found.high) == (4.5, 3, 6)
    assert spread_of([2.0]).low == spread_of([2.0]).high == 2.0


def test_a_gpu_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    clock_of(torch.device("cuda"))()
    assert waited == [torch.device("cuda")]


def test_threads_are_timed_on_the_wall():
    import time

    assert clock_of(torch.device("cpu"), 1) is time.process_time
    assert clock_of(torch.device("cpu"), 2) is time.perf_counter
