"""The head on one GPU: the product against a copy, the whole head at 1,000 classes against nn.Linear, growth with C.

First every kernel is compared with float64, and nothing is measured if one is wrong. Then times of the device are
taken from replayed CUDA graphs, medians with quartiles; a copy of the logits in the same run is 100 percent. Prints a
table, checks every figure against its target, and writes results/head_gpu.json.

    python benchmarks/head_gpu.py
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
from pathlib import Path

import householder
import torch
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead, separate, simplex
from maxsep.lab.engine.provenance import hardware, versions
from maxsep.ops.linear import padded_linear
from maxsep.ops.row_cross_entropy import row_cross_entropy
from maxsep.ops.scan import separate_adjoint, separate_scan
from maxsep.ops.triton_scan import adjoint_op, padded_empty, separate_op

BATCH, FEATURES, GROWTH_BATCH = 1024, 2048, 256
SIZES = (10_000, 32_768, 100_000, 1_000_000)
GROWTH = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
SHARE = {torch.float32: 0.80, torch.bfloat16: 0.70}
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


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


def off(ours, theirs, scale=None):
    return ((ours.double() - theirs).abs().max() / (theirs if scale is None else scale).abs().max()).item()


def check_product(num_classes, dtype, padded):
    """Return the largest errors of forward and adjoint beyond one rounding to the storage type, at unit scale."""
    worst = 0.0
    for batch in (1, 3, 33) if num_classes <= 100_000 else (1,):
        noise, g = outputs(num_classes, dtype, padded, batch), torch.randn(batch, num_classes, device="cuda").to(dtype)
        for x, gradient in ((noise, g), (noise.abs(), g.abs()), (torch.ones_like(noise), torch.ones_like(g))):
            forward = off(separate_op(x, 0.5, torch.float32), separate_scan(x.double(), 0.5))
            adjoint = off(
                adjoint_op(gradient, 0.5, torch.float32), separate_adjoint(gradient.double(), 0.5), gradient.double()
            )
            worst = max(worst, forward, adjoint)
    return worst


def check_loss(num_classes, dtype, **options):
    z = outputs(num_classes, dtype, True, 37).requires_grad_()
    target = torch.randint(num_classes, (37,), device="cuda")
    loss = row_cross_entropy(z, target, 0.5, **options)
    wide = z.detach().double().requires_grad_()
    expected = F.cross_entropy(separate_scan(wide, 0.5), target, **options)
    (gradient,), (theirs,) = torch.autograd.grad(loss, z), torch.autograd.grad(expected, wide)
    rounding = 0 if dtype == torch.float32 else torch.finfo(dtype).eps / 2  # of the gradient, when it is stored
    return max(off(loss, expected), off(gradient, theirs) - rounding)


def check(quick):
    """Compare everything that will be timed with float64; a wrong kernel ends the run."""
    errors = {}
    for dtype in NAMES:
        for num_classes in (2, 3, 10, 1_000, 1_001, 4_097, 100_000) + (() if quick else (1_000_003, 10_000_000)):
            for padded in (True, False):
                name = f"product C={num_classes} {NAMES[dtype]} {'padded' if padded else 'plain'}"
                errors[name] = check_product(num_classes, dtype, padded), 1e-6 if num_classes <= 100_000 else 1e-5
        for num_classes in (2, 1_000, 9_001):
            for smoothing in (0.0, 0.1):
                name = f"loss C={num_classes} {NAMES[dtype]} smoothing {smoothing}"
                errors[name] = check_loss(num_classes, dtype, label_smoothing=smoothing), 3e-6
    for num_classes in (10, 10_000, 100_000):
        x = outputs(num_classes, torch.float32, True, 5)
        out = householder.forward(x, padded_empty(x, (5, num_classes), torch.float32))
        errors[f"householder C={num_classes}"] = off(out, householder.reference(x.double())), 1e-6
    wrong = {name: pair for name, pair in errors.items() if not pair[0] <= pair[1]}
    if wrong:
        raise SystemExit(f"wrong results, nothing measured: {wrong}")
    return {name: error for name, (error, _) in errors.items()}


def product(num_classes, dtype, rounds):
    """Forward and adjoint, with padded rows as the head makes them and with plain ones, and the Householder form."""
    logits = torch.empty(BATCH, num_classes, device="cuda", dtype=dtype).normal_()
    other = torch.empty_like(logits)
    copy = device_time(lambda: other.copy_(logits), rounds=rounds)
    found = {"copy": copy | {"terabytes_per_second": 2e-6 * logits.nbytes / copy["us"]}}
    for layout in ("padded", "plain"):
        x = outputs(num_classes, dtype, layout == "padded")
        measure = functools.partial(device_time, rounds=rounds)
        found[f"forward, {layout}"] = against(measure(lambda x=x: separate_op(x, 1.0, dtype)), copy)
        if layout == "padded":
            found["backward"] = against(measure(lambda: adjoint_op(logits, 1.0, dtype)), copy)
            found["householder forward"] = against(measure(lambda x=x: householder.forward(x, other)), copy)
            found["householder backward"] = against(measure(lambda x=x: householder.adjoint(logits, x)), copy)
    return found


def others(num_classes=32_768):
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
        del matrix, forms
        gc.collect()
    return found


def heads(num_classes=1_000):
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
    for precision in ("float32", "tensorfloat32", "autocast to bfloat16"):
        torch.backends.cuda.matmul.allow_tf32 = precision == "tensorfloat32"

        def step(form, precision=precision):
            head, loss = form
            half = precision.startswith("autocast")
            with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
                value = loss()
            torch.autograd.grad(value, [x, head.weight, head.bias])

        results = {name: device_time(lambda form=form: step(form), calls=10, rounds=31) for name, form in forms.items()}
        for name, form in forms.items():
            results[name]["over_plain"] = results[name]["us"] / results["plain"]["us"] - 1
            results[name]["eager_us"] = timed(lambda form=form: step(form), rounds=31)["us"]
        found[precision] = results
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def growth(sizes):
    """Forward and backward of the product at one batch; the slope of log time against log C from 100,000 up."""
    found = {}
    for num_classes in sizes:
        x = outputs(num_classes, torch.float32, True, GROWTH_BATCH)
        g = torch.randn(GROWTH_BATCH, num_classes, device="cuda")
        forward = device_time(lambda x=x: separate_op(x, 1.0, torch.float32), rounds=9)
        backward = device_time(lambda g=g: adjoint_op(g, 1.0, torch.float32), rounds=9)
        found[num_classes] = {"forward": forward, "backward": backward, "us": forward["us"] + backward["us"]}
        del x, g
        torch.cuda.empty_cache()
    points = [(math.log(c), math.log(found[c]["us"])) for c in sizes if c >= 100_000]
    slope = statistics.linear_regression(*zip(*points, strict=True)).slope
    return {"batch": GROWTH_BATCH, "times": found, "slope": slope}


def few_rows():
    """A long row alone must not leave the device idle."""
    found = {}
    for batch, num_classes in ((1, 10_000_000), (8, 1_000_000), (64, 1_000_000)):
        x = outputs(num_classes, torch.float32, True, batch)
        logits = torch.randn(batch, num_classes, device="cuda")
        other = torch.empty_like(logits)
        copy = device_time(lambda logits=logits, other=other: other.copy_(logits), calls=4)
        forward = device_time(lambda x=x: separate_op(x, 1.0, torch.float32), calls=4)
        backward = device_time(lambda logits=logits: adjoint_op(logits, 1.0, torch.float32), calls=4)
        found[f"batch {batch}, C={num_classes}"] = {
            "copy": copy, "forward": against(forward, copy), "backward": against(backward, copy),
        }  # fmt: skip
    return found


def measure(quick):
    found = {"errors": check(quick)}
    print("every kernel agrees with float64", flush=True)
    found["product"] = {}
    for dtype in SHARE:
        for num_classes in SIZES[:1] if quick else SIZES:
            found["product"][f"{NAMES[dtype]} C={num_classes}"] = product(num_classes, dtype, 5 if quick else 15)
            torch.cuda.empty_cache()
    found["head C=1000"] = heads()
    found["few rows"] = few_rows()
    found["growth"] = growth(GROWTH[:4] if quick else GROWTH)
    if not quick:
        found["others C=32768"] = others()
    return found


def targets(found):
    for dtype, share in SHARE.items():
        for name, results in found["product"].items():
            if name.startswith(NAMES[dtype]):
                yield f"forward of copy, {name}", results["forward, padded"]["of_copy"], ">=", share
                yield f"backward of copy, {name}", results["backward"]["of_copy"], ">=", share
    for precision, results in found["head C=1000"].items():
        yield f"head with the row kernel over plain, {precision}", results["row kernel"]["over_plain"], "<=", 0.03
        yield f"head with F.cross_entropy over plain, {precision}", results["separate"]["over_plain"], "<=", 0.15
    yield "growth: slope from C = 100,000", found["growth"]["slope"], "within", (0.95, 1.05)


def householder_gains(found):
    """How much faster the Householder form is than the scan; ten percent anywhere would be a reason to take it in."""
    for name, results in found["product"].items():
        yield f"{name} forward", results["forward, padded"]["us"] / results["householder forward"]["us"] - 1
        yield f"{name} backward", results["backward"]["us"] / results["householder backward"]["us"] - 1


def report(found):
    for name, results in found["product"].items():
        told = "  ".join(f"{form} {100 * r['of_copy']:.0f} %" for form, r in results.items() if "of_copy" in r)
        print(f"{name}: copy {results['copy']['terabytes_per_second']:.2f} TB/s  {told}")
    for precision, results in found["head C=1000"].items():
        told = "  ".join(f"{n} {r['us']:.1f} us (eager {r['eager_us']:.0f})" for n, r in results.items())
        print(f"head, {precision}: {told}")
    for name, results in found["few rows"].items():
        told = "  ".join(f"{form} {results[form]['of_copy']:.0%}" for form in ("forward", "backward"))
        print(f"{name}, of copy: {told}")
    for name, result in found.get("others C=32768", {}).items():
        print(f"C = 32,768, {name}: {result['us']:,.0f} us")
    print("time by C:", "  ".join(f"{c:,}: {r['us']:,.0f} us" for c, r in found["growth"]["times"].items()))
    best = max(householder_gains(found), key=lambda pair: pair[1])
    print(f"Householder against the scan, at its best: {best[1]:+.1%} faster ({best[0]})")
    failed = 0
    for name, value, relation, target in targets(found):
        low, high = {">=": (target, math.inf), "<=": (-math.inf, target)}.get(relation, target)
        failed += not low <= value <= high
        print(f"{'ok  ' if low <= value <= high else 'MISS'}  {name}: {value:.3f} (target {relation} {target})")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few sizes and rounds, nothing written")
    parser.add_argument("--out", type=Path, default=Path("results/head_gpu.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device; benchmarks/head_cpu.py does not")
    torch.manual_seed(0)
    found = measure(arguments.quick)
    failed = report(found)
    if not arguments.quick:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        about = {"command": "python benchmarks/head_gpu.py", "date": time.strftime("%Y-%m-%d"), "commit": commit}
        about |= {"versions": versions(), "hardware": hardware(torch.device("cuda"), 1)}
        about |= {"batch": BATCH, "features": FEATURES, "householder": dict(householder_gains(found))}
        arguments.out.write_text(json.dumps({"about": about, "results": found}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
