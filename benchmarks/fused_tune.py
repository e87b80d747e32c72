"""Which tiles and chunks the fused loss should take on this GPU: device times of its parts, most important first.

    python benchmarks/fused_tune.py
    python benchmarks/fused_gpu.py --forward-tile 128,128,64,0,1,8,3 --backward-tile 128,128,64,0,8,3 --stream-cols 64

The second line measures the whole with what the first one found; to keep it, change the constants in
`ops/fused/triton_form.py` and `ops/fused/chunks.py`.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import torch
from fused_gpu import BATCH, OURS, WIDTH, captured, measure, timed, use
from record import Record, say

from maxsep.losses import fused_cross_entropy
from maxsep.ops.fused import triton_form
from maxsep.ops.fused.state import RowState

FORWARD = ("128,128,64,0,0,8,3", "128,128,64,0,1,8,3", "128,128,64,1,0,8,3", "128,128,64,1,1,8,3", "128,256,64,1,1,8,3")
BACKWARD = ("128,128,64,0,8,3", "128,128,64,1,8,3", "128,256,64,0,8,3", "128,256,64,1,8,3", "128,128,64,0,8,2")
COLS = (64, 32, 128)
CHUNKS = (128, 64, 32)


def told(name, step, num_classes, products=1):
    """Print and return the device time of a step that makes so many products of (BATCH, WIDTH) and classes."""
    try:
        milliseconds = timed(captured(step).replay, 10)["ms"]
    except Exception as problem:  # a tile that does not fit is a finding, not an end
        say(f"{name:<40} failed: {type(problem).__name__} {str(problem)[:100]}")
        return None
    rate = f"  {products * 2 * BATCH * WIDTH * num_classes / milliseconds / 1e9:5.0f} TFLOP/s" if products else ""
    say(f"{name:<34} {milliseconds * 1e3:7.1f} us{rate}")
    return milliseconds


def parts(num_classes):
    """Time the pieces of a chunk: of the first pass, of the second, and of what goes down the classes."""
    x = torch.randn(BATCH, WIDTH, device="cuda").bfloat16()
    weight = (torch.randn(num_classes, WIDTH, device="cuda") / WIDTH**0.5).bfloat16()
    target = torch.randint(num_classes, (BATCH,), device="cuda")
    g = torch.empty(BATCH, num_classes, device="cuda", dtype=torch.bfloat16)
    dx, dw = torch.zeros(BATCH, WIDTH, device="cuda"), torch.empty_like(weight)
    found = products(x, weight, target, g)
    found["gradient of weight"] = told("gradient of weight", lambda: torch.mm(g.T, x, out=dw), num_classes)
    add = lambda: torch.addmm(dx, g, weight, out_dtype=torch.float32, out=dx)  # noqa: E731
    found["gradient of x"] = told("gradient of x", add, num_classes)
    return found | streams(weight, dw)


def products(x, weight, target, g):
    """Time both products with their epilogues in every tile, as in a pass whose target is rarely in a tile."""
    lse, ones = torch.full((BATCH,), 10.0, device=x.device), torch.ones(BATCH, device=x.device)
    few = target.masked_fill(torch.rand(BATCH, device=x.device) > 0.1, len(weight))  # the others' are in other chunks
    found = {}
    for tile in FORWARD:
        use(forward_tile=tile)
        state = RowState.empty(triton_form.parts(x), BATCH, ones, with_total=False)
        step = functools.partial(triton_form.accumulating(x, few, state), weight, None, None, 0)
        found[f"forward {tile}"] = told(f"forward {tile}", step, len(weight))
    for tile in BACKWARD:
        use(backward_tile=tile)
        differentiate = triton_form.differentiating(x, few, (lse, ones, ones, None))
        step = functools.partial(differentiate, weight, g, None, None, 0, None)
        found[f"backward {tile}"] = told(f"backward {tile}", step, len(weight))
    return found


def streams(weight, dw):
    """Time what goes down the classes: sums of blocks with their scan, fold, and adjoint with its own sums."""
    num_classes, found = len(weight), {}
    carries = triton_form.block_carries(weight[1:], 1.0, 256, torch.float32)
    for cols in COLS:
        use(stream_cols=cols)
        steps = {
            "block sums": lambda: triton_form.block_carries(weight[1:], 1.0, 256, torch.float32),
            "fold": lambda: triton_form.fold(weight[1:], carries, 1.0, 256, 0, num_classes, dw),
            "adjoint": lambda: triton_form.adjoint_(dw, 1.0, torch.float32),
        }
        for name, step in steps.items():
            found[f"{name} {cols}"] = told(f"{name}, {cols} columns", step, num_classes, products=0)
    return found


def whole(megabytes):
    """Time the whole loss at a million classes with chunks of some size."""
    use(chunk_mb=megabytes)
    found = measure(OURS, fused_cross_entropy, 1_000_000, 5)
    say(f"chunks of {megabytes} MB: {found['ms']:.2f} ms, {found['in_a_cuda_graph']['ms']:.2f} in a graph")
    return found


def fastest(found, kind):
    times = {name.split()[1]: ms for name, ms in found.items() if name.split()[0] == kind and ms}
    return min(times, key=times.get)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("fused_tune.json"))
    record = Record(parser.parse_args().out, batch=BATCH, width=WIDTH)
    for num_classes in (14_336, 2_048):
        record.run("parts", num_classes, functools.partial(parts, num_classes))
    found = record.results["parts"][14_336]
    best = {kind: fastest(found, kind) for kind in ("forward", "backward", "fold")}
    use(best["forward"], best["backward"], int(best["fold"]))
    for megabytes in CHUNKS:
        record.run("chunks", megabytes, functools.partial(whole, megabytes))
    say("--forward-tile {forward} --backward-tile {backward} --stream-cols {fold}".format(**best))
    return record.end()


if __name__ == "__main__":
    raise SystemExit(main())
