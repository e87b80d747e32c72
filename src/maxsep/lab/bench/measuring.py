"""Measure all operations at all sizes: medians, quartiles and ratios to nn.Linear, or why something did not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from maxsep.lab.bench.cases import OPERATIONS, PLAIN, Form, Sizes
from maxsep.lab.bench.timing import Spread, alternate, clock_of, spread_of

__all__ = ["Row", "measure"]

LEAST, MOST, SECONDS = 3, 50, 0.25
"""Rounds of a comparison, and the time after which no further one is begun."""


@dataclass(frozen=True)
class Row:
    """One form of one operation at one number of classes."""

    operation: str
    classes: int
    form: str
    milliseconds: Spread | None = None
    ratio: Spread | None = None
    """Time over that of the plain nn.Linear, round by round."""
    rounds: int = 0
    problem: str | None = None
    """Why there is no time, or no ratio."""
    failed: bool = False
    """Whether the problem is an error rather than a lack of memory."""


def measure(
    classes: Sequence[int],
    *,
    batch: int = 128,
    features: int = 512,
    device: torch.device | str = "cpu",
    seconds: float = SECONDS,
    free_memory: Callable[[], int] = lambda: 4 * 2**30,
    on_start: Callable[[str, int], None] = lambda operation, classes: None,
) -> list[Row]:
    """Measure every operation at every number of classes.

    Args:
        classes: Numbers of classes, each at least 2.
        batch: Samples of a batch.
        features: Width of the features.
        device: Where to measure. On a CPU, call torch.set_num_threads(1) first unless threads are the question.
        seconds: Of rounds for each operation and size, after the first three.
        free_memory: Says how many bytes may be taken; what needs more is not run, and its row says so.
        on_start: Hears of each operation and size before it is measured.

    >>> rows = measure([3], batch=2, features=4, seconds=0.0)
    >>> [(row.form, row.rounds) for row in rows if row.operation == "product"]
    [('maxsep', 3), ('dense', 3), ('plain', 3)]
    """
    rows: list[Row] = []
    for count in classes:
        sizes = Sizes(count, batch, features, torch.device(device))
        for operation, forms_of in OPERATIONS.items():
            on_start(operation, count)
            rows += _compared(operation, sizes, forms_of(sizes), seconds, free_memory)
    return rows


def _compared(
    operation: str, sizes: Sizes, forms: list[Form], seconds: float, free_memory: Callable[[], int]
) -> list[Row]:
    ready: dict[str, Callable[[], object]] = {}
    problems: dict[str, tuple[str, bool]] = {}
    for form in forms:
        problem = _too_large(form, free_memory())
        if problem is None:
            problem = _tried(form, ready)
        if problem is not None:
            problems[form.name] = problem
    clock = clock_of(sizes.device, torch.get_num_threads())
    times = alternate(ready, least=LEAST, most=MOST, seconds=seconds, clock=clock, warm=True) if ready else {}
    return [_row(operation, sizes.classes, form.name, times, problems) for form in forms]


def _too_large(form: Form, free: int) -> tuple[str, bool] | None:
    if form.needs <= free:
        return None
    return f"needs about {form.needs / 2**30:,.1f} GiB, {free / 2**30:,.1f} GiB are free", False


def _tried(form: Form, ready: dict[str, Callable[[], object]]) -> tuple[str, bool] | None:
    """Prepare a form and call it once; a form that cannot is left out, and the others are still measured."""
    try:
        call = form.prepare()
        call()
    except (torch.OutOfMemoryError, MemoryError):
        return "ran out of memory", False
    except Exception as error:  # whatever stops it belongs into its row
        return f"{type(error).__name__}: {' '.join(str(error).split())}", True
    ready[form.name] = call
    return None


def _row(
    operation: str, classes: int, form: str, times: dict[str, list[float]], problems: dict[str, tuple[str, bool]]
) -> Row:
    if form not in times:
        problem, failed = problems[form]
        return Row(operation, classes, form, problem=problem, failed=failed)
    milliseconds = spread_of([1e3 * value for value in times[form]])
    rounds = len(times[form])
    if PLAIN not in times:
        return Row(operation, classes, form, milliseconds, rounds=rounds, problem="no plain nn.Linear to compare with")
    ratio = spread_of([own / plain for own, plain in zip(times[form], times[PLAIN], strict=True)])
    return Row(operation, classes, form, milliseconds, ratio, rounds)
