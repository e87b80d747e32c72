"""The head on a CPU: `separate` against the dense matrix, head and loss against nn.Linear, memory of losses.

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
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead, __version__, separate, simplex
from maxsep.lab.benchmark import alternate, spread_of
from maxsep.lab.environment import hardware
from maxsep.losses import fused_cross_entropy
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
        torch.autograd.grad(separate(x), x, g)

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


def fused(num_classes=20_000, features=256, rounds=9):
    """Compare the fused loss with F.cross_entropy of the logits."""
    x, y = torch.randn(BATCH, features, requires_grad=True), torch.randint(num_classes, (BATCH,))
    head = MaxSeparationHead(features, num_classes)
    wanted = [x, *head.parameters()]
    result = compare(
        lambda: torch.autograd.grad(fused_cross_entropy(head, x, y), wanted),
        lambda: torch.autograd.grad(F.cross_entropy(head(x), y), wanted),
        rounds,
    )
    return result | {"over_logits": 1 / result["ratio"]}


LOSSES = {
    "maxsep": "fused_cross_entropy(MaxSeparationHead(128, C), x, y)",
    "nn.Linear, fused": "fused_cross_entropy(nn.Linear(128, C), x, y)",
    "F.linear_cross_entropy": "F.linear_cross_entropy(x, nn.Parameter(torch.randn(C, 128)), y)",
    "F.linear_cross_entropy, chunked": (
        "F.linear_cross_entropy(x, nn.Parameter(torch.randn(C, 128)), y, options=nn.LinearCrossEntropyOptions())"
    ),
    "F.cross_entropy": "F.cross_entropy(nn.Linear(128, C)(x), y)",
}


def memory_of_losses():
    """Return seconds and peak MiB beyond weights, inputs and gradients at 1,024 x 128 x 50,000, each in a process."""
    found = {}
    for name, loss in LOSSES.items():
        code = (
            "import re, time, torch; from torch import nn; from torch.nn import functional as F\n"
            "from maxsep import MaxSeparationHead; from maxsep.losses import fused_cross_entropy\n"
            "torch.set_num_threads(1); labels = torch.randint(50_000, (1024,))\n"
            "x = torch.randn(1024, 128, requires_grad=True)\n"
            "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) / 2**10\n"
            "for C in (9, 50_000):  # the first call imports modules\n"
            "    y = labels % C; before = peak(); start = time.process_time()\n"
            f"    {loss}.backward()\n"
            "print(time.process_time() - start, peak() - before)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if done.returncode:
            found[name] = {"problem": done.stderr.strip().splitlines()[-1]}
        else:
            seconds, mib = map(float, done.stdout.split())
            found[name] = {"seconds": seconds, "mib_beyond_weight_and_gradient": mib - 2 * 50_000 * 128 * 4 / 2**20}
    return found


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
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    return {"before_gib": float(printed[0]), "peak_gib": float(printed[1])}


def measure(quick):
    rounds = 5 if quick else 21
    results = {f"product C={c}": product(c, n) for c, n in ((1_000, rounds), (10_000, 3 if quick else 7))}
    for c in (1_000, 10_000, 100_000):
        results[f"head C={c}"] = whole_head(c, rounds if c < 100_000 else max(5, rounds // 3))
    results["fused C=20000"] = fused()
    results["losses C=50000"] = memory_of_losses()
    results["construction C=3000"] = construction()
    results["coefficients C=10000000"] = {"ours_ms": 1e3 * cpu_seconds(lambda: coefficients(10_000_000))}
    results["memory C=1000000"] = million_classes()
    return results


def targets(results):
    yield "separate over dense at C = 1,000", results["product C=1000"]["ratio"], ">=", 4
    yield "separate over dense at C = 10,000", results["product C=10000"]["ratio"], ">=", 40
    for c in (1_000, 10_000, 100_000):
        yield f"head overhead at C = {c:,}", results[f"head C={c}"]["overhead"], "<=", 0.25
    yield (
        "fused loss over F.cross_entropy of the logits at C = 20,000",
        results["fused C=20000"]["over_logits"],
        "<=",
        1.5,
    )
    mib = results["losses C=50000"]["maxsep"]["mib_beyond_weight_and_gradient"]
    yield "MiB of the fused loss beyond weights and gradients, 1,024 x 128 x 50,000", mib, "<=", 100
    yield "construction over the recursion at C = 3,000", results["construction C=3000"]["ratio"], ">=", 500
    yield "coefficients for C = 10,000,000, seconds", results["coefficients C=10000000"]["ours_ms"] / 1e3, "<=", 1
    yield "peak memory at C = 1,000,000, batch 32, GiB", results["memory C=1000000"]["peak_gib"], "<=", 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, nothing written")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = measure(arguments.quick)
    failed = 0
    for name, value, relation, target in targets(results):
        low, high = {">=": (target, math.inf), "<=": (-math.inf, target)}.get(relation, target)
        met = low <= value <= high
        failed += not met
        print(f"{'ok  ' if met else 'MISS'}  {name}: {value:.3g} (target {relation} {target})")
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
        record = {"about": about, "results": results}
        target = Path(__file__).parent.parent / "results" / "head_cpu.json"
        target.write_text(json.dumps(record, indent=1) + "\n")
        print("written to", target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
