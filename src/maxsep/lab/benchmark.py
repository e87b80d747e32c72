"""Time product, head and fused loss on this machine, against the dense matrix and nn.Linear."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep import MaxSeparation, MaxSeparationHead, simplex
from maxsep.losses import fused_cross_entropy

DENSE_LIMIT = 10_000
"""Most classes of the dense matrix, which takes 400 MB there."""
Clock = Callable[[], float]
Call = Callable[[], object]
Forms = dict[str, Callable[[], Call]]
"""By name, what allocates the tensors of one form and returns the function to time."""


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Timing:
    """One form of one operation: its time, and its ratio to nn.Linear's, round by round; or the problem.

    `failed` tells an error from a lack of memory.
    """

    operation: str
    classes: int
    form: str
    milliseconds: Spread | None = None
    ratio: Spread | None = None
    problem: str | None = None
    failed: bool = False


def measure(
    classes: Sequence[int], *, batch: int = 128, features: int = 512, device: str = "cpu", seconds: float = 0.25
) -> list[Timing]:
    """Measure every operation at every number of classes: 3 rounds, then up to 50 while `seconds` last.

    On a CPU, call torch.set_num_threads(1) first unless threads are the question.
    """
    place, rows = torch.device(device), []
    for count in classes:
        for operation, forms in operations(count, batch, features, place).items():
            rows += _compare(operation, count, forms, seconds, clock_of(place, torch.get_num_threads()))
    return rows


def _compare(operation: str, classes: int, forms: Forms, seconds: float, clock: Clock) -> list[Timing]:
    ready: dict[str, Call] = {}
    problems: dict[str, tuple[str, bool]] = {}
    for form, prepare in forms.items():
        if form == "dense" and classes > DENSE_LIMIT:
            problems[form] = (f"more than {DENSE_LIMIT:,} classes", False)
            continue
        try:
            function = prepare()
            function()
        except (torch.OutOfMemoryError, MemoryError):
            problems[form] = ("out of memory", False)
        except Exception as error:  # the other forms are still measured
            problems[form] = (f"{type(error).__name__}: {' '.join(str(error).split())}", True)
        else:
            ready[form] = function
    times = alternate(ready, least=3, most=50, seconds=seconds, clock=clock, warm=True)
    rows = []
    for form in forms:
        if form in problems:
            problem, failed = problems[form]
            rows.append(Timing(operation, classes, form, problem=problem, failed=failed))
            continue
        ratio = [a / b for a, b in zip(times[form], times["plain"], strict=True)] if "plain" in times else []
        milliseconds = spread_of([1e3 * value for value in times[form]])
        rows.append(Timing(operation, classes, form, milliseconds, spread_of(ratio) if ratio else None))
    return rows


class Dense(nn.Module):
    """The product with the dense matrix."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("matrix", simplex(classes))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C - 1) to logits (B, C)."""
        return x @ self.get_buffer("matrix")


def operations(classes: int, batch: int, features: int, device: torch.device) -> dict[str, Forms]:
    """Return the forms of every operation, forward and backward; `plain` is nn.Linear from features to logits.

    `product` maps C-1 outputs to C logits. `head` goes from the features to the cross-entropy, with all gradients;
    `fused` never holds the logits.
    """
    layers: dict[str, dict[str, Callable[[], nn.Module]]] = {
        "product": {
            "maxsep": lambda: MaxSeparation(classes),
            "dense": lambda: Dense(classes),
            "plain": lambda: nn.Linear(features, classes),
        },
        "head": {
            "maxsep": lambda: MaxSeparationHead(features, classes),
            "fused": lambda: MaxSeparationHead(features, classes),
            "dense": lambda: nn.Sequential(nn.Linear(features, classes - 1), Dense(classes)),
            "plain": lambda: nn.Linear(features, classes),
        },
    }

    def prepare(operation: str, form: str) -> Call:
        layer = layers[operation][form]().to(device)
        width = classes - 1 if operation == "product" and form != "plain" else features
        x = torch.randn(batch, width, device=device, requires_grad=True)
        inputs, target = [x, *layer.parameters()], torch.randint(classes, (batch,), device=device)
        if operation == "product":
            grad = torch.randn(batch, classes, device=device)
            return lambda: torch.autograd.grad(layer(x), inputs, grad)
        if form == "fused":
            return lambda: torch.autograd.grad(fused_cross_entropy(layer, x, target), inputs)
        return lambda: torch.autograd.grad(F.cross_entropy(layer(x), target), inputs)

    return {name: {form: partial(prepare, name, form) for form in forms} for name, forms in layers.items()}


def spread_of(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles of at least one value."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return Spread(statistics.median(ordered), ordered[quarter], ordered[-1 - quarter])


def alternate(
    forms: Mapping[str, Call], *, least: int, most: int, seconds: float = 0.0, clock: Clock, warm: bool = False
) -> dict[str, list[float]]:
    """Time functions in alternating rounds, so that other work on the machine slows all of them alike.

    There are `least` rounds, and then more until `seconds` have passed or `most` are done. Each function is called once
    before timing unless `warm`. Returns the seconds of each round, by name.
    """
    for form in () if warm else forms.values():
        form()
    times: dict[str, list[float]] = {name: [] for name in forms}
    start = clock()
    for done in range(most):
        if done >= least and clock() - start >= seconds:
            break
        for name, form in forms.items():
            begin = clock()
            form()
            times[name].append(clock() - begin)
    return times


def clock_of(device: torch.device, threads: int = 1) -> Clock:
    """Return the clock to measure with: CPU time for one thread, else wall time; on a GPU it synchronises first."""
    if device.type != "cuda":
        return time.process_time if threads == 1 else time.perf_counter

    def synchronised() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronised
