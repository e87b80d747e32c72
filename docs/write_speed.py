"""Write the tables and the figure of docs/speed.md from the benchmarks' records.

python docs/write_speed.py           # rewrites docs/speed.md and docs/images/growth.svg
"""

from __future__ import annotations

import json
from pathlib import Path

from maxsep.lab.report.svg import HEAD_COLOURS, SOFT, canvas, finish

ROOT = Path(__file__).parent.parent
PAGE, FIGURE = ROOT / "docs" / "speed.md", ROOT / "docs" / "images" / "growth.svg"
MARK = "<!-- {}: written from results by docs/write_speed.py -->\n", "<!-- /{} -->"


LABELS = {
    "plain": "nn.Linear, F.cross_entropy",
    "separate": "head, F.cross_entropy",
    "fused": "head, fused_cross_entropy",
}
METHODS = (
    "maxsep", "plain", "eager", "torch.compile", "max-autotune", "cce_exact", "cce_torch_compile", "liger", "quack",
)  # fmt: skip


def record(name: str) -> dict:
    """Read the record of a benchmark."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def table(titles: list[str], rows: list[list[str]]) -> str:
    """Format a table in Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def origin(found: dict) -> str:
    """Name the commit and the versions that a record was made with."""
    about = found["about"]
    packages = ("torch", "triton", "liger-kernel", "cut-cross-entropy", "quack-kernels")
    versions = [f"{name} {about['versions'][name]}" for name in packages if about["versions"].get(name)]
    return f"\nCommit {about['commit']}, {', '.join(versions)}.\n"


def product() -> str:
    """Share of a copy's bandwidth that `separate` and its adjoint reach."""
    found = record("head_gpu")
    cases = found["results"]["product"]
    rows = []
    for name in sorted(cases, key=lambda name: (name.split()[0], int(name.split("=")[1]))):
        dtype, size = name.split(" C=")
        copy = f"{cases[name]['copy']['terabytes_per_second']:.2f} TB/s"
        shares = [f"{cases[name][form]['of_copy']:.0%}" for form in ("forward", "backward")]
        rows.append([f"{int(size):,}, {dtype}", copy, *shares])
    return table(["classes, precision", "copy", "forward", "backward"], rows) + origin(found)


def head() -> str:
    """The head with its loss at 1,000 classes against nn.Linear."""
    found = record("head_gpu")
    cases = found["results"]["head"]
    forms = [form for form in LABELS if all(form in case for case in cases.values())]
    rows = [[precision, *(_microseconds(case[form]) for form in forms)] for precision, case in cases.items()]
    return table(["precision", *(LABELS[form] for form in forms)], rows) + origin(found)


def _microseconds(found: dict) -> str:
    over = f", {found['over_plain']:+.1%}" if found.get("over_plain") else ""
    return f"{found['us']:.0f} µs (from Python {found['eager']['us']:,.0f}){over}"


def grid() -> str:
    """Time and memory of the loss for every shape and method of the record."""
    found = record("fused_gpu")
    shapes = found.get("grid", [])
    if not shapes:
        return ""
    methods = [method for method in METHODS if any(shape["ms"].get(method) for shape in shapes)]
    rows = [[_shape(shape), *(_cell(shape, method) for method in methods)] for shape in shapes]
    return table(["batch, features, classes", *methods], rows) + origin(found)


def _shape(shape: dict) -> str:
    sizes = ", ".join(f"{shape[name]:,}" for name in ("batch", "features", "classes"))
    bias = ", bias" if shape["bias"] else ""
    weights = "" if shape["weights"] == "bfloat16" else f", {shape['weights']} weights"
    return sizes + bias + weights + (", in a CUDA graph" if shape.get("graph") else "")


def _cell(shape: dict, method: str) -> str:
    ms, peak = shape["ms"].get(method), shape["peak_mb"].get(method)
    return "-" if ms is None else f"{ms:.2f}, {peak:,.0f}"


def step() -> str:
    """One training step at ten million classes."""
    found = record("fused_gpu")
    if "grid" not in found or "step" not in found["results"]:
        return ""
    case = found["results"]["step"]["C=10000000"]
    return (
        f"One step of SGD at {case['num_classes']:,} classes of {case['width']} features, batch {case['batch']:,}, "
        f"bfloat16: {case['ms']:.0f} ms ({case['least']:.0f} to {case['most']:.0f}), "
        f"{case['peak_bytes'] / 1e9:.1f} GB at the peak, of which the weight and its gradient are "
        f"{2 * case['weight_bytes'] / 1e9:.1f}.\n"
    )


def misses() -> str:
    """Targets of the record that are not met."""
    found = record("fused_gpu")
    if "grid" not in found:
        return ""
    missed = [target for target in found["targets"] if not target["met"]]
    if not missed:
        return f"\nAll {len(found['targets'])} targets of the record are met.\n"
    rows = [[target["name"], f"{target['value']:.3f}", _limit(target)] for target in missed]
    heading = f"\n{len(missed)} of {len(found['targets'])} targets of the record are missed:\n\n"
    return heading + table(["target", "measured", "limit"], rows)


def _limit(target: dict) -> str:
    return f"at most {target['most']}" if target["least"] is None else f"at least {target['least']}"


CONTENTS = {"product": product, "head": head, "grid": grid, "step": step, "misses": misses}


def rewritten(text: str) -> str:
    """Return the page with its tables replaced."""
    for name, content in CONTENTS.items():
        begin, end = (mark.format(name) for mark in MARK)
        before, rest = text.split(begin)
        text = before + begin + content() + end + rest.split(end)[1]
    return text


def growth_figure() -> str:
    """Draw the time of the product against the number of classes, both logarithmic."""
    found = record("head_gpu")
    sizes = sorted(found["results"]["growth"], key=int)
    times = [found["results"]["growth"][size]["us"] / 1e3 for size in sizes]
    (slope,) = (target["value"] for target in found["targets"] if target["name"].startswith("growth"))
    where = (
        f"Forward and backward, float32, batch {found['about']['growth_batch']}, {found['about']['hardware']['device']}"
    )
    with canvas(5.6, 3.6) as (figure, axes):
        classes = [int(size) for size in sizes]
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
    PAGE.write_text(rewritten(PAGE.read_text()))
    FIGURE.write_text(growth_figure(), encoding="utf-8")
