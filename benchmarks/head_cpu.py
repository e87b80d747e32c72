"""The head on a CPU: scan against the dense matrix, whole head against nn.Linear, construction against the recursion.

Prints a table, checks every figure against its target, and writes results/head_cpu.json. Times are process CPU time
with one thread, medians of alternating rounds, compared only as ratios inside one run: other work on the machine
slows both sides alike.

    python benchmarks/head_cpu.py
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from maxsep.ops.dispatch import _dense_is_faster
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead, __version__, separate, simplex
from maxsep.lab.bench import alternate, spread_of
from maxsep.lab.engine.provenance import hardware
from maxsep.simplex import coefficients

BATCH, FEATURES = 128, 512


def cpu_seconds(function):
    start = time.process_time()
    function()
    return time.process_time() - start


def compare(ours, theirs, rounds):
    """Median seconds of both, and the median and spread of their ratio over alternating rounds."""
    times = alternate({"ours": ours, "theirs": theirs}, least=rounds, most=rounds, clock=time.process_time)
    ratio = spread_of([b / a for a, b in zip(times["ours"], times["theirs"], strict=True)])
    return {
        "ours_ms": 1e3 * statistics.median(times["ours"]),
        "theirs_ms": 1e3 * statistics.median(times["theirs"]),
        "ratio": ratio.median,
        "ratio_quartiles": [ratio.low, ratio.high],
        "rounds": rounds,
    }


def product(num_classes, rounds):
    x = torch.randn(BATCH, num_classes - 1, requires_grad=True)
    g, matrix = torch.randn(BATCH, num_classes), simplex(num_classes)

    def scan():
        torch.autograd.grad(separate(x, impl="scan"), x, g)

    def dense():
        torch.autograd.grad(x @ matrix, x, g)

    return compare(scan, dense, rounds)


def whole_head(num_classes, rounds):
    x = torch.randn(BATCH, FEATURES, requires_grad=True)
    y = torch.randint(num_classes, (BATCH,))
    ours, plain = MaxSeparationHead(FEATURES, num_classes), nn.Linear(FEATURES, num_classes)

    def step(head):
        loss = F.cross_entropy(head(x), y)
        torch.autograd.grad(loss, [x, head.weight, head.bias])

    result = compare(lambda: step(ours), lambda: step(plain), rounds)
    result["overhead"] = 1 / result["ratio"] - 1
    return result


def sides(samples, features, num_classes, rounds):
    """The matrix on the weight against the matrix on the outputs, where the weight is the smaller of the two."""
    x, g = torch.randn(samples, features, requires_grad=True), torch.randn(samples, num_classes)
    head = MaxSeparationHead(features, num_classes)
    wanted = [x, head.weight, head.bias]

    def on_outputs():
        torch.autograd.grad(separate(head.features(x), impl="scan"), wanted, g)

    return compare(lambda: torch.autograd.grad(head(x), wanted, g), on_outputs, rounds)


def literal_recursion(k):
    if k == 1:
        return torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    smaller = literal_recursion(k - 1)
    matrix = torch.zeros(k, k + 1, dtype=torch.float64)
    matrix[0, 0], matrix[0, 1:] = 1, -1 / k
    matrix[1:, 1:] = math.sqrt(1 - 1 / k**2) * smaller
    return matrix


def construction(num_classes=3_000):
    sys.setrecursionlimit(20_000)
    simplex(num_classes)
    ours = statistics.median(cpu_seconds(lambda: simplex(num_classes, dtype=torch.float64)) for _ in range(9))
    theirs = cpu_seconds(lambda: literal_recursion(num_classes - 1))
    return {"ours_ms": 1e3 * ours, "theirs_ms": 1e3 * theirs, "ratio": theirs / ours, "rounds": 1}


def million_classes():
    """Peak memory of forward and backward in a process of its own, and what importing torch takes of it.

    Linux hands the mark that getrusage reads on to the processes one starts; that of the address space begins anew.
    """
    code = (
        "import re, torch; from maxsep import separate; torch.set_num_threads(1)\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) / 2**20\n"
        "before = peak(); x = torch.randn(32, 999_999, requires_grad=True)\n"
        "separate(x).square().sum().backward(); print(before, peak())"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    return {"before_gib": float(told[0]), "peak_gib": float(told[1])}


def measure(quick):
    rounds = 5 if quick else 21
    results = {f"product C={c}": product(c, n) for c, n in ((1_000, rounds), (10_000, 3 if quick else 7))}
    crossing = {c: product(c, rounds)["ratio"] for c in (50, 100, 150, 200, 250, 300, 400)}
    for c in (1_000, 10_000, 100_000):
        results[f"head C={c}"] = whole_head(c, rounds if c < 100_000 else max(5, rounds // 3))
    results["weight side B=1024 D=64 C=1000"] = sides(1024, 64, 1_000, rounds)
    results["weight side B=2048 D=512 C=1000"] = sides(2048, 512, 1_000, max(3, rounds // 3))
    results["construction C=3000"] = construction()
    results["coefficients C=10000000"] = {"ours_ms": 1e3 * cpu_seconds(lambda: coefficients(10_000_000))}
    results["memory C=1000000"] = million_classes()
    return results, crossing


def targets(results, crossing):
    yield "scan over dense at C = 1,000", results["product C=1000"]["ratio"], ">=", 4
    yield "scan over dense at C = 10,000", results["product C=10000"]["ratio"], ">=", 40
    for c in (1_000, 10_000, 100_000):
        yield f"head overhead at C = {c:,}", results[f"head C={c}"]["overhead"], "<=", 0.25
    for name in ("B=1024 D=64 C=1000", "B=2048 D=512 C=1000"):
        yield (
            f"matrix on the weight over matrix on the outputs, {name}",
            results[f"weight side {name}"]["ratio"],
            ">=",
            1,
        )
    yield "construction over the recursion at C = 3,000", results["construction C=3000"]["ratio"], ">=", 500
    yield "coefficients for C = 10,000,000, seconds", results["coefficients C=10000000"]["ours_ms"] / 1e3, "<=", 1
    yield "peak memory at C = 1,000,000, batch 32, GiB", results["memory C=1000000"]["peak_gib"], "<=", 2
    for c, ratio in crossing.items():  # what `auto` takes is never much slower than what it leaves
        chosen = 1 / ratio if _dense_is_faster(torch.empty(BATCH, c - 1)) else ratio
        yield f"auto against the other form at C = {c}, times faster", chosen, ">=", 0.75


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, nothing written")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results, crossing = measure(arguments.quick)
    failed = 0
    for name, value, relation, target in targets(results, crossing):
        low, high = {">=": (target, math.inf), "<=": (-math.inf, target)}.get(relation, target)
        met = low <= value <= high
        failed += not met
        print(f"{'ok  ' if met else 'MISS'}  {name}: {value:.3g} (target {relation} {target})")
    print("scan over dense by classes:", "  ".join(f"{c}: {ratio:.2f}" for c, ratio in crossing.items()))
    if not arguments.quick:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        about = {
            "command": "python benchmarks/head_cpu.py",
            "date": time.strftime("%Y-%m-%d"),
            "cpu": hardware(torch.device("cpu"))["cpu"],
            "threads": 1,
            "versions": {"maxsep": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "commit": commit,
        }
        record = {"about": about, "results": results, "scan_over_dense": crossing}
        target = Path(__file__).parent.parent / "results" / "head_cpu.json"
        target.write_text(json.dumps(record, indent=1) + "\n")
        print("written to", target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
