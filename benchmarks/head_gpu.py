"""The head on one GPU: the product against a copy, the whole head at 1,000 classes against nn.Linear, growth with C.

Whatever is timed is first compared with float64. Times of the device come from replayed CUDA graphs, medians with
quartiles; a copy of the logits in the same run is 100 percent. Every figure is printed as it is found and the record is
written after every case, the most important first; a case that is wrong or fails is named and, as a missed target
does, makes the exit code 1.

    python benchmarks/head_gpu.py                                  all parts, results/head_gpu.json
    python benchmarks/head_gpu.py --parts sweep,sweep10k           which tile of the kernel is the fastest
    python benchmarks/head_gpu.py --parts product --tile 1,4096,8  one tile: rows, classes, warps and, if wanted, stages
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
from pathlib import Path

import torch
from maxsep.ops.adjoint_pair import padded_empty
from maxsep.ops.householder import householder_adjoint, separate_householder
from maxsep.ops.padding import padded_op
from maxsep.ops.row_plan import Tile
from maxsep.ops.scan import separate_adjoint, separate_scan
from maxsep.ops.triton_scan import adjoint_op, separate_op
from record import Record, say
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead, separate, simplex
from maxsep.losses import fused_cross_entropy
from maxsep.ops import triton_householder, triton_scan

BATCH, FEATURES, GROWTH_BATCH = 1024, 2048, 256
SIZES = (100_000, 10_000, 1_000_000, 32_768)
GROWTH = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
SHARE = {torch.float32: 0.80, torch.bfloat16: 0.70}
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
TILES = ("1,1024,4", "1,1024,4,2", "1,1024,4,3", "1,1024,2", "1,1024,2,3", "1,512,2,3", "1,2048,4,3", "1,2048,8,3")
TILES_10K = (
    "1,1024,4", "1,1024,4,3", "1,1024,4,4", "1,1024,2,3", "1,1024,2,4", "1,512,2,3", "1,512,2,4", "1,2048,4",
    "1,2048,8", "1,2048,8,3", "1,4096,8",
)  # fmt: skip
PRECISIONS = ("autocast to bfloat16", "float32", "tensorfloat32")
FEW_ROWS = ((1, 10_000_000), (8, 1_000_000), (64, 1_000_000))


def device_time(function, inputs=((),), rounds=15):
    """Microseconds of one call on the device: median and quartiles over replays of a graph of a call for every input.

    What the calls return is kept until the graph is complete, so that each writes to memory of its own. A graph takes
    some ten microseconds to start: short calls are to be many.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function(*inputs[0])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [function(*given) for given in inputs]
    result = timed(graph.replay, len(inputs), rounds)
    del kept
    return result


def several(make, nbytes):
    """Make so many inputs of a size that none of them is in the cache any more when its turn comes."""
    return [make() for _ in range(max(1, min(32, (1 << 30) // nbytes)))]


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
    """Raise unless a result is within a limit of float64, relative to the largest value; return how far off it is."""
    error = ((ours.double() - theirs).abs().max() / (theirs if scale is None else scale).abs().max()).item()
    if not error <= limit:
        raise ArithmeticError(f"WRONG: {what} is off by {error:.1e} of the largest value, allowed {limit:.0e}")
    return error


def check_product(x, logits):
    """Compare forward and adjoint on what will be timed, without the rounding to the storage type."""
    few = slice(0, 8)
    limit = 1e-6 if logits.shape[1] <= 100_000 else 1e-5
    forward = separate_op(x, 1.0, torch.float32)[few]
    adjoint = adjoint_op(logits, 1.0, torch.float32)[few]
    what = f"{tuple(x.shape)} {NAMES[x.dtype]} of strides {x.stride()}"
    logits_64, gradient_64 = separate_scan(x[few].double(), 1.0), separate_adjoint(logits[few].double(), 1.0)
    rounding = limit + torch.finfo(x.dtype).eps
    agree(f"rounded forward {what}", separate_op(x, 1.0, x.dtype)[few], logits_64, rounding)
    agree(f"rounded backward {what}", adjoint_op(logits, 1.0, x.dtype)[few], gradient_64, rounding)
    return {
        "forward": agree(f"forward {what}", forward, logits_64, limit),
        "backward": agree(f"backward {what}", adjoint, gradient_64, limit),
    }


def matrices(num_classes, dtype, batch=BATCH):
    """Several sets of padded outputs of a layer, outputs without padding, logits, and room for logits."""

    def one():
        logits = torch.empty(batch, num_classes, device="cuda", dtype=dtype).normal_()
        rows = [outputs(num_classes, dtype, padded, batch) for padded in (True, False)]
        return *rows, logits, torch.empty_like(logits)

    return several(one, batch * num_classes * dtype.itemsize)


def copied(sets):
    copy = device_time(lambda x, plain, logits, room: room.copy_(logits), sets)
    return copy | {"terabytes_per_second": 2e-6 * sets[0][2].nbytes / copy["us"]}


def product(num_classes, dtype):
    """Forward and adjoint, with padded rows as the head makes them, and with plain ones."""
    sets = matrices(num_classes, dtype)
    copy = copied(sets)
    say(f"{of(dtype, num_classes)}: copy {copy['terabytes_per_second']:.2f} TB/s")
    found = {"copy": copy, "sets": len(sets), "errors": check_product(sets[0][0], sets[0][2])}
    for form, function in {
        "forward": lambda x, plain, logits, room: separate_op(x, 1.0, dtype),
        "backward": lambda x, plain, logits, room: adjoint_op(logits, 1.0, dtype),
        "forward, plain rows": lambda x, plain, logits, room: separate_op(plain, 1.0, dtype),
    }.items():
        found[form] = against(device_time(function, sets), copy)
        say(f"{of(dtype, num_classes)}: {form} {found[form]['of_copy']:.1%} of copy")
    return found


def rotated(num_classes, dtype):
    """The Householder basis, forward and adjoint."""
    sets = matrices(num_classes, dtype)
    x, _, logits, room = sets[0]
    limit = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps

    def forward(x, plain, logits, room):
        triton_householder.launch(x, room, num_classes - 1, 1.0, adjoint=False)

    def backward(x, plain, logits, room):
        triton_householder.launch(logits, x, num_classes - 1, 1.0, adjoint=True)

    expected, gradient = separate_householder(x[:8].double(), 1.0), householder_adjoint(logits[:8].double(), 1.0)
    forward(*sets[0])
    backward(*sets[0])
    error = agree("householder forward", room[:8], expected, limit)
    agree("householder backward", x[:8], gradient, limit)
    found = {"error": error, "forward": device_time(forward, sets), "backward": device_time(backward, sets)}
    say(f"householder {of(dtype, num_classes)}: {found['forward']['us']:,.0f} and {found['backward']['us']:,.0f} us")
    return found


def use_tile(text):
    tile = Tile(*map(int, text.split(",")))
    triton_scan.choose_tile = lambda *_: tile
    triton_scan.launch_plan.cache_clear()


def swept(dtype, tile, num_classes):
    """Forward and adjoint with one tile, as shares of the copy."""
    sets, usual = matrices(num_classes, dtype), triton_scan.choose_tile
    copy = copied(sets)
    use_tile(tile)
    try:
        check_product(sets[0][0], sets[0][2])
        forward = against(device_time(lambda x, *_: separate_op(x, 1.0, dtype), sets, 7), copy)
        backward = against(device_time(lambda x, plain, logits, _: adjoint_op(logits, 1.0, dtype), sets, 7), copy)
    finally:
        triton_scan.choose_tile = usual
        triton_scan.launch_plan.cache_clear()
    say(f"tile {tile}, {of(dtype, num_classes)}: {forward['of_copy']:.1%} forward, {backward['of_copy']:.1%} backward")
    return {"forward": forward, "backward": backward}


def other(name, dtype, num_classes=32_768):
    """The dense matrix, the compiled scan or the kernel, forward and backward together."""
    x = outputs(num_classes, dtype, True).requires_grad_()
    g = torch.randn(BATCH, num_classes, device="cuda").to(dtype)
    form = separate
    if name == "dense":
        matrix = simplex(num_classes, dtype=dtype, device="cuda")
        form = lambda x: x @ matrix  # noqa: E731
    elif name == "compiled scan":
        form = torch.compile(functools.partial(separate, impl="scan"), fullgraph=True)
    result = device_time(lambda: torch.autograd.grad(form(x), x, g), rounds=7)
    say(f"C = {num_classes:,}, {name}, {NAMES[dtype]}: {result['us']:,.0f} us")
    return result


def heads(precision, num_classes=1_000, rounds=31):
    """The whole head with its loss, forward and backward, in one precision, beside a plain nn.Linear."""
    x = torch.randn(BATCH, FEATURES, device="cuda", requires_grad=True)
    target = torch.randint(num_classes, (BATCH,), device="cuda")
    plain, ours = nn.Linear(FEATURES, num_classes).cuda(), MaxSeparationHead(FEATURES, num_classes).cuda()
    forms = {
        "plain": (plain, lambda: F.cross_entropy(plain(x), target)),
        "row kernel": (ours, lambda: fused_cross_entropy(ours, x, target)),
        "separate": (ours, lambda: F.cross_entropy(ours(x), target)),
    }
    half = precision == "autocast to bfloat16"
    found = {}

    def step(head, loss):
        with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
            value = loss()
        torch.autograd.grad(value, [x, head.weight, head.bias])

    torch.backends.cuda.matmul.allow_tf32 = precision == "tensorfloat32"
    try:
        rough = precision != "float32"
        found["errors"] = {name: check_head(name, x, target, *form, half, rough) for name, form in forms.items()}
        for name, form in forms.items():
            result = device_time(step, [form] * 10, rounds)
            result["over_plain"] = result["us"] / found.get("plain", result)["us"] - 1
            result["eager"] = timed(lambda form=form: step(*form), rounds=rounds)
            found[name] = result
            told = f"{result['us']:.1f} us, {result['over_plain']:+.1%}, eager {result['eager']['us']:.0f} us"
            say(f"head C={num_classes}, {precision}, {name}: {told}")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    return found


def check_head(name, x, target, head, loss, half, rough):
    """Compare loss and gradients with float64; products have errors of their own, on tensor cores of a percent."""
    with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
        value = loss()
    parameters = [x, head.weight, head.bias]
    wide = [t.detach().double().requires_grad_() for t in parameters]
    logits = F.linear(*wide)
    expected = F.cross_entropy(logits if name == "plain" else separate_scan(logits, head.radius), target)
    found = {"loss": agree(f"loss by {name}", value, expected, 1e-2 if rough else 1e-5)}
    gradients = zip(
        ("x", "weight", "bias"),
        torch.autograd.grad(value, parameters),
        torch.autograd.grad(expected, wide),
        strict=True,
    )
    limit = 3e-2 if rough else 1e-4
    return found | {what: agree(f"gradient of {what} by {name}", a, b, limit) for what, a, b in gradients}


def growth(num_classes):
    """Forward and backward of the product at one batch."""
    sets = matrices(num_classes, torch.float32, GROWTH_BATCH)
    check_product(sets[0][0], sets[0][2])
    forward = device_time(lambda x, *_: separate_op(x, 1.0, torch.float32), sets, 9)
    backward = device_time(lambda x, plain, logits, _: adjoint_op(logits, 1.0, torch.float32), sets, 9)
    say(f"batch {GROWTH_BATCH}, C = {num_classes:,}: {forward['us'] + backward['us']:,.1f} us")
    return {"forward": forward, "backward": backward, "us": forward["us"] + backward["us"]}


def few_rows(batch, num_classes):
    """A long row alone must not leave the device idle."""
    sets = matrices(num_classes, torch.float32, batch)
    check_product(sets[0][0], sets[0][2])
    copy = copied(sets)
    forward = against(device_time(lambda x, *_: separate_op(x, 1.0, torch.float32), sets), copy)
    backward = against(device_time(lambda x, plain, logits, _: adjoint_op(logits, 1.0, torch.float32), sets), copy)
    say(f"batch {batch}, C = {num_classes:,}: {forward['of_copy']:.1%} forward, {backward['of_copy']:.1%} backward")
    return {"copy": copy, "forward": forward, "backward": backward}


def padded(dtype, rows=999):
    """Weight and bias in front of zeros by one launch, beside torch's copies of them alone, without zeros."""
    weight, bias = torch.randn(rows, FEATURES, device="cuda"), torch.randn(rows, device="cuda")
    outputs = padded_op(weight, bias, dtype)
    for values, out in zip((weight, bias), outputs, strict=True):
        if not (torch.equal(out[:rows], values.to(dtype)) and not out[rows:].any()):
            raise ArithmeticError(f"WRONG: {tuple(values.shape)} padded in {NAMES[dtype]}")

    def copies():
        for values, out in zip((weight, bias), outputs, strict=True):
            out[:rows].copy_(values)

    again = [()] * 10
    copy = device_time(copies, again)
    result = against(device_time(lambda: padded_op(weight, bias, dtype), again), copy)
    say(f"{rows} x {FEATURES} padded in {NAMES[dtype]}: {result['us']:.1f} us, copies {copy['us']:.1f} us")
    return {"copy": copy, "padded": result}


def of(dtype, size):
    return f"{NAMES[dtype]} C={size}"


CASES = {
    "product": {of(dtype, size): functools.partial(product, size, dtype) for size in SIZES for dtype in SHARE},
    "head": {precision: functools.partial(heads, precision) for precision in PRECISIONS},
    "padding": {NAMES[dtype]: functools.partial(padded, dtype) for dtype in SHARE},
    "growth": {size: functools.partial(growth, size) for size in GROWTH},
    "householder": {of(dtype, size): functools.partial(rotated, size, dtype) for size in SIZES for dtype in SHARE},
    "few rows": {f"batch {b}, C={size}": functools.partial(few_rows, b, size) for b, size in FEW_ROWS},
    "others": {
        f"{name}, {NAMES[dtype]}": functools.partial(other, name, dtype)
        for dtype in SHARE
        for name in ("kernel", "compiled scan", "dense")
    },
    "sweep": {
        f"{NAMES[dtype]} {tile}": functools.partial(swept, dtype, tile, 100_000) for dtype in SHARE for tile in TILES
    },
    "sweep10k": {
        f"{NAMES[dtype]} {tile}": functools.partial(swept, dtype, tile, 10_000) for dtype in SHARE for tile in TILES_10K
    },
}
"""Every part's cases, most important first."""
USUAL = [part for part in CASES if not part.startswith("sweep")]


def judge(part, record):
    """Say which targets a part has met; what was not measured has failed already."""
    found = record.results.get(part, {})
    if part == "product":
        for name, results in found.items():
            for form in ("forward", "backward"):
                share = SHARE[torch.float32 if name.startswith("float32") else torch.bfloat16]
                record.target(f"{form} of copy, {name}", results[form]["of_copy"], least=share)
    elif part == "head":
        for precision, results in found.items():
            for form, most in (("row kernel", 0.03), ("separate", 0.15)):
                record.target(f"head over plain by {form}, {precision}", results[form]["over_plain"], most=most)
    elif part == "householder":
        scans = record.results.get("product", {})
        gains = {
            f"{name} {form}": scans[name][form]["us"] / found[name][form]["us"] - 1
            for name in found.keys() & scans.keys()
            for form in ("forward", "backward")
        }
        record.about["householder_faster_by"] = gains
        say(f"Householder faster than the scan by {max(gains.values(), default=math.nan):+.1%} at its best")
    elif part == "growth" and len(found) == len(GROWTH):
        points = [(math.log(size), math.log(found[size]["us"])) for size in GROWTH if size >= 100_000]
        slope = statistics.linear_regression(*zip(*points, strict=True)).slope
        record.target("growth: slope from C = 100,000", slope, 0.95, 1.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(USUAL), help=f"comma-separated, of {', '.join(CASES)}")
    parser.add_argument("--tile", help="rows,classes,warps[,stages] of the product's kernel instead of its own choice")
    parser.add_argument("--out", type=Path, default=Path("results/head_gpu.json"))
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    if not set(parts) <= set(CASES):
        parser.error(f"--parts must be of {', '.join(CASES)}, got {arguments.parts}")
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device; benchmarks/head_cpu.py does not")
    torch.manual_seed(0)
    if arguments.tile:
        use_tile(arguments.tile)
    record = Record(arguments.out, batch=BATCH, features=FEATURES, growth_batch=GROWTH_BATCH)
    for part in parts:
        for case, measure in CASES[part].items():
            record.run(part, case, measure)
        judge(part, record)
    return record.end()


if __name__ == "__main__":
    raise SystemExit(main())
