"""The fused loss on one GPU against every other way to the same gradients: time and peak memory.

Features (4096, 512) and weights in bfloat16, no bias, forward and backward. Ours is measured and judged in both bases
of the simplex; the record also says how much faster the Householder one is, which streams a plain weight and one class
more. The rivals get a plain linear head, which is less work than ours: torch eager, torch.compile, Liger-Kernel and
cut-cross-entropy. The last by default leaves out gradients that are small in bfloat16; it is timed with and without,
and the one that does is a target of its own. `on the folded weight` is what using a rival underneath would cost: P
applied to the whole weight, and its gradient taken back.

Memory is judged twice: over weights, inputs and the gradients of both, all of which any training holds, and over the
same without the gradient of the inputs. `kept_bytes` is what stays between steps and is counted in neither: cuBLAS has
a workspace (32 MiB on Hopper) for each thread and stream that asks it for a product, and our recordings are one more.

Every row is checked first, at fewer classes, against float64. A rival that is wrong or cannot run makes the exit code
1, as a missed target does, but the other rows are still measured; one that ran out of memory is a row that says so.
Packages that are not installed are looked for in --packages. Times are of steps as Python launches them; those of the
first seven rows are also taken in a CUDA graph, where launching costs nothing; both are judged. In two rows ours takes
chunks that are larger than the promise of memory allows: what fewer launches would be worth.

    python benchmarks/fused_gpu.py --packages ../packages
"""

from __future__ import annotations

import argparse
import copy
import functools
import statistics
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from record import Record, say
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead
from maxsep.losses import fused_cross_entropy
from maxsep.ops import recording

BATCH, WIDTH, CLASSES = 4096, 512, (100_000, 1_000_000)
SLOWER, MEMORY = 1.10, 1.05
OURS = "maxsep, fused"
HOUSEHOLDER = "maxsep, Householder, fused"
AT_A_TIME = ", 16,384 classes at a time"
LARGE, LARGE_HOUSEHOLDER = OURS + AT_A_TIME, HOUSEHOLDER + AT_A_TIME
IN_GRAPHS = (OURS, HOUSEHOLDER, LARGE, LARGE_HOUSEHOLDER, "plain, fused", "torch eager", "torch.compile")
TILE = ("ROWS", "COLS", "INNER", "num_warps", "num_stages")
STREAM = ("ROWS", "COLS")
RIVALS = ("torch eager", "torch.compile", "Liger-Kernel", "cut-cross-entropy")
INEXACT = "cut-cross-entropy, small gradients left out"


def eager(head, x, y):
    return F.cross_entropy(head(x), y)


def liger(weight, x, y):
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    return LigerFusedLinearCrossEntropyFunction.apply(x, weight, y)[0]


def cut(weight, x, y, **options):
    from cut_cross_entropy import linear_cross_entropy

    return linear_cross_entropy(x, weight, y, **options)


def losses():
    """Every row: a function of head, features and labels; `maxsep` rows take our head, all others an nn.Linear."""
    return {
        OURS: fused_cross_entropy,
        HOUSEHOLDER: fused_cross_entropy,
        LARGE: functools.partial(fused_cross_entropy, chunk_size=16_384),
        LARGE_HOUSEHOLDER: functools.partial(fused_cross_entropy, chunk_size=16_384),
        "plain, fused": fused_cross_entropy,
        "torch eager": eager,
        "torch.compile": torch.compile(eager),
        "cut-cross-entropy": lambda head, x, y: cut(head.weight, x, y, filter_eps=None),
        "Liger-Kernel": lambda head, x, y: liger(head.weight, x, y),
        INEXACT: lambda head, x, y: cut(head.weight, x, y),
        "maxsep, Liger-Kernel on the folded weight": lambda head, x, y: liger(head.linear_form()[0], x, y),
        "maxsep, cut-cross-entropy on the folded weight": lambda head, x, y: cut(
            head.linear_form()[0], x, y, filter_eps=None
        ),
    }


def use(forward_tile=None, backward_tile=None, stream=None, chunk_mb=None, fold_tile=None):
    """Take other tiles (numbers in the order of the names above) and chunks than the package's own."""
    from maxsep.ops.fused import chunks, joined, tile_form, triton_form

    if forward_tile or backward_tile:
        joined._hopper_form = lambda device: None  # the kernels for Hopper have no tiles to choose
    if forward_tile:
        tile_form.FORWARD_TILE = dict(zip(TILE, map(int, forward_tile.split(",")), strict=True))
    if backward_tile:
        tile_form.BACKWARD_TILE = dict(zip(TILE, map(int, backward_tile.split(",")), strict=True))
    if stream:
        triton_form.STREAM = triton_form.STREAM | dict(zip(STREAM, map(int, stream.split(",")), strict=True))
    if fold_tile:
        triton_form.fold_tile = lambda *given: getattr(triton_form, fold_tile)
    if chunk_mb:
        chunks.CHUNK_BYTES["cuda"] = chunk_mb << 20


def problem(name, num_classes, batch=BATCH, width=WIDTH, dtype=torch.bfloat16):
    torch.manual_seed(0)
    if name.startswith("maxsep"):
        basis = "householder" if name.startswith(HOUSEHOLDER) else "recursive"
        head = MaxSeparationHead(width, num_classes, bias=False, basis=basis, device="cuda", dtype=dtype)
    else:
        head = nn.Linear(width, num_classes, bias=False, device="cuda", dtype=dtype)
    x = torch.randn(batch, width, device="cuda").to(dtype).requires_grad_()
    return head, x, torch.randint(num_classes, (batch,), device="cuda")


def check(name, loss, num_classes=50_021):
    """Compare value and gradients with float64; bfloat16 products are good to a percent."""
    head, x, y = problem(name, num_classes)
    value = loss(head, x, y)
    value.backward()
    wide = copy.deepcopy(head).double()
    wide_x = x.detach().double().requires_grad_()
    exact = F.cross_entropy(wide(wide_x), y)
    exact.backward()
    found = {"loss": (abs(value.double() - exact) / exact).item()}
    for what, ours, theirs in (("x", x.grad, wide_x.grad), ("weight", head.weight.grad, wide.weight.grad)):
        found[what] = (torch.linalg.norm(ours.double() - theirs) / torch.linalg.norm(theirs)).item()
    say(" ".join([name, *(f"{what} {error:.0e}" for what, error in found.items())]))
    if "left out" not in name and not max(found.values()) < 0.02:
        raise ArithmeticError(f"WRONG: {name} is off by {found}")
    return found


def measure(name, loss, num_classes, repeats):
    """Median and extremes of forward and backward in milliseconds, and the peak of memory beside weight and x.

    The first steps are not measured: they compile, and record what repeats itself. What they leave behind is told.
    """
    torch._C._cuda_clearCublasWorkspaces()  # each row shows its own
    recording.recordings_of.cache_clear()
    head, x, y = problem(name, num_classes)
    alone = torch.cuda.memory_allocated()

    def step():
        head.weight.grad = x.grad = None
        loss(head, x, y).backward()

    for _ in range(3):
        step()
    head.weight.grad = x.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    given, needed = x.nbytes + head.weight.nbytes + y.nbytes, 2 * (x.nbytes + head.weight.nbytes) + y.nbytes
    peak = torch.cuda.max_memory_allocated() - before + given
    repeats = max(3, min(repeats, int(1 / seconds)))
    found = {
        **timed(step, repeats), "peak_bytes": peak, "peak_of_weights_inputs_and_their_gradients": peak / needed,
        "peak_of_weights_gradient_and_inputs": peak / (needed - x.nbytes), "kept_bytes": before - alone,
        "recordings": recording.recordings_of(x.device).count,
    }  # fmt: skip
    if name in IN_GRAPHS:
        found["in_a_cuda_graph"] = timed(captured(step).replay, repeats)
    return found


def timed(step, repeats):
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        stop.record()
        times.append((start, stop))
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(stop) for start, stop in times)
    return {"ms": statistics.median(times), "least": times[0], "most": times[-1], "repeats": repeats}


def captured(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    return graph


def training_step(name=OURS, num_classes=10_000_000, width=128, batch=1024, dtype=torch.bfloat16, steps=9):
    """Whole steps with plain SGD in place: the loss must fall, and time and memory are told."""
    head, x, y = problem(name, num_classes, batch, width, dtype)
    optimiser = torch.optim.SGD(head.parameters(), lr=100.0, foreach=False)
    torch.cuda.reset_peak_memory_stats()
    values, times = [], []
    for _ in range(steps):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        optimiser.zero_grad()
        x.grad = None
        value = fused_cross_entropy(head, x, y)
        value.backward()
        optimiser.step()
        stop.record()
        torch.cuda.synchronize()
        values.append(value.item())
        times.append(start.elapsed_time(stop))
    if not values[-1] < values[0]:
        raise ArithmeticError(f"training did not lower the loss: {values}")
    times = times[steps // 2 :]  # the first compile, and record what repeats itself
    middle = statistics.median(times)
    say(f"{name}: a step at {num_classes:,} classes: {middle:.0f} ms, loss from {values[0]} to {values[-1]}")
    return {
        "num_classes": num_classes, "width": width, "batch": batch, "dtype": str(dtype), "losses": values,
        "ms": middle, "least": min(times), "most": max(times),
        "peak_bytes": torch.cuda.max_memory_allocated(), "weight_bytes": head.weight.nbytes,
    }  # fmt: skip


def row(name, loss, num_classes, repeats):
    """Measure a row, or say that it does not fit into memory."""
    try:
        found = measure(name, loss, num_classes, repeats)
    except torch.cuda.OutOfMemoryError:
        found = {"ms": None, "problem": "out of memory"}
    told = f"{found['ms']:8.2f} ms  {found['peak_bytes'] / 1e6:9,.0f} MB" if found["ms"] else found["problem"]
    told += f", {found['in_a_cuda_graph']['ms']:.2f} in a graph" if "in_a_cuda_graph" in found else ""
    say(f"{name:<46} {told}")
    return found


def judge(num_classes, record):
    """Compare ours with the fastest rival that ran; launched from Python, and with both in graphs where they can."""
    part = f"C={num_classes}"
    found = {name: row for name, row in record.results.get(part, {}).items() if row["ms"]}
    for name in (OURS, HOUSEHOLDER, *RIVALS, INEXACT):
        if name not in record.results.get(part, {}):
            record.failed.setdefault(f"{part}: {name}", "did not run")
    for ours in (OURS, HOUSEHOLDER):
        if ours in found:
            judge_times(ours, found, part, record)
            judge_memory(ours, found[ours], part, record)


def judge_times(ours, found, part, record):
    times = {"": lambda name: found[name]["ms"]}
    times[" in CUDA graphs"] = lambda name: found[name].get("in_a_cuda_graph", found[name])["ms"]
    rivals = [name for name in RIVALS if name in found]
    for how, time_of in times.items():
        if rivals:
            best = min(rivals, key=time_of)
            record.target(f"{ours}: time{how} over {best}, {part}", time_of(ours) / time_of(best), most=SLOWER)
    if INEXACT in found:
        record.target(f"{ours}: time over {INEXACT}, {part}", found[ours]["ms"] / found[INEXACT]["ms"], most=SLOWER)


def judge_memory(ours, row, part, record):
    for what, key in (
        ("weights, inputs and their gradients", "peak_of_weights_inputs_and_their_gradients"),
        ("weights, their gradient and inputs", "peak_of_weights_gradient_and_inputs"),
    ):
        record.target(f"{ours}: peak memory over {what}, {part}", row[key], most=MEMORY)


def compare_bases(num_classes, record):
    """Say, and keep, what part of the time the Householder basis saves, from Python and in CUDA graphs."""
    found = record.results.get(f"C={num_classes}", {})
    if any(not found.get(name, {}).get("ms") for name in (OURS, HOUSEHOLDER)):
        return
    times = {name: (found[name]["ms"], found[name]["in_a_cuda_graph"]["ms"]) for name in (OURS, HOUSEHOLDER)}
    eager, graph = (1 - new / old for old, new in zip(times[OURS], times[HOUSEHOLDER], strict=True))
    saved = record.about.setdefault("householder_faster_by", {})
    saved[f"C={num_classes}"] = {"eager": eager, "in_a_cuda_graph": graph}
    record.write()
    say(f"C={num_classes}: the Householder basis takes {eager:.1%} less time, {graph:.1%} less in a graph")


def versions_of(*packages):
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=Path, help="folder with liger_kernel and cut_cross_entropy")
    parser.add_argument("--classes", type=int, nargs="+", default=CLASSES)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--forward-tile", help=",".join(TILE))
    parser.add_argument("--backward-tile", help=",".join(TILE))
    parser.add_argument("--stream", help=",".join(STREAM))
    parser.add_argument("--chunk-mb", type=int)
    parser.add_argument("--out", type=Path, default=Path("results/fused_gpu.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    use(arguments.forward_tile, arguments.backward_tile, arguments.stream, arguments.chunk_mb)
    if arguments.packages:
        sys.path.insert(0, str(arguments.packages))
    packages = versions_of("liger-kernel", "cut-cross-entropy")
    record = Record(arguments.out, packages, batch=BATCH, width=WIDTH, dtype="bfloat16")
    rows = losses()
    right = [name for name, loss in rows.items() if record.run("errors", name, functools.partial(check, name, loss))]
    record.run("step", "C=10000000", training_step)
    record.run("step", "C=10000000, Householder", functools.partial(training_step, HOUSEHOLDER))
    for num_classes in arguments.classes:
        for name in right:
            if "folded" not in name or num_classes == CLASSES[0]:  # the smaller size shows it
                measured = functools.partial(row, name, rows[name], num_classes, arguments.repeats)
                record.run(f"C={num_classes}", name, measured)
        judge(num_classes, record)
        compare_bases(num_classes, record)
    return record.end()


if __name__ == "__main__":
    raise SystemExit(main())
