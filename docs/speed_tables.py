"""Write the tables and the figure of docs/speed.md from the records of the benchmarks.

python docs/speed_tables.py             # rewrites docs/speed.md and docs/images/growth.svg
python docs/speed_tables.py --check     # exits with 1 if the page would change
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from maxsep.lab.report.svg import HEAD_COLOURS, SOFT, canvas, finish

ROOT = Path(__file__).parent.parent
PAGE, FIGURE = ROOT / "docs" / "speed.md", ROOT / "docs" / "images" / "growth.svg"
METHODS = (
    "maxsep", "maxsep, compiled", "plain",
    "eager", "torch.compile", "max-autotune", "cce_exact", "cce_torch_compile", "liger", "quack",
)  # fmt: skip


def record(name: str) -> dict[str, Any]:
    """Read the record of a benchmark."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def table(titles: list[str], rows: list[list[str]]) -> str:
    """Format a table in Markdown."""
    header, *lines = (f"| {' | '.join(line)} |\n" for line in (titles, *rows))
    return header + "|---" * len(titles) + "|\n" + "".join(lines)


def origin(benchmark: dict[str, Any]) -> str:
    """Name the commit and the versions of a record."""
    versions = benchmark["about"]["versions"]
    packages = ("torch", "triton", "liger-kernel", "cut-cross-entropy", "quack-kernels")
    named = ", ".join(f"{name} {versions[name]}" for name in packages if versions.get(name))
    return f"\nCommit {benchmark['about']['commit']}, {named}.\n"


def product() -> str:
    """Tabulate the share of a copy's bandwidth that the product with the matrix reaches."""
    benchmark = record("head_gpu")
    rows = []
    for size in (10_000, 100_000, 1_000_000):
        cases = [benchmark["results"]["product"][f"{dtype} C={size}"] for dtype in ("bfloat16", "float32")]
        shares = [f"{case[way]['of_copy']:.0%}" for case in cases for way in ("forward", "backward")]
        rows.append([f"{size:,}", *shares])
    return table(["classes", "bfloat16 forward", "backward", "float32 forward", "backward"], rows) + origin(benchmark)


def head() -> str:
    """Tabulate the head with its loss at 1,000 classes against nn.Linear, in microseconds."""
    benchmark = record("head_gpu")
    rows = []
    for precision, case in benchmark["results"]["head"].items():
        plain, ours = case["plain"], case["separate"]
        graph = [f"{plain['us']:.0f}", f"{ours['us']:.0f} ({ours['over_plain']:+.0%})"]
        rows.append([precision, *graph, *(f"{form['eager']['us']:,.0f}" for form in (plain, ours))])
    titles = ["precision", "nn.Linear, CUDA graph", "head, CUDA graph", "nn.Linear, Python", "head, Python"]
    return table(titles, rows) + origin(benchmark)


def fused() -> str:
    """Tabulate time and memory of the fused loss by shape and method; empty without a grid in the record."""
    benchmark = record("fused_gpu")
    shapes = benchmark.get("grid", [])
    methods = [method for method in METHODS if any(shape["ms"].get(method) for shape in shapes)]
    rows = [[_shape(shape), *(_cell(shape, method) for method in methods)] for shape in shapes]
    return table(["batch, features, classes", *methods], rows) + origin(benchmark) if shapes else ""


def _shape(shape: dict[str, Any]) -> str:
    sizes = ", ".join(f"{shape[name]:,}" for name in ("batch", "features", "classes"))
    bias = ", bias" if shape["bias"] else ""
    weights = "" if shape["weights"] == "bfloat16" else f", {shape['weights']} weights"
    return sizes + bias + weights + (", CUDA graph" if shape.get("graph") else "")


def _cell(shape: dict[str, Any], method: str) -> str:
    ms, peak = shape["ms"].get(method), shape["peak_mb"].get(method)
    return "-" if ms is None else f"{ms:.2f}, {peak:,.0f}"


def cpu() -> str:
    """Tabulate head, product and loss on one thread of a CPU."""
    benchmark = record("head_cpu")
    results, rows = benchmark["results"], []
    for size in (1_000, 10_000, 100_000):
        case = results.get(f"product C={size}")
        dense = "-" if case is None else f"{1 / case['ratio']:.2f}"
        rows.append([f"{size:,}", f"{results[f'head C={size}']['overhead']:+.0%}", dense])
    losses = results["losses C=50000"]
    sizes = [
        [name, f"{case['seconds']:.2f}", f"{case['mib_beyond_weight_and_gradient']:.0f}"]
        for name, case in losses.items()
        if "seconds" in case  # an older torch lacks a loss
    ]
    return (
        table(["classes", "head and loss over nn.Linear", "O(C) over dense product"], rows)
        + "\n"
        + table(["loss of 50,000 classes", "seconds", "MiB beyond weight and gradient"], sizes)
        + origin(benchmark)
    )


TABLES = {"product": product, "head": head, "fused": fused, "cpu": cpu}


def rewritten(text: str) -> str:
    """Return the page with its tables replaced."""
    mark = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- /table -->)", re.S)
    return mark.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], text)


def growth_figure() -> str:
    """Draw the time of the product against the number of classes, both logarithmic."""
    benchmark = record("head_gpu")
    growth = {int(size): case["us"] / 1e3 for size, case in benchmark["results"]["growth"].items()}
    classes = sorted(growth)
    times = [growth[size] for size in classes]
    (slope,) = (target["value"] for target in benchmark["targets"] if target["name"].startswith("growth"))
    about = benchmark["about"]
    where = f"Forward and backward, float32, batch {about['growth_batch']}, {about['hardware']['device']}"
    with canvas(5.6, 3.6) as (figure, axes):
        axes.loglog(classes, times, "o-", color=HEAD_COLOURS["maxsep"], label="x times P, and its gradient")
        line = [times[-1] * size / classes[-1] for size in classes]
        axes.loglog(classes, line, "--", color=SOFT, label="in proportion to C", zorder=1)
        axes.set_title(where)
        axes.set_xlabel("classes")
        axes.set_ylabel("milliseconds")
        axes.legend(loc="upper left")
        axes.text(0.98, 0.05, f"slope from 100,000 on: {slope:.2f}", transform=axes.transAxes, ha="right", color=SOFT)
        words = f"From {classes[0]:,} to {classes[-1]:,} classes: {times[0]:.3f} to {times[-1]:.1f} ms."
        return finish(figure, "growth", "Time against the number of classes", where, words).file


if __name__ == "__main__":
    text = PAGE.read_text()
    if "--check" in sys.argv:
        sys.exit(rewritten(text) != text)
    PAGE.write_text(rewritten(text))
    FIGURE.write_text(growth_figure(), encoding="utf-8")
