"""Time construction, product, head and fused loss on this machine, against the dense matrix and nn.Linear."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead, separate, simplex
from maxsep.losses import fused_cross_entropy
from maxsep.simplex import coefficients

DENSE_LIMIT = 10_000
"""Most classes of the dense matrix, which takes 400 MB there."""
ROUNDS, MOST_ROUNDS, SECONDS = 3, 50, 0.25
"""Least and most rounds of a comparison, and the seconds after which no further round starts."""

Clock = Callable[[], float]
Prepare = Callable[[], Callable[[], object]]
"""Allocates the tensors of one form and returns the function to time."""


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One form of one operation at one number of classes; `ratio` is its time over nn.Linear's, round by round."""

    operation: str
    classes: int
    form: str
    milliseconds: Spread | None = None
    ratio: Spread | None = None
    rounds: int = 0
    problem: str | None = None
    failed: bool = False
    """Whether the problem is an error rather than a lack of memory."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a measurement."""

    classes: int
    batch: int
    features: int
    device: torch.device

    def samples(self, width: int, *, grad: bool = True) -> Tensor:
        """Return random samples (batch, width)."""
        return torch.randn(self.batch, width, device=self.device, requires_grad=grad)

    def linear(self, outputs: int) -> nn.Linear:
        """Return a layer (features, outputs)."""
        return nn.Linear(self.features, outputs, device=self.device)


def measure(
    classes: Sequence[int],
    *,
    batch: int = 128,
    features: int = 512,
    device: torch.device | str = "cpu",
    seconds: float = SECONDS,
    on_start: Callable[[str, int], None] = lambda operation, classes: None,
) -> list[Row]:
    """Measure every operation at every number of classes.

    Args:
        classes: Numbers of classes, each at least 2.
        batch: Samples per batch.
        features: Width of the features.
        device: Device to measure. On a CPU, call torch.set_num_threads(1) first unless threads are the question.
        seconds: Time for each operation and size, after the first three rounds.
        on_start: Called with each operation and size before it is measured.

    >>> rows = measure([3], batch=2, features=4, seconds=0.0)
    >>> [(row.form, row.rounds) for row in rows if row.operation == "product"]
    [('maxsep', 3), ('dense', 3), ('plain', 3)]
    """
    rows: list[Row] = []
    for count in classes:
        sizes = Sizes(count, batch, features, torch.device(device))
        for operation, forms in OPERATIONS.items():
            on_start(operation, count)
            rows += _compare(operation, sizes, forms(sizes), seconds)
    return rows


def _compare(operation: str, sizes: Sizes, forms: dict[str, Prepare], seconds: float) -> list[Row]:
    ready: dict[str, Callable[[], object]] = {}
    rows: dict[str, Row] = {}
    for form, prepare in forms.items():
        row = partial(Row, operation, sizes.classes, form)
        if form == "dense" and sizes.classes > DENSE_LIMIT:
            rows[form] = row(problem=f"more than {DENSE_LIMIT:,} classes")
            continue
        try:
            function = prepare()
            function()
        except (torch.OutOfMemoryError, MemoryError):
            rows[form] = row(problem="out of memory")
        except Exception as error:  # the other forms are still measured
            rows[form] = row(problem=f"{type(error).__name__}: {' '.join(str(error).split())}", failed=True)
        else:
            ready[form] = function
    clock = clock_of(sizes.device, torch.get_num_threads())
    times = alternate(ready, least=ROUNDS, most=MOST_ROUNDS, seconds=seconds, clock=clock, warm=True) if ready else {}
    for form, values in times.items():
        ratio = spread_of([a / b for a, b in zip(values, times["plain"], strict=True)]) if "plain" in times else None
        milliseconds = spread_of([1e3 * value for value in values])
        rows[form] = Row(operation, sizes.classes, form, milliseconds, ratio, len(values))
    return [rows[form] for form in forms]


def _construction(sizes: Sizes) -> dict[str, Prepare]:
    return {
        "maxsep": lambda: lambda: coefficients(sizes.classes, device=sizes.device),
        "dense": lambda: lambda: simplex(sizes.classes, device=sizes.device),
        "plain": lambda: lambda: sizes.linear(sizes.classes),
    }


def _product(sizes: Sizes) -> dict[str, Prepare]:
    """C-1 outputs to C logits, forward and backward; plain is the layer from features to logits."""

    def step(logits: Callable[[Tensor], Tensor], width: int, parameters: Iterable[Tensor] = ()) -> Callable[[], object]:
        x, grad = sizes.samples(width), sizes.samples(sizes.classes, grad=False)
        return lambda: torch.autograd.grad(logits(x), [x, *parameters], grad)

    def dense() -> Callable[[], object]:
        matrix = simplex(sizes.classes, device=sizes.device)
        return step(lambda x: x @ matrix, sizes.classes - 1)

    def plain() -> Callable[[], object]:
        layer = sizes.linear(sizes.classes)
        return step(layer, sizes.features, list(layer.parameters()))

    return {"maxsep": lambda: step(separate, sizes.classes - 1), "dense": dense, "plain": plain}


def _head(sizes: Sizes) -> dict[str, Prepare]:
    """Features to the cross-entropy, forward and backward, all gradients; fused never holds the logits."""

    def step(layer: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], object]:
        x, y = sizes.samples(sizes.features), torch.randint(sizes.classes, (sizes.batch,), device=sizes.device)
        return lambda: torch.autograd.grad(loss(x, y), [x, *layer.parameters()])

    def head() -> MaxSeparationHead:
        return MaxSeparationHead(sizes.features, sizes.classes, device=sizes.device)

    def maxsep() -> Callable[[], object]:
        layer = head()
        return step(layer, lambda x, y: F.cross_entropy(layer(x), y))

    def fused() -> Callable[[], object]:
        layer = head()
        return step(layer, lambda x, y: fused_cross_entropy(layer, x, y))

    def dense() -> Callable[[], object]:
        layer, matrix = sizes.linear(sizes.classes - 1), simplex(sizes.classes, device=sizes.device)
        return step(layer, lambda x, y: F.cross_entropy(layer(x) @ matrix, y))

    def plain() -> Callable[[], object]:
        layer = sizes.linear(sizes.classes)
        return step(layer, lambda x, y: F.cross_entropy(layer(x), y))

    return {"maxsep": maxsep, "fused": fused, "dense": dense, "plain": plain}


OPERATIONS = {"construction": _construction, "product": _product, "head": _head}


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
    """Time functions in alternating rounds, so that other work on the machine slows all of them alike.

    Args:
        forms: Functions by name; each is called once before timing unless `warm`.
        least: Rounds in any case.
        most: Rounds at most.
        seconds: After the least rounds, go on until this time has passed.
        clock: On a GPU it must wait for the device (`clock_of`).
        warm: Whether every function has been called already.

    Returns:
        The seconds of each round, by name.
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
    """Return the clock to measure with: CPU time for one thread, else wall time; on a GPU it synchronises first.

    >>> clock_of(torch.device("cpu")) is time.process_time
    True
    """
    if device.type != "cuda":
        return time.process_time if threads == 1 else time.perf_counter

    def synchronised() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronised
