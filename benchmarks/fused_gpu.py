"""The fused loss on one GPU against every other way to the same gradients: time and peak memory.

Features (4096, 512) and weights in bfloat16, no bias, forward and backward. The rivals get a plain linear head, which
is less work than ours: torch eager, torch.compile, Liger-Kernel and cut-cross-entropy. The last by default leaves out
gradients that are small in bfloat16; it is timed with and without, and only the exact one is a rival. `on the folded
weight` is what using a rival underneath would cost: P applied to the whole weight, and its gradient taken back.

Every row is checked first, at fewer classes, against float64. A rival that cannot run is an error, unless it ran out
of memory: then the row says so. Packages that are not installed are looked for in --packages. Times are of steps as
Python launches them; those of the first four rows are also taken in a CUDA graph, where launching costs nothing.

    python benchmarks/fused_gpu.py --packages ../packages
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead
from maxsep.lab.engine.provenance import hardware, versions
from maxsep.losses import fused_cross_entropy

BATCH, WIDTH, CLASSES = 4096, 512, (100_000, 1_000_000)
SLOWER, MEMORY = 1.10, 1.05
OURS = "maxsep, fused"
IN_GRAPHS = (OURS, "plain, fused", "torch eager", "torch.compile")
RIVALS = ("torch eager", "torch.compile", "Liger-Kernel", "cut-cross-entropy")


def losses():
    """Every row: a function of head, features and labels; `plain` rows take an nn.Linear."""
    from cut_cross_entropy import linear_cross_entropy
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    def eager(head, x, y):
        return F.cross_entropy(head(x), y)

    def liger(weight, x, y):
        return LigerFusedLinearCrossEntropyFunction.apply(x, weight, y)[0]

    def cut(weight, x, y, **options):
        return linear_cross_entropy(x, weight, y, **options)

    return {
        OURS: fused_cross_entropy,
        "plain, fused": fused_cross_entropy,
        "torch eager": eager,
        "torch.compile": torch.compile(eager),
        "cut-cross-entropy": lambda head, x, y: cut(head.weight, x, y, filter_eps=None),
        "Liger-Kernel": lambda head, x, y: liger(head.weight, x, y),
        "cut-cross-entropy, small gradients left out": lambda head, x, y: cut(head.weight, x, y),
        "maxsep, Liger-Kernel on the folded weight": lambda head, x, y: liger(head.linear_form()[0], x, y),
        "maxsep, cut-cross-entropy on the folded weight": lambda head, x, y: cut(
            head.linear_form()[0], x, y, filter_eps=None
        ),
    }


def use(forward_tile=None, backward_tile=None, chunk_mb=None):
    """Take other tiles (rows, columns, inner, [flattened,] warps, stages) and chunks than the package's own."""
    from maxsep.ops.fused import chunks, triton_form

    names = ("ROWS", "COLS", "INNER", "num_warps", "num_stages")
    if forward_tile:
        triton_form.FORWARD_TILE = dict(zip(names, map(int, forward_tile.split(",")), strict=True))
    if backward_tile:
        *size, flat, warps, stages = map(int, backward_tile.split(","))
        triton_form.BACKWARD_TILE = dict(zip(names, (*size, warps, stages), strict=True)) | {"FLAT": bool(flat)}
    if chunk_mb:
        chunks.CHUNK_BYTES["cuda"] = chunk_mb << 20


def problem(name, num_classes, batch=BATCH, width=WIDTH, dtype=torch.bfloat16):
    torch.manual_seed(0)
    if name.startswith("maxsep"):
        head = MaxSeparationHead(width, num_classes, bias=False, device="cuda", dtype=dtype)
    else:
        head = nn.Linear(width, num_classes, bias=False, device="cuda", dtype=dtype)
    x = torch.randn(batch, width, device="cuda").to(dtype).requires_grad_()
    return head, x, torch.randint(num_classes, (batch,), device="cuda")


def check(name, loss, num_classes=10_007):
    """Compare value and gradients with float64; bfloat16 products are good to a percent."""
    head, x, y = problem(name, num_classes)
    value = loss(head, x, y)
    value.backward()
    wide = type(head)(WIDTH, num_classes, bias=False, device="cuda", dtype=torch.float64)
    wide.load_state_dict({**wide.state_dict(), "weight": head.weight.detach().double()})
    wide_x = x.detach().double().requires_grad_()
    F.cross_entropy(wide(wide_x), y).backward()
    exact = F.cross_entropy(wide(wide_x), y)
    found = {"loss": (abs(value.double() - exact) / exact).item()}
    for what, ours, theirs in (("x", x.grad, wide_x.grad), ("weight", head.weight.grad, wide.weight.grad)):
        found[what] = (torch.linalg.norm(ours.double() - theirs) / torch.linalg.norm(theirs)).item()
    return found


def measure(name, loss, num_classes, arguments):
    """Median and extremes of forward and backward in milliseconds, and the peak of memory beside weight and x."""
    head, x, y = problem(name, num_classes)

    def step():
        head.weight.grad = x.grad = None
        loss(head, x, y).backward()

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
    repeats = max(2, min(arguments.repeats, int(1 / seconds)))
    found = {
        **timed(step, repeats), "peak_bytes": peak, "peak_of_weights_inputs_and_their_gradients": peak / needed,
        "peak_of_weights_gradient_and_inputs": peak / (needed - x.nbytes),
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


def training_step(num_classes=10_000_000, width=128, batch=1024, dtype=torch.bfloat16, steps=5):
    """Whole steps with plain SGD in place: the loss must fall, and time and memory are told."""
    head, x, y = problem(OURS, num_classes, batch, width, dtype)
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
    assert values[-1] < values[0], f"training did not lower the loss: {values}"
    return {
        "num_classes": num_classes, "width": width, "batch": batch, "dtype": str(dtype), "losses": values,
        "ms": statistics.median(times[1:]), "least": min(times[1:]), "most": max(times[1:]),
        "peak_bytes": torch.cuda.max_memory_allocated(), "weight_bytes": head.weight.nbytes,
    }  # fmt: skip


def table(num_classes, rows, arguments, found):
    for name, loss in rows.items():
        if "folded" in name and num_classes > CLASSES[0]:
            continue  # the smaller size shows it
        try:
            found[name] = measure(name, loss, num_classes, arguments)
        except torch.cuda.OutOfMemoryError:
            found[name] = {"ms": None, "failed": "out of memory"}
        torch.cuda.empty_cache()
        row = found[name]
        told = f"{row['ms']:8.2f} ms  {row['peak_bytes'] / 1e6:9,.0f} MB" if row["ms"] else row["failed"]
        told += f"  in a graph {row['in_a_cuda_graph']['ms']:.2f} ms" if "in_a_cuda_graph" in row else ""
        print(f"{num_classes:>9,} classes  {name:<48} {told}", flush=True)
        yield


def verdict(found):
    best = min((found[name]["ms"], name) for name in RIVALS if found[name]["ms"])
    graphs = {name: found[name]["in_a_cuda_graph"]["ms"] for name in IN_GRAPHS if found[name]["ms"]}
    ratio, memory = found[OURS]["ms"] / best[0], found[OURS]["peak_of_weights_inputs_and_their_gradients"]
    in_graph = graphs[OURS] / min(best[0], *(graphs[name] for name in graphs if name in RIVALS))
    told = {"fastest_rival": best[1], "time_to_fastest_rival": ratio, "time_met": ratio <= SLOWER}
    told |= {"time_in_graphs": in_graph, "time_in_graphs_met": in_graph <= SLOWER}
    told |= {"memory": memory, "memory_met": memory <= MEMORY}
    print(
        f"  {ratio:.2f} times {best[1]} (at most {SLOWER}), {in_graph:.2f} in graphs, "
        f"{memory:.3f} of the memory needed (at most {MEMORY})",
        flush=True,
    )
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=Path, help="folder with liger_kernel and cut_cross_entropy")
    parser.add_argument("--classes", type=int, nargs="+", default=CLASSES)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--forward-tile", help="rows,columns,inner,warps,stages")
    parser.add_argument("--backward-tile", help="rows,columns,inner,flattened,warps,stages")
    parser.add_argument("--chunk-mb", type=int)
    parser.add_argument("--out", type=Path, default=Path("results/fused_gpu.json"))
    arguments = parser.parse_args()
    use(arguments.forward_tile, arguments.backward_tile, arguments.chunk_mb)
    if arguments.packages:
        sys.path.insert(0, str(arguments.packages))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    about = {"command": f"python {' '.join(sys.argv)}", "date": time.strftime("%Y-%m-%d"), "commit": commit}
    about |= {"versions": versions() | {name: version(name) for name in ("liger-kernel", "cut-cross-entropy")}}
    about |= {"hardware": hardware(torch.device("cuda"), 1), "batch": BATCH, "width": WIDTH, "dtype": "bfloat16"}
    rows, report = losses(), {"about": about, "errors_against_float64": {}, "results": {}, "verdicts": {}}

    def keep():
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")

    for name, loss in rows.items():
        errors = report["errors_against_float64"][name] = check(name, loss)
        print(f"{name:<48} " + ", ".join(f"{what} {error:.1e}" for what, error in errors.items()), flush=True)
        assert "left out" in name or max(errors.values()) < 0.02, f"{name} is wrong: {errors}"
    step = report["step"] = training_step()
    print(f"one step at {step['num_classes']:,} classes: {step['ms']:.0f} ms, {step['peak_bytes'] / 1e9:.1f} GB")
    torch.cuda.empty_cache()
    for num_classes in arguments.classes:
        for _ in table(num_classes, rows, arguments, report["results"].setdefault(num_classes, {})):
            keep()
        report["verdicts"][num_classes] = verdict(report["results"][num_classes])
        keep()


if __name__ == "__main__":
    main()
