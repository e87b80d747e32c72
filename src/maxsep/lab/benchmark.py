"""Time product, head and fused loss on this machine, against the dense matrix and nn.Linear."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead, separate, simplex
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
class Row:
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
    classes: Sequence[int],
    *,
    batch: int = 128,
    features: int = 512,
    device: torch.device | str = "cpu",
    seconds: float = 0.25,
    on_start: Callable[[str, int], None] = lambda operation, classes: None,
) -> list[Row]:
    """Measure every operation at every number of classes, in 3 to 50 rounds.

    Args:
        classes: Numbers of classes, each at least 2.
        batch: Samples per batch.
        features: Width of the features.
        device: Device to measure. On a CPU, call torch.set_num_threads(1) first unless threads are the question.
        seconds: Time for each operation and size, after the first three rounds.
        on_start: Called with each operation and size before it is measured.

    >>> rows = measure([3], batch=2, features=4, seconds=0.0)
    >>> [row.form for row in rows if row.operation == "product"]
    ['maxsep', 'dense', 'plain']
    """
    rows: list[Row] = []
    for count in classes:
        for operation, forms in operations(count, batch, features, torch.device(device)).items():
            on_start(operation, count)
            rows += _compare(operation, count, forms, seconds, clock_of(torch.device(device), torch.get_num_threads()))
    return rows


def _compare(operation: str, classes: int, forms: Forms, seconds: float, clock: Clock) -> list[Row]:
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
            rows.append(Row(operation, classes, form, problem=problem, failed=failed))
            continue
        ratio = [a / b for a, b in zip(times[form], times["plain"], strict=True)] if "plain" in times else []
        milliseconds = spread_of([1e3 * value for value in times[form]])
        rows.append(Row(operation, classes, form, milliseconds, spread_of(ratio) if ratio else None))
    return rows


def operations(classes: int, batch: int, features: int, device: torch.device) -> dict[str, Forms]:
    """Return the forms of every operation; `plain` is nn.Linear from the features to the logits.

    `product` maps C-1 outputs to C logits, forward and backward. `head` goes from the features to the cross-entropy,
    forward and backward with all gradients; `fused` never holds the logits.
    """

    def linear(outputs: int) -> nn.Linear:
        return nn.Linear(features, outputs, device=device)

    def product(logits: Callable[[Tensor], Tensor], width: int, layer: nn.Module | None = None) -> Call:
        x = torch.randn(batch, width, device=device, requires_grad=True)
        grad, parameters = torch.randn(batch, classes, device=device), list(layer.parameters()) if layer else []
        return lambda: torch.autograd.grad(logits(x), [x, *parameters], grad)

    def dense_product() -> Call:
        p = simplex(classes, device=device)
        return product(lambda x: x @ p, classes - 1)

    def plain_product() -> Call:
        layer = linear(classes)
        return product(layer, features, layer)

    def head(layer: nn.Module, logits: Callable[[Tensor], Tensor] | None = None) -> Call:
        x = torch.randn(batch, features, device=device, requires_grad=True)
        y, forward = torch.randint(classes, (batch,), device=device), logits or layer
        return lambda: torch.autograd.grad(F.cross_entropy(forward(x), y), [x, *layer.parameters()])

    def fused_head() -> Call:
        layer = MaxSeparationHead(features, classes, device=device)
        x = torch.randn(batch, features, device=device, requires_grad=True)
        y = torch.randint(classes, (batch,), device=device)
        return lambda: torch.autograd.grad(fused_cross_entropy(layer, x, y), [x, *layer.parameters()])

    def dense_head() -> Call:
        layer, p = linear(classes - 1), simplex(classes, device=device)
        return head(layer, lambda x: layer(x) @ p)

    return {
        "product": {
            "maxsep": lambda: product(separate, classes - 1),
            "dense": dense_product,
            "plain": plain_product,
        },
        "head": {
            "maxsep": lambda: head(MaxSeparationHead(features, classes, device=device)),
            "fused": fused_head,
            "dense": dense_head,
            "plain": lambda: head(linear(classes)),
        },
    }


def spread_of(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles of at least one value.

    >>> spread_of([1.0, 2.0, 3.0, 4.0, 9.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
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
