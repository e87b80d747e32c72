"""Which tiles and chunks the fused loss should take on this GPU: device times of its parts, most important first.

    python benchmarks/fused_tune.py
    python benchmarks/fused_gpu.py --forward-tile 128,128,64,8,3 --backward-tile 128,128,64,8,3 --stream 16,32

The second line measures the whole with what the first one found; to keep it, change the constants in
`ops/fused/tile_form.py`, `triton_form.py` and `chunks.py`. The tiles of products are those that GPUs other than Hopper
take, whose own form has none to choose (benchmarks/product_forms_gpu.py compares both): with tiles given, the second
line measures that form, and chunks are tuned with the form that this GPU takes. A part is called ten times in
one CUDA graph, so that launching the graph does not count; with 14,336 classes and fewer, what it reads may then still
be in the cache, as in a chunk.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import torch
from fused_gpu import BATCH, OURS, WIDTH, captured, measure, timed, use
from record import Record, say

from maxsep.losses import fused_cross_entropy
from maxsep.ops.fused import joined, triton_form
from maxsep.ops.fused.state import RowState

CALLS = 10
CHUNK, ALL = 14_336, 1_000_448
FORWARD = ("128,128,64,8,3",)
BACKWARD = ("128,128,64,8,3", "128,256,64,8,3")
STREAMS = ("16,32", "32,32", "64,32", "32,64", "64,64", "32,16", "64,16", "128,16")
STREAMED = (1_024, 4_096, CHUNK, ALL)
SIZES = (16_384, 14_336, 12_288, 8_192, 4_096, 2_048, 1_024, 512)
CHUNKS = (160, 128, 80)
FOLDED = (512, 1_024, 2_048, 4_096, 8_192, CHUNK)
FOLD_TILES = ("STREAM", "NARROW", "AT_ONCE")


def per_call(step):
    """Return the device time of a step in microseconds; a tile that does not fit is a finding, not an end."""

    def calls():
        for _ in range(CALLS):
            step()

    try:
        return timed(captured(calls).replay, 10)["ms"] * 1e3 / CALLS
    except Exception as problem:
        say(f"failed: {type(problem).__name__} {str(problem)[:100]}")
        return None


def told(name, times, unit="us"):
    """Print one line for several times."""
    say(
        f"{name:<24} " + "  ".join(f"{what}: {'-' if time is None else f'{time:.1f}'}" for what, time in times.items()),
        unit,
    )
    return times


def features():
    return torch.randn(BATCH, WIDTH, device="cuda").bfloat16()


def rows(num_classes):
    return (torch.randn(num_classes, WIDTH, device="cuda") / WIDTH**0.5).bfloat16()


def products(num_classes):
    """Time both products with their epilogues in every tile, as in a chunk that holds a tenth of the targets."""
    x, weight = features(), rows(num_classes)
    g = torch.empty(BATCH, num_classes, device="cuda", dtype=torch.bfloat16)
    lse, ones = torch.full((BATCH,), 10.0, device="cuda"), torch.ones(BATCH, device="cuda")
    target = torch.randint(10 * num_classes, (BATCH,), device="cuda")
    forward, backward = {}, {}
    kept = joined._hopper_form
    for tile in FORWARD:
        use(forward_tile=tile)
        state = RowState.empty(triton_form.parts(x), BATCH, ones, with_total=False)
        step = functools.partial(triton_form.accumulating(x, target, state), weight, None, None, 0)
        forward[tile] = per_call(step)
    for tile in BACKWARD:
        use(backward_tile=tile)
        differentiate = triton_form.differentiating(x, target, (lse, ones, ones, None, None))
        backward[tile] = per_call(functools.partial(differentiate, weight, g, None, None, 0, None))
    joined._hopper_form = kept
    return {"forward": told("forward", forward), "backward": told("backward", backward)}


def gradients():
    """Time the products of the second pass for chunks of several sizes, by a thousand classes."""
    x, weight = features(), rows(max(SIZES))
    dx, dw = torch.zeros(BATCH, WIDTH, device="cuda"), torch.empty_like(weight)
    of_weight, of_x = {}, {}
    for size in SIZES:
        g = torch.randn(BATCH, size, device="cuda").bfloat16()
        time = per_call(lambda g=g, size=size: torch.mm(g.T, x, out=dw[:size]))
        of_weight[size] = time and 1e3 * time / size
        time = per_call(lambda g=g, size=size: torch.addmm(dx, g, weight[:size], out_dtype=torch.float32, out=dx))
        of_x[size] = time and 1e3 * time / size
    unit = "us a thousand classes"
    return {"weight": told("gradient of weight", of_weight, unit), "x": told("gradient of x", of_x, unit)}


def streams(num_classes):
    """Time what goes down the classes: sums of blocks with their scan, fold, and adjoint with its own sums."""
    weight, out = rows(num_classes - 1), torch.zeros(num_classes, WIDTH, device="cuda", dtype=torch.bfloat16)
    carries = triton_form.block_carries(weight, 1.0, 256, torch.float32)
    steps = {
        "block sums": lambda: triton_form.block_carries(weight, 1.0, 256, torch.float32),
        "fold": lambda: triton_form.fold(weight, carries, 1.0, 256, 0, num_classes, out),
        "adjoint": lambda: triton_form.adjoint_(out, 1.0, torch.float32),
    }
    found = {name: {} for name in steps}
    for tile in STREAMS:
        use(stream=tile)
        for name, step in steps.items():
            out.zero_()
            found[name][tile] = per_call(step)
    return {name: told(f"{name}, {num_classes:,}", times) for name, times in found.items()}


def folds(num_classes):
    """Time the fold of a chunk in each of its tiles."""
    weight, out = rows(num_classes - 1), torch.zeros(num_classes, WIDTH, device="cuda", dtype=torch.bfloat16)
    carries = triton_form.block_carries(weight, 1.0, 256, torch.float32)
    found, kept = {}, triton_form.fold_tile
    for tile in FOLD_TILES:
        use(fold_tile=tile)
        found[tile] = per_call(lambda: triton_form.fold(weight, carries, 1.0, 256, 0, num_classes, out))
    triton_form.fold_tile = kept
    return told(f"fold, {num_classes:,}", found)


def whole(megabytes):
    """Time the whole loss at a million classes with chunks of some size."""
    use(chunk_mb=megabytes)
    found = measure(OURS, fused_cross_entropy, 1_000_000, 5)
    memory = found["peak_of_weights_inputs_and_their_gradients"]
    in_graph = found["in_a_cuda_graph"]["ms"]
    say(f"chunks of {megabytes} MB: {found['ms']:.2f} ms, {in_graph:.2f} in a graph, memory {memory:.3f}")
    return found


def fastest(times):
    return min((name for name, time in times.items() if time), key=times.get)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("fused_tune.json"))
    record = Record(parser.parse_args().out, batch=BATCH, width=WIDTH)
    made = record.run("products", CHUNK, functools.partial(products, CHUNK))
    record.run("gradients", "by size", gradients)
    streamed = [record.run("streams", size, functools.partial(streams, size)) for size in STREAMED][-1]
    if made and streamed:
        best = {kind: fastest(made[kind]) for kind in made}
        # a step takes the sums of blocks once, the fold twice, and the adjoint, which has sums of its own, once
        totals = {
            tile: sum(times[tile] or 1e9 for times in streamed.values()) + (streamed["fold"][tile] or 0)
            for tile in STREAMS
        }
        best["stream"] = fastest(totals)
        use(stream=best["stream"])
        say("--forward-tile {forward} --backward-tile {backward} --stream {stream}".format(**best))
    for size in FOLDED:
        record.run("folds", size, functools.partial(folds, size))
    for megabytes in CHUNKS:
        record.run("chunks", megabytes, functools.partial(whole, megabytes))
    return record.end()


if __name__ == "__main__":
    raise SystemExit(main())
