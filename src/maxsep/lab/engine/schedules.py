"""Learning rates as pure functions of the epoch and the step: nothing to save, nothing to resume."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from maxsep.lab.spec import RunSpec


@dataclass(frozen=True)
class Moment:
    """A point in training: `epoch` of `epochs` and `step` of `steps` per epoch, both counted from 0."""

    epoch: int
    step: int
    epochs: int
    steps: int


Schedule = Callable[..., float]
"""Maps (moment, base rate, **options) to a learning rate."""


def constant(moment: Moment, base: float, *, warmup: int = 0) -> float:
    """Keep the base rate, after a linear warm-up over `warmup` epochs."""
    return base * _warm(moment.epoch, warmup)


def cosine(moment: Moment, base: float, *, warmup: int = 0) -> float:
    """Fall from base along half a cosine, once an epoch: base/2 (1 + cos(pi e / E))."""
    return base / 2 * (1 + math.cos(math.pi * moment.epoch / moment.epochs)) * _warm(moment.epoch, warmup)


def step(moment: Moment, base: float, *, every: int = 30, factor: float = 0.1, warmup: int = 0) -> float:
    """Multiply by `factor` every `every` epochs."""
    return base * factor ** (moment.epoch // every) * _warm(moment.epoch, warmup)


def milestones(
    moment: Moment,
    base: float,
    *,
    at: tuple[int, ...] = (160, 180),
    factors: tuple[float, ...] = (0.1, 0.01),
    warmup: int = 0,
) -> float:
    """From epoch `at[i]` on, use base times `factors[i]` (not their product)."""
    if len(at) != len(factors) or list(at) != sorted(at):
        raise ValueError(
            f"milestones need as many increasing epochs as factors, got at={at!r} and factors={factors!r}."
        )
    passed = sum(moment.epoch >= epoch for epoch in at)
    return base * (factors[passed - 1] if passed else 1.0) * _warm(moment.epoch, warmup)


def ldam(moment: Moment, base: float) -> float:
    """Follow LDAM's schedule: warm-up over 5 epochs, 1 % from epoch 160 of 200 and 0.01 % from epoch 180."""
    return milestones(moment, base, at=_last_fifth(moment), factors=(0.01, 0.0001), warmup=5)


def mislas(moment: Moment, base: float) -> float:
    """Follow MiSLAS's first stage: warm-up over 5 epochs, 10 % from epoch 160 of 200 and 1 % from epoch 180."""
    return milestones(moment, base, at=_last_fifth(moment), factors=(0.1, 0.01), warmup=5)


def cosine_steps(moment: Moment, base: float, *, final: float = 1e-6) -> float:
    """Fall along half a cosine from base to `final`, every step; update i of I, counted from 1, uses lr(i)."""
    update = moment.epoch * moment.steps + moment.step + 1
    return final + (base - final) / 2 * (1 + math.cos(math.pi * update / (moment.epochs * moment.steps)))


def restarts(moment: Moment, base: float, *, cycles: int = 3, warmup: int = 10, floor: float = 1e-3) -> float:
    """Restart a cosine `cycles` times, after one linear warm-up, as open-set recognition's scripts do.

    The released scheduler is told the epoch that has just ended, so every value comes one epoch late: epoch 0 runs
    at the floor, epochs 1 to `warmup` rise to what the cosine has at epoch `warmup`, and epoch e follows with the
    cosine of e - 1. One cycle is a cosine without restarts. As there, a cycle is a whole number of epochs, so that a
    run whose epochs do not divide evenly begins one more cycle near its end.
    """
    low, length = base * floor, max(1, moment.epochs // cycles)

    def wave(epoch: float) -> float:
        return low + (base - low) / 2 * (1 + math.cos(math.pi * (epoch % length) / length))

    if moment.epoch <= warmup:
        return low + (wave(warmup) - low) * moment.epoch / warmup if warmup else wave(0)
    return wave(moment.epoch - 1)


_SCHEDULES: dict[str, Schedule] = {
    function.__name__: function
    for function in (constant, cosine, step, milestones, ldam, mislas, cosine_steps, restarts)
}


def names() -> list[str]:
    """Name the schedules that a spec can ask for.

    >>> names()
    ['constant', 'cosine', 'cosine_steps', 'ldam', 'milestones', 'mislas', 'restarts', 'step']
    """
    return sorted(_SCHEDULES)


def learning_rate(spec: RunSpec, epoch: int, step: int = 0, steps: int = 1) -> float:
    """Give the learning rate of one update.

    Args:
        spec: Names the schedule, its options, the base rate and the number of epochs.
        epoch: Counted from 0.
        step: Position inside the epoch, counted from 0.
        steps: Steps in an epoch.

    >>> spec = RunSpec(schedule="cosine", learning_rate=0.1, epochs=200)
    >>> [round(learning_rate(spec, epoch), 6) for epoch in (0, 100, 199)]
    [0.1, 0.05, 6e-06]
    """
    if spec.schedule not in _SCHEDULES:
        raise ValueError(f"unknown schedule {spec.schedule!r}. Known: {', '.join(names())}.")
    options: dict[str, Any] = dict(spec.schedule_options)
    try:
        return _SCHEDULES[spec.schedule](Moment(epoch, step, spec.epochs, steps), spec.learning_rate, **options)
    except TypeError as error:
        raise ValueError(f"schedule {spec.schedule!r} does not take the options {options!r}: {error}") from error


def _warm(epoch: int, warmup: int) -> float:
    return (epoch + 1) / warmup if epoch < warmup else 1.0


def _last_fifth(moment: Moment) -> tuple[int, int]:
    """Where a run of any length has what epochs 160 and 180 are in one of 200."""
    return round(0.8 * moment.epochs), round(0.9 * moment.epochs)
