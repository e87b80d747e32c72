"""The loss of many classes on one GPU against exact rivals, forward and backward: time and peak memory in 49 shapes.

Every loss of every row is first compared with float64, in chunks of samples. A row is a dictionary of batch, features,
classes, bias, precision of the weights (`float32` under autocast), milliseconds and peak megabytes by loss. Where the
fastest rival takes under 1 ms from Python, the host decides: `ms` then holds the times of replayed CUDA graphs
(`"graph": true`) and `python_ms` those from Python. `float32_sums` marks rows that may take more memory. The record is
written after every row; rows are added to those of a record of the same commit, so that several calls make one table.

    python benchmarks/fused_gpu.py --packages FOLDER     with Liger-Kernel, cut-cross-entropy and QuACK in this folder
    python benchmarks/fused_gpu.py --rows 0:25           the first 25 rows
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from gpu_timing import captured, milliseconds, peak_bytes
from record import Record, say
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead
from maxsep.losses import fused_cross_entropy
from maxsep.ops.linear_cross_entropy import choose_algorithm
from maxsep.ops.linear_cross_entropy.over_samples import is_single_chunk

GRID = [(b, d, c) for d in (256, 512, 1024, 2048, 4096) for c in (10_000, 32_000, 128_000) for b in (2048, 8192)]
MANY = [(4096, 512, 100_000), (4096, 512, 1_000_000)]
MODELS = [
    (8192, 768, 50_257), (4096, 1024, 128_000), (8192, 2048, 32_000), (2048, 4096, 128_256), (4096, 512, 200_000),
]  # fmt: skip
AGAIN = [
    (8192, 256, 32_000), (8192, 512, 128_000), (2048, 1024, 32_000), (8192, 2048, 32_000), (4096, 512, 200_000),
    (2048, 4096, 128_256),
]  # fmt: skip
ROWS = [
    *({"shape": shape, "bias": False, "weights": "bfloat16"} for shape in (*MANY, *MODELS, *GRID)),
    *({"shape": shape, "bias": True, "weights": "bfloat16"} for shape in AGAIN),
    *({"shape": shape, "bias": False, "weights": "float32"} for shape in AGAIN),
]
FEW = {*MANY, *MODELS[:4], *((b, d, 32_000) for d in (512, 1024, 4096) for b in (2048, 8192))}
"""Twelve shapes in which the rivals beside torch run, without bias and in bfloat16."""
AUTOTUNED = {MANY[0], *MODELS[:3]}
LIMIT, WORST = 1.10, 1.25
OVER_COMPILED = {MANY[0]: 1.05, MANY[1]: 1.0}
"""Limits of the time over torch.compile's; elsewhere LIMIT holds over the fastest rival."""
OURS = ("maxsep", "maxsep, compiled")
NOT_CAPTURED = ("cce_exact", "cce_torch_compile", "liger", "quack")
"""Rivals that wait for the GPU; a capture that fails leaves torch's random generator unusable."""


def eager(layer, x, y):
    return F.cross_entropy(layer(x), y)


def liger(layer, x, y):
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return LigerFusedLinearCrossEntropyLoss()(layer.weight, x, y)


def cut(layer, x, y, impl):
    from cut_cross_entropy import linear_cross_entropy

    return linear_cross_entropy(x, layer.weight, y, impl=impl)


def quack(layer, x, y):
    from quack.linear_cross_entropy import chunked_linear_cross_entropy

    return chunked_linear_cross_entropy(x, layer.weight, y)


def losses(row):
    """Return the losses of a row by name: all in every row, some only where they have been asked for."""
    chosen = {
        "maxsep": fused_cross_entropy,
        "maxsep, compiled": torch.compile(fused_cross_entropy, dynamic=False),
        "plain": fused_cross_entropy,
        "eager": eager,
        "torch.compile": torch.compile(eager, dynamic=False),
    }
    if row["bias"] or row["weights"] != "bfloat16":
        return chosen
    if row["shape"] in AUTOTUNED:
        chosen["max-autotune"] = torch.compile(eager, dynamic=False, mode="max-autotune-no-cudagraphs")
    if row["shape"] in FEW:
        chosen |= {
            "cce_exact": functools.partial(cut, impl="cce_exact"),
            "cce_torch_compile": functools.partial(cut, impl="torch_compile"),
            "liger": liger,
            "quack": quack,
        }
    return chosen


def problem(name, row):
    batch, features, classes = row["shape"]
    torch.manual_seed(0)
    dtype = getattr(torch, row["weights"])
    kind = MaxSeparationHead if name in OURS else nn.Linear
    layer = kind(features, classes, bias=row["bias"], device="cuda", dtype=dtype)
    x = torch.randn(batch, features, device="cuda").bfloat16().requires_grad_()
    return layer, x, torch.randint(classes, (batch,), device="cuda")


def step_of(loss, layer, x, y, autocast):
    def step():
        x.grad = None
        for parameter in layer.parameters():
            parameter.grad = None
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            value = loss(layer, x, y)
        value.backward()
        return value

    return step


@torch.no_grad()
def exact(layer, x, y, rows=512):
    """Return loss and gradients in float64 and chunks of samples, through the folded layer of a head."""
    weight, bias = layer.weight, layer.bias
    head = layer if isinstance(layer, MaxSeparationHead) else None
    if head is not None:
        wide = MaxSeparationHead(head.in_features, head.num_classes, head.radius, head.bias is not None)
        wide = wide.to("cuda", torch.float64)
        wide.load_state_dict(head.state_dict())
        weight, bias = wide.linear_form()
    weight = weight.double()
    value, dx, dw = 0.0, [], torch.zeros_like(weight)
    for part, labels in zip(x.double().split(rows), y.split(rows), strict=True):
        z = F.linear(part, weight, None if bias is None else bias.double())
        value += F.cross_entropy(z, labels, reduction="sum").item()
        g = z.softmax(1)
        g[torch.arange(len(g), device=g.device), labels] -= 1
        dx.append(g @ weight)
        dw.addmm_(g.T, part)
    if head is not None:
        from maxsep.ops import adjoint

        dw = adjoint(dw.T.contiguous(), head.radius).T
    return value / len(y), torch.cat(dx) / len(y), dw / len(y)


def check(name, loss, row):
    """Raise unless loss and gradients are within 2 percent of float64, which is what bfloat16 products keep."""
    layer, x, y = problem(name, row)
    value = step_of(loss, layer, x, y, row["weights"] == "float32")()
    expected, dx, dw = exact(layer, x, y)
    errors = {"loss": abs(value.item() - expected) / expected}
    for what, ours, theirs in (("x", x.grad, dx), ("weight", layer.weight.grad, dw)):
        errors[what] = max(
            (torch.linalg.norm(a.double() - b) / torch.linalg.norm(b)).item()
            for a, b in zip(ours.split(100_000), theirs.split(100_000), strict=True)
        )
    if not max(errors.values()) < 0.02:
        raise ArithmeticError(f"{name} is off by {errors}")
    return errors


def measure(row):
    """Return the times and peaks of a row, and what went wrong."""
    torch._dynamo.reset()
    python_ms, graph_ms, peak_mb, failed = {}, {}, {}, {}
    for name, loss in losses(row).items():
        try:
            check(name, loss, row)
            gc.collect()
            torch.cuda.empty_cache()
            layer, x, y = problem(name, row)
            step = step_of(loss, layer, x, y, row["weights"] == "float32")
            python_ms[name] = milliseconds(step)["ms"]
            leaves = [x, *layer.parameters()]
            inputs = sum(t.nbytes for t in leaves) + y.nbytes
            peak_mb[name] = (peak_bytes(step, leaves) + inputs) / 1e6
            if name not in NOT_CAPTURED and (name in (*OURS, "plain") or python_ms[name] < 2):
                graph_ms[name] = milliseconds(captured(step))["ms"]
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error)[:200]}"
        layer = x = y = step = leaves = None
        gc.collect()
        torch.cuda.empty_cache()
    batch, features, classes = row["shape"]
    result = {"batch": batch, "features": features, "classes": classes, "bias": row["bias"], "weights": row["weights"]}
    result["float32_sums"] = sums_in_float32(row)
    rivals = [ms for name, ms in python_ms.items() if name not in (*OURS, "plain")]
    if rivals and min(rivals) < 1:
        return result | {"graph": True, "ms": graph_ms, "python_ms": python_ms, "peak_mb": peak_mb, "failed": failed}
    return result | {"ms": python_ms, "peak_mb": peak_mb, "failed": failed}


def sums_in_float32(row):
    """Return whether our loss goes through chunks of samples, whose weight gradients it sums in float32."""
    layer, x, _ = problem("plain", row)
    return choose_algorithm(x, layer.weight) == "samples" and not is_single_chunk(x, layer.weight)


def memory_limit(row):
    """Return the megabytes that our loss may take."""
    batch, features, classes = row["batch"], row["features"], row["classes"]
    weight = classes * features * (2 if row["weights"] == "bfloat16" else 4) / 1e6
    inputs = batch * features * 2 / 1e6
    if classes >= 1_000_000 and features == 512:
        return 1.6 * (2 * weight + inputs)
    compiled = row["peak_mb"].get("torch.compile", 0)
    if batch >= 8 * features and compiled > 500:
        return compiled / 2
    return (5 if row["float32_sums"] else 3.5) * weight + inputs + 300


def judge(record):
    """Compare ours with torch.compile or the fastest exact rival of every row."""
    worst = 0.0
    for row in record.grid:
        shape = row["batch"], row["features"], row["classes"]
        name = f"{' x '.join(map(str, shape))}, bias {row['bias']}, {row['weights']} weights"
        ours = {loss: row["ms"][loss] for loss in OURS if loss in row["ms"]}
        rivals = {rival: ms for rival, ms in row["ms"].items() if rival not in (*OURS, "plain")}
        rival = "torch.compile" if shape in OVER_COMPILED else min(rivals, key=rivals.get, default=None)
        if not ours or rival not in rivals:
            record.failed[name] = f"no comparison: {row['failed']}"
            continue
        mine = min(ours, key=ours.get)
        worst = max(worst, ours[mine] / min(rivals.values()))
        limit = OVER_COMPILED.get(shape, LIMIT)
        record.target(f"time of {mine} over {rival}, {name}", ours[mine] / rivals[rival], most=limit)
        record.target(f"peak memory over its limit, {name}", row["peak_mb"][mine] / memory_limit(row), most=1.0)
    if worst:
        record.target("worst time over the fastest rival of a row", worst, most=WORST)


def training_step(num_classes=10_000_000, features=128, batch=1024, steps=5):
    """Run steps of SGD in place: the loss must fall."""
    head, x, y = problem("maxsep", {"shape": (batch, features, num_classes), "bias": False, "weights": "bfloat16"})
    optimiser = torch.optim.SGD(head.parameters(), lr=100.0, foreach=False)
    values = []

    def step():
        optimiser.zero_grad()
        x.grad = None
        value = fused_cross_entropy(head, x, y)
        value.backward()
        optimiser.step()
        values.append(value.detach())

    torch.cuda.reset_peak_memory_stats()
    found = milliseconds(step, most=steps)
    if not values[-1] < values[0]:
        raise ArithmeticError(f"training did not lower the loss: {values[0]} to {values[-1]}")
    return found | {"num_classes": num_classes, "peak_bytes": torch.cuda.max_memory_allocated()}


def versions_of(*packages):
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=Path, help="folder with the rivals' packages")
    parser.add_argument("--rows", default="0:49", help="first:last of the rows")
    parser.add_argument("--out", type=Path, default=Path("results/fused_gpu.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    if arguments.packages:
        sys.path.insert(0, str(arguments.packages))
    record = Record(arguments.out, versions_of("liger-kernel", "cut-cross-entropy", "quack-kernels"))
    before = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    is_same = before.get("about", {}).get("commit") == record.about["commit"]
    record.grid = before.get("grid", []) if is_same else []
    first, last = map(int, arguments.rows.split(":"))
    for row in ROWS[first:last]:
        record.grid.append(measure(row))
        record.write()
        say(json.dumps(record.grid[-1]))
    if first == 0:
        record.run("step", "C=10000000", training_step)
    judge(record)
    return record.end()


if __name__ == "__main__":
    raise SystemExit(main())
