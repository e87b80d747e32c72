"""The head on one GPU: the product against a copy, the whole head at 1,000 classes against nn.Linear, growth with C.

Whatever is timed is first compared with float64, and a wrong kernel ends the run. Times of the device come from
replayed CUDA graphs, medians with quartiles; a copy of the logits in the same run is 100 percent. Every figure is
printed as it is found and the record is written after every part, the most important part first; a part that fails is
named and makes the exit code 1.

    python benchmarks/head_gpu.py                                  all parts, results/head_gpu.json
    python benchmarks/head_gpu.py --parts sweep                    which tile of the kernel is the fastest
    python benchmarks/head_gpu.py --parts product --tile 1,4096,8  one tile: rows, classes, warps and, if wanted, stages
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import math
import statistics
import subprocess
import time
import traceback
from pathlib import Path

import householder
import torch
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead, separate, simplex
from maxsep.lab.engine.provenance import hardware, versions
from maxsep.ops import triton_scan
from maxsep.ops.linear import padded_linear
from maxsep.ops.row_cross_entropy import row_cross_entropy
from maxsep.ops.scan import separate_adjoint, separate_scan
from maxsep.ops.triton_scan import Tile, adjoint_op, padded_empty, separate_op

BATCH, FEATURES, GROWTH_BATCH = 1024, 2048, 256
SIZES = (100_000, 10_000, 1_000_000, 32_768)
GROWTH = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
SHARE = {torch.float32: 0.80, torch.bfloat16: 0.70}
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
TILES = ("1,1024,4", "1,2048,8", "1,2048,8,3", "1,1024,4,3", "1,2048,4", "1,4096,8", "2,1024,4", "4,512,4")
say = functools.partial(print, flush=True)


def device_time(function, calls=1, rounds=15):
    """Microseconds of one call on the device: median and quartiles over replays of a graph of several calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            function()
    return timed(graph.replay, calls, rounds)


def timed(function, calls=1, rounds=15):
    function()
    found = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        found.append(1e3 * start.elapsed_time(end) / calls)
    low, median, high = statistics.quantiles(found, n=4)
    return {"us": median, "us_quartiles": [low, high], "rounds": rounds}


def against(result, copy):
    return result | {"of_copy": copy["us"] / result["us"]}


def outputs(num_classes, dtype, padded, batch=BATCH):
    like = torch.empty(0, device="cuda")
    shape = (batch, num_classes - 1)
    x = padded_empty(like, shape, dtype) if padded else like.new_empty(shape, dtype=dtype)
    return x.normal_()


def agree(what, ours, theirs, limit, scale=None):
    """End the run unless a result is within a limit of float64, relative to the largest value."""
    error = ((ours.double() - theirs).abs().max() / (theirs if scale is None else scale).abs().max()).item()
    if not error <= limit:
        raise SystemExit(f"WRONG: {what} is off by {error:.1e} of the largest value, allowed {limit:.0e}")
    return error


def check_product(x, logits):
    """Compare forward and adjoint on what will be timed, without the rounding to the storage type."""
    few = slice(0, 8)
    limit = 1e-6 if logits.shape[1] <= 100_000 else 1e-5
    forward = separate_op(x, 1.0, torch.float32)[few]
    adjoint = adjoint_op(logits, 1.0, torch.float32)[few]
    what = f"{tuple(x.shape)} {NAMES[x.dtype]} of strides {x.stride()}"
    return {
        "forward": agree(f"forward {what}", forward, separate_scan(x[few].double(), 1.0), limit),
        "backward": agree(f"backward {what}", adjoint, separate_adjoint(logits[few].double(), 1.0), limit),
    }


def product(num_classes, dtype, rounds):
    """Forward and adjoint, with padded rows as the head makes them and with plain ones, and the Householder form."""
    logits = torch.empty(BATCH, num_classes, device="cuda", dtype=dtype).normal_()
    other = torch.empty_like(logits)
    copy = device_time(lambda: other.copy_(logits), rounds=rounds)
    found = {"copy": copy | {"terabytes_per_second": 2e-6 * logits.nbytes / copy["us"]}}
    name = f"{NAMES[dtype]} C={num_classes}"
    say(f"{name}: copy {found['copy']['terabytes_per_second']:.2f} TB/s")

    def measure(form, function):
        found[form] = against(device_time(function, rounds=rounds), copy)
        say(f"{name}: {form} {found[form]['of_copy']:.1%} of copy")

    x = outputs(num_classes, dtype, True)
    found["errors"] = check_product(x, logits)
    measure("forward", lambda: separate_op(x, 1.0, dtype))
    measure("backward", lambda: adjoint_op(logits, 1.0, dtype))
    expected = householder.reference(x[:8].double())
    limit = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
    agree("householder", householder.forward(x, other)[:8], expected, limit)
    measure("householder forward", lambda: householder.forward(x, other))
    measure("householder backward", lambda: householder.adjoint(logits, x))
    plain = outputs(num_classes, dtype, False)
    measure("forward, plain rows", lambda: separate_op(plain, 1.0, dtype))
    return found


def products(quick):
    rounds = 5 if quick else 15
    found = {}
    for num_classes in SIZES[:2] if quick else SIZES:
        for dtype in SHARE:
            found[f"{NAMES[dtype]} C={num_classes}"] = product(num_classes, dtype, rounds)
            torch.cuda.empty_cache()
    return found


def use_tile(text):
    tile = Tile(*map(int, text.split(",")))
    triton_scan.choose_tile = lambda *_: tile


def sweep(quick):
    """Forward and adjoint of several tiles at 100,000 classes, as shares of the copy."""
    found, usual = {}, triton_scan.choose_tile
    for dtype in SHARE:
        x, logits = outputs(SIZES[0], dtype, True), torch.empty(BATCH, SIZES[0], device="cuda", dtype=dtype).normal_()
        other = torch.empty_like(logits)
        copy = device_time(lambda other=other, logits=logits: other.copy_(logits))
        for tile in TILES[: 2 if quick else None]:
            use_tile(tile)
            check_product(x, logits)
            forward = device_time(lambda x=x, dtype=dtype: separate_op(x, 1.0, dtype), rounds=7)
            backward = device_time(lambda g=logits, dtype=dtype: adjoint_op(g, 1.0, dtype), rounds=7)
            shares = [copy["us"] / result["us"] for result in (forward, backward)]
            found[f"{NAMES[dtype]} {tile}"] = shares
            say(f"tile {tile}, {NAMES[dtype]}: forward {shares[0]:.1%}, backward {shares[1]:.1%} of copy")
    triton_scan.choose_tile = usual
    return found


def others(quick, num_classes=32_768):
    """The dense matrix and the compiled scan, forward and backward together, beside the kernel."""
    found = {}
    for dtype in SHARE:
        x = outputs(num_classes, dtype, True).requires_grad_()
        g = torch.randn(BATCH, num_classes, device="cuda").to(dtype)
        matrix = simplex(num_classes, dtype=dtype, device="cuda")
        compiled = torch.compile(functools.partial(separate, impl="scan"), fullgraph=True)
        forms = {"kernel": separate, "compiled scan": compiled, "dense": lambda x, matrix=matrix: x @ matrix}
        for name, form in forms.items():
            result = device_time(lambda form=form, x=x, g=g: torch.autograd.grad(form(x), x, g), rounds=7)
            found[f"{name}, {NAMES[dtype]}"] = result
            say(f"C = {num_classes:,}, {name}, {NAMES[dtype]}: {result['us']:,.0f} us")
        del matrix, forms, form
        gc.collect()
    return found


def heads(quick, num_classes=1_000):
    """The whole head with its loss, forward and backward, in every precision; plain is the first of each."""
    found = {}
    x = torch.randn(BATCH, FEATURES, device="cuda", requires_grad=True)
    target = torch.randint(num_classes, (BATCH,), device="cuda")
    plain, ours = nn.Linear(FEATURES, num_classes).cuda(), MaxSeparationHead(FEATURES, num_classes).cuda()
    forms = {
        "plain": (plain, lambda: F.cross_entropy(plain(x), target)),
        "row kernel": (ours, lambda: row_cross_entropy(padded_linear(x, ours.weight, ours.bias), target, ours.radius)),
        "separate": (ours, lambda: F.cross_entropy(ours(x), target)),
    }
    check_head(x, target, ours, forms["row kernel"][1]())
    for precision in ("autocast to bfloat16", "float32", "tensorfloat32"):
        torch.backends.cuda.matmul.allow_tf32 = precision == "tensorfloat32"

        def step(form, half=precision == "autocast to bfloat16"):
            head, loss = form
            with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
                value = loss()
            torch.autograd.grad(value, [x, head.weight, head.bias])

        results = {}
        for name, form in forms.items():
            result = device_time(lambda form=form: step(form), calls=10, rounds=31)
            result["over_plain"] = result["us"] / results.get("plain", result)["us"] - 1
            result["eager_us"] = timed(lambda form=form: step(form), rounds=31)["us"]
            results[name] = result
            told = f"{result['us']:.1f} us, {result['over_plain']:+.1%}, eager {result['eager_us']:.0f} us"
            say(f"head C={num_classes}, {precision}, {name}: {told}")
        found[precision] = results
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def check_head(x, target, head, loss):
    """Compare the fused loss and its gradients with float64; float32 products have errors of their own."""
    parameters = [x, head.weight, head.bias]
    wide = [t.detach().double().requires_grad_() for t in parameters]
    expected = F.cross_entropy(separate_scan(F.linear(*wide), head.radius), target)
    agree("loss of the row kernel", loss, expected, 1e-5)
    theirs = torch.autograd.grad(expected, wide)
    for name, a, b in zip(("x", "weight", "bias"), torch.autograd.grad(loss, parameters), theirs, strict=True):
        agree(f"gradient of {name} by the row kernel", a, b, 1e-4)


def growth(quick):
    """Forward and backward of the product at one batch; the slope of log time against log C from 100,000 up."""
    found, sizes = {}, GROWTH[:4] if quick else GROWTH
    for num_classes in sizes:
        x = outputs(num_classes, torch.float32, True, GROWTH_BATCH)
        g = torch.randn(GROWTH_BATCH, num_classes, device="cuda")
        check_product(x, g)
        forward = device_time(lambda x=x: separate_op(x, 1.0, torch.float32), rounds=9)
        backward = device_time(lambda g=g: adjoint_op(g, 1.0, torch.float32), rounds=9)
        found[num_classes] = {"forward": forward, "backward": backward, "us": forward["us"] + backward["us"]}
        say(f"batch {GROWTH_BATCH}, C = {num_classes:,}: {found[num_classes]['us']:,.0f} us")
        del x, g
        torch.cuda.empty_cache()
    points = [(math.log(c), math.log(found[c]["us"])) for c in sizes if c >= 100_000]
    slope = statistics.linear_regression(*zip(*points, strict=True)).slope
    return {"batch": GROWTH_BATCH, "times": found, "slope": slope}


def few_rows(quick):
    """A long row alone must not leave the device idle."""
    found = {}
    for batch, num_classes in ((1, 10_000_000), (8, 1_000_000), (64, 1_000_000)):
        x = outputs(num_classes, torch.float32, True, batch)
        logits = torch.randn(batch, num_classes, device="cuda")
        other = torch.empty_like(logits)
        check_product(x, logits)
        copy = device_time(lambda logits=logits, other=other: other.copy_(logits), calls=4)
        forward = device_time(lambda x=x: separate_op(x, 1.0, torch.float32), calls=4)
        backward = device_time(lambda logits=logits: adjoint_op(logits, 1.0, torch.float32), calls=4)
        found[f"batch {batch}, C={num_classes}"] = {
            "copy": copy, "forward": against(forward, copy), "backward": against(backward, copy),
        }  # fmt: skip
        shares = (copy["us"] / forward["us"], copy["us"] / backward["us"])
        say(f"batch {batch}, C = {num_classes:,}: forward {shares[0]:.1%}, backward {shares[1]:.1%} of copy")
    return found


PARTS = {
    "product": products, "head": heads, "few rows": few_rows, "growth": growth, "others": others, "sweep": sweep,
}  # fmt: skip
USUAL = "product,head,few rows,growth,others"


def targets(found):
    for name, results in found.get("product", {}).items():
        share = SHARE[torch.float32 if name.startswith("float32") else torch.bfloat16]
        for form in ("forward", "backward"):
            yield f"{form} of copy, {name}", results[form]["of_copy"], ">=", share
    for precision, results in found.get("head", {}).items():
        yield f"head with the row kernel over plain, {precision}", results["row kernel"]["over_plain"], "<=", 0.03
        yield f"head with F.cross_entropy over plain, {precision}", results["separate"]["over_plain"], "<=", 0.15
    if "growth" in found:
        yield "growth: slope from C = 100,000", found["growth"]["slope"], "within", (0.95, 1.05)


def householder_gains(found):
    """How much faster the Householder form is than the scan; ten percent anywhere would be a reason to take it in."""
    return {
        f"{name} {form}": results[form]["us"] / results[f"householder {form}"]["us"] - 1
        for name, results in found.get("product", {}).items()
        for form in ("forward", "backward")
    }


def verdict(found):
    gains = householder_gains(found)
    if gains:
        best = max(gains, key=gains.get)
        say(f"Householder against the scan, at its best: {gains[best]:+.1%} faster ({best})")
    missed = 0
    for name, value, relation, target in targets(found):
        low, high = {">=": (target, math.inf), "<=": (-math.inf, target)}.get(relation, target)
        missed += not low <= value <= high
        say(f"{'ok  ' if low <= value <= high else 'MISS'}  {name}: {value:.3f} (target {relation} {target})")
    return missed


def about(arguments):
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    told = {"command": "python benchmarks/head_gpu.py", "date": time.strftime("%Y-%m-%d"), "commit": commit}
    told |= {"versions": versions(), "hardware": hardware(torch.device("cuda"), 1)}
    return told | {"batch": BATCH, "features": FEATURES, "parts": arguments.parts, "tile": arguments.tile}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few sizes and rounds, nothing written")
    parser.add_argument("--parts", default=USUAL, help=f"comma-separated, of {', '.join(PARTS)}")
    parser.add_argument("--tile", help="rows,classes,warps[,stages] of the product's kernel instead of its own choice")
    parser.add_argument("--out", type=Path, default=Path("results/head_gpu.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device; benchmarks/head_cpu.py does not")
    torch.manual_seed(0)
    if arguments.tile:
        use_tile(arguments.tile)
    told, found, failed = about(arguments), {}, []
    for part in arguments.parts.split(","):
        start = time.perf_counter()
        try:
            found[part] = PARTS[part](arguments.quick)
        except Exception:  # the other parts are still worth their time; SystemExit, a wrong kernel, is not caught
            failed.append(part)
            say(f"FAILED: {part}\n{traceback.format_exc()}")
        gc.collect()
        torch.cuda.empty_cache()
        say(f"[{part}: {time.perf_counter() - start:.0f} s]")
        if not arguments.quick:
            record = {"about": told, "failed": failed, "householder": householder_gains(found), "results": found}
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if verdict(found) or failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
