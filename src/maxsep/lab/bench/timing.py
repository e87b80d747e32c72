"""Time several ways to do one thing in alternating rounds: what slows the machine slows them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

__all__ = ["Spread", "alternate", "clock_of", "spread_of"]

Clock = Callable[[], float]


@dataclass(frozen=True)
class Spread:
    """The middle of some values and the quartiles around it."""

    median: float
    low: float
    high: float


def spread_of(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles of at least one value.

    >>> spread_of([1.0, 2.0, 3.0, 4.0, 9.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return Spread(statistics.median(ordered), ordered[quarter], ordered[-1 - quarter])


def alternate(
    forms: Mapping[str, Callable[[], object]],
    *,
    least: int,
    most: int,
    seconds: float = 0.0,
    clock: Clock = time.perf_counter,
    warm: bool = False,
) -> dict[str, list[float]]:
    """Call every form once unmeasured, then all in turn, round by round; return the seconds of each round.

    Args:
        forms: What to call, by name.
        least: Rounds that are made in any case.
        most: Rounds at most.
        seconds: After the least rounds, go on until this time has been used.
        clock: What tells the time; on a GPU it must wait for the device (`clock_of`).
        warm: Whether every form has been called already.

    >>> times = alternate({"a": lambda: 1, "b": lambda: 2}, least=3, most=3)
    >>> [len(values) for values in times.values()]
    [3, 3]
    """
    for form in () if warm else forms.values():
        form()
    times: dict[str, list[float]] = {name: [] for name in forms}
    begun = clock()
    for done in range(most):
        if done >= least and clock() - begun >= seconds:
            break
        for name, form in forms.items():
            start = clock()
            form()
            times[name].append(clock() - start)
    return times


def clock_of(device: torch.device, threads: int = 1) -> Clock:
    """Return the clock to measure with.

    One thread on a CPU is measured by the time that the process has computed, which other work on the machine does not
    lengthen. Several threads wait for each other, so there, as on a GPU, it is the time on the wall; on a GPU the clock
    first waits until the device has done its work.

    >>> clock_of(torch.device("cpu")) is time.process_time
    True
    """
    if device.type != "cuda":
        return time.process_time if threads == 1 else time.perf_counter

    def told() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return told
