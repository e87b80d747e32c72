"""The head on one GPU: `separate` against a copy, head and loss at 1,000 classes against nn.Linear, growth with C.

Whatever is timed is first compared with float64. Shares of copy bandwidth and times in CUDA graphs are medians of
replays; a copy of the same bytes in the same run is 100 percent. A case that is wrong or fails is named and, as a
missed target does, makes the exit code 1.

    python benchmarks/head_gpu.py              all parts, results/head_gpu.json
    python benchmarks/head_gpu.py --parts head
"""

from __future__ import annotations

import argparse
import copy
import functools
import math
import sys
from pathlib import Path

import torch
from gpu_timing import captured, milliseconds
from record import Record
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead, separate
from maxsep.losses import fused_cross_entropy
from maxsep.ops import adjoint
from maxsep.ops.separate_triton import separate_triton

BATCH, FEATURES, CLASSES = 1024, 2048, 1000
SIZES = (1_000, 10_000, 32_768, 100_000, 1_000_000)
SHARE = {torch.float32: 0.80, torch.bfloat16: 0.65}
GROWTH = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
PRECISIONS = ("autocast to bfloat16", "float32", "tensorfloat32")


def product(num_classes, dtype):
    """Return the share of copy bandwidth of `separate` and its adjoint, for rows of so many classes."""
    rows = max(256, min(131_072, (1 << 28) // num_classes))
    x = torch.randn(rows, num_classes - 1, device="cuda").to(dtype)
    g = torch.randn(rows, num_classes, device="cuda").to(dtype)
    few = slice(0, 64)
    for ours, theirs in (
        (separate(x[few]), separate(x[few].double())),
        (separate_triton(g[few], 1.0, dtype, is_adjoint=True), adjoint(g[few].double(), 1.0)),
    ):
        error = (ours.double() - theirs).abs().max().item()
        if not error < (5e-5 if dtype == torch.float32 else 0.05):
            raise ArithmeticError(f"separate is off by {error}")
    target = torch.empty_like(g)
    copies = (lambda: target.copy_(g)), (lambda: torch.neg(g, out=target))  # the faster depends on the size
    copied = min(milliseconds(captured(copy_once))["ms"] for copy_once in copies)
    forward = milliseconds(captured(lambda: separate_triton(x, 1.0, dtype)))["ms"]
    backward = milliseconds(captured(lambda: separate_triton(g, 1.0, dtype, is_adjoint=True)))["ms"]
    return {"rows": rows, "copy_ms": copied, "forward": copied / forward, "backward": copied / backward}


def head_and_loss(precision):
    """Return milliseconds of head and loss, forward and backward, from Python and in a CUDA graph."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tensorfloat32"
    x = torch.randn(BATCH, FEATURES, device="cuda", requires_grad=True)
    y = torch.randint(CLASSES, (BATCH,), device="cuda")
    plain, head = nn.Linear(FEATURES, CLASSES, device="cuda"), MaxSeparationHead(FEATURES, CLASSES, device="cuda")
    cases = {
        "plain": (plain, lambda: F.cross_entropy(plain(x), y)),
        "head": (head, lambda: F.cross_entropy(head(x), y)),
        "fused": (head, lambda: fused_cross_entropy(head, x, y)),
    }
    found = {}
    for name, (layer, loss) in cases.items():

        def step(layer=layer, loss=loss):
            x.grad = None
            for parameter in layer.parameters():
                parameter.grad = None
            with torch.autocast("cuda", torch.bfloat16, enabled="bfloat16" in precision):
                value = loss()
            value.backward()
            return value

        exact = F.cross_entropy(copy.deepcopy(layer).double()(x.double()), y).item()
        if not abs(step().item() / exact - 1) < 0.01:
            raise ArithmeticError(f"{name} is off")
        found[name] = {"python": milliseconds(step)["ms"], "graph": milliseconds(captured(step))["ms"]}
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def growth(num_classes):
    """Return microseconds of `separate` for 256 rows, forward."""
    x = torch.randn(256, num_classes - 1, device="cuda", dtype=torch.bfloat16)
    return {"us": milliseconds(captured(lambda: separate_triton(x, 1.0, x.dtype)))["ms"] * 1e3}


def judge(record):
    results = record.results
    for case, found in results.get("product", {}).items():
        least = SHARE[torch.bfloat16 if "bfloat16" in case else torch.float32]
        for way in ("forward", "backward"):
            record.target(f"{way} of copy, {case}", found[way], least=least)
    for precision, found in results.get("head", {}).items():
        best = {how: min(found["head"][how], found["fused"][how]) for how in ("python", "graph")}
        record.target(
            f"head with loss over plain, from Python, {precision}", best["python"] / found["plain"]["python"], most=1.4
        )
        record.target(
            f"head with loss over plain, in a graph, {precision}", best["graph"] / found["plain"]["graph"], most=1.05
        )
    times = results.get("growth", {})
    if len(times) == len(GROWTH):
        slope = math.log10(times[str(GROWTH[-1])]["us"] / times["100000"]["us"]) / math.log10(GROWTH[-1] / 100_000)
        record.target("growth: slope from C = 100,000", slope, least=0.95, most=1.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="product,head,growth")
    parser.add_argument("--out", type=Path, default=Path("results/head_gpu.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    record = Record(arguments.out, batch=BATCH, features=FEATURES, classes=CLASSES)
    parts = arguments.parts.split(",")
    if "product" in parts:
        for dtype in SHARE:
            for size in SIZES:
                name = f"{str(dtype).removeprefix('torch.')} C={size}"
                record.run("product", name, functools.partial(product, size, dtype))
    if "head" in parts:
        for precision in PRECISIONS:
            record.run("head", precision, functools.partial(head_and_loss, precision))
    if "growth" in parts:
        for size in GROWTH:
            record.run("growth", str(size), functools.partial(growth, size))
    judge(record)
    return record.end()


if __name__ == "__main__":
    raise SystemExit(main())
