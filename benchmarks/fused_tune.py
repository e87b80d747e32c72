"""Which tiles and chunks the fused loss should take on this GPU: device times of its parts, most important first.

    python benchmarks/fused_tune.py
    python benchmarks/fused_gpu.py --forward-tile 128,128,64,8,3 --backward-tile 128,256,64,1,8,3 --chunk-mb 128 ...

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

FORWARD = ("128,128,64,8,3", "128,256,64,8,3", "128,128,64,8,4")
BACKWARD = ("128,256,64,1,8,3", "128,128,64,1,8,3", "128,256,64,0,8,3", "128,128,64,0,8,3")
CHUNKS = (128, 64, 32)


def told(name, step, num_classes, products=1):
    """Print and return the device time of a step that makes so many products of (BATCH, WIDTH) and classes."""
    try:
        milliseconds = timed(captured(step).replay, 10)["ms"]
    except Exception as problem:  # a tile that does not fit is a finding, not an end
        say(f"{name:<40} failed: {type(problem).__name__} {str(problem)[:100]}")
        return None
    rate = products * 2 * BATCH * WIDTH * num_classes / milliseconds / 1e9
    say(f"{name:<40} {milliseconds * 1e3:8.0f} us  {rate:5.0f} TFLOP/s")
    return milliseconds


def parts(num_classes):
    """Time the pieces of a chunk of the second pass, and the whole first one."""
    x = torch.randn(BATCH, WIDTH, device="cuda").bfloat16()
    weight = (torch.randn(num_classes, WIDTH, device="cuda") / WIDTH**0.5).bfloat16()
    target = torch.randint(num_classes, (BATCH,), device="cuda")
    g = torch.empty(BATCH, num_classes, device="cuda", dtype=torch.bfloat16)
    lse, ones = torch.full((2, BATCH), 10.0, device="cuda"), torch.ones(BATCH, device="cuda")
    rest = (None, None, target, 0, (lse[0], ones, ones, None), None)
    dx, dw = torch.zeros(BATCH, WIDTH, device="cuda"), torch.empty_like(weight)
    carries = triton_form.block_carries(weight[1:], 1.0, 256, torch.float32)

    def rows():
        torch.mm(x, weight.T, out=g)
        triton_form.gradient_(g, *rest)

    found = {}
    for tile in FORWARD:
        use(forward_tile=tile)
        state = RowState.empty(triton_form.parts(x), BATCH, ones, with_total=False)
        found[f"forward {tile}"] = told(
            f"forward {tile}",
            lambda state=state: triton_form.accumulate_product(x, weight, None, None, target, 0, state),
            num_classes,
        )
    for tile in BACKWARD:
        use(backward_tile=tile)
        step = lambda: triton_form.gradient_product(x, weight, g, *rest)  # noqa: E731
        found[f"backward {tile}"] = told(f"backward {tile}", step, num_classes)
    found["backward by rows"] = told("backward by product and row kernel", rows, num_classes)
    found["gradient of weight"] = told("gradient of weight", lambda: torch.mm(g.T, x, out=dw), num_classes)
    add = lambda: torch.addmm(dx, g, weight, out_dtype=torch.float32, out=dx)  # noqa: E731
    found["gradient of x"] = told("gradient of x", add, num_classes)
    fold = lambda: triton_form.fold(weight[1:], carries, 1.0, 256, 0, num_classes, dw)  # noqa: E731
    found["fold"] = told("fold", fold, num_classes, products=0)
    adjoint = lambda: triton_form.adjoint_(dw, 1.0, torch.float32)  # noqa: E731
    found["adjoint"] = told("adjoint", adjoint, num_classes, products=0)
    return found


def whole(megabytes):
    """Time the whole loss at a million classes with chunks of some size."""
    use(chunk_mb=megabytes)
    found = measure(OURS, fused_cross_entropy, 1_000_000, 5)
    say(f"chunks of {megabytes} MB: {found['ms']:.2f} ms, {found['in_a_cuda_graph']['ms']:.2f} in a graph")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("fused_tune.json"))
    record = Record(parser.parse_args().out, batch=BATCH, width=WIDTH)
    for num_classes in (14_336, 2_048):
        record.run("parts", num_classes, functools.partial(parts, num_classes))
    found = record.results["parts"][14_336]
    best = {}
    for kind in ("forward", "backward"):
        times = {name.split()[1]: ms for name, ms in found.items() if name.startswith(kind + " 128") and ms}
        best[kind] = min(times, key=times.get)
    use(forward_tile=best["forward"], backward_tile=best["backward"])
    for megabytes in CHUNKS:
        record.run("chunks", megabytes, functools.partial(whole, megabytes))
    say(f"--forward-tile {best['forward']} --backward-tile {best['backward']}")
    return record.end()


if __name__ == "__main__":
    raise SystemExit(main())
