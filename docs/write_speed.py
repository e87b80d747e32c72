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


def record(name: str) -> dict:
    """A benchmark's record."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def product() -> str:
    """How much of a copy's bandwidth the kernels reach, and Householder's form beside them."""
    results = record("head_gpu")["results"]
    rows = [
        "| classes, numbers | copy | forward | backward | forward, rows without padding | time in Householder's basis |"
    ]
    rows.append("|---|---|---|---|---|---|")
    order = sorted(results["product"], key=lambda name: (name.split()[0], int(name.split("=")[1])))
    for name in order:
        dtype, size = name.split(" C=")
        found, other = results["product"][name], results["householder"][name]
        shares = " | ".join(f"{found[form]['of_copy']:.0%}" for form in ("forward", "backward", "forward, plain rows"))
        ours, theirs = ((each["forward"]["us"] + each["backward"]["us"]) for each in (found, other))
        copy = f"{found['copy']['terabytes_per_second']:.2f} TB/s"
        rows.append(f"| {int(size):,}, {dtype} | {copy} | {shares} | {theirs / ours - 1:+.0%} |")
    return "\n".join(rows) + "\n"


def head() -> str:
    """The whole head with its loss at 1,000 classes beside nn.Linear."""
    rows = [
        "| precision | nn.Linear, F.cross_entropy | head, row kernel | head, F.cross_entropy |",
        "|---|---|---|---|",
    ]
    for precision, found in record("head_gpu")["results"]["head"].items():
        cells = [_microseconds(found["plain"])]
        cells += [
            f"{_microseconds(found[form])}, {found[form]['over_plain']:+.1%}" for form in ("row kernel", "separate")
        ]
        rows.append(f"| {precision} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _microseconds(found: dict) -> str:
    return f"{found['us']:.0f} µs (from Python {found['eager']['us']:,.0f})"


def fused() -> str:
    """The loss that never holds the logits, against every other way to the same gradients."""
    results = record("fused_gpu")["results"]
    sizes = sorted((part for part in results if part.startswith("C=")), key=lambda part: int(part[2:]))
    rows = ["| | " + " | ".join(f"{int(part[2:]):,} classes" for part in sizes) + " |"]
    rows.append("|---" * (1 + len(sizes)) + "|")
    for name in dict.fromkeys(name for part in sizes for name in results[part]):
        cells = [_row(results[part].get(name)) for part in sizes]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _row(found: dict | None) -> str:
    if found is None:
        return "-"
    if not found["ms"]:
        return found["problem"]
    graph = f" ({found['in_a_cuda_graph']['ms']:.2f} in a CUDA graph)" if "in_a_cuda_graph" in found else ""
    return f"{found['ms']:.2f} ms{graph}, {found['peak_bytes'] / 1e6:,.0f} MB"


def forms() -> str:
    """The products that end in exponentials, in both forms, beside the bare product."""
    columns = ("log-sum-exp", "gradient", "log-sum-exp, offset", "gradient, offset and its own")
    titles = ("log-sum-exp", "gradient", "log-sum-exp with a bias", "gradient with a bias")
    rows = ["| samples, features, classes | torch.mm | " + " | ".join(titles) + " |", "|---" * 6 + "|"]
    for shape, found in record("product_forms_gpu")["results"].items():
        if "torch.mm" not in found:
            continue  # two products in one
        numbers = ", ".join(f"{int(part.split()[0]):,}" for part in shape.split(", "))
        rates = {form: {name: f"{row['tflops']:.0f}" for name, row in kinds.items()} for form, kinds in found.items()}
        cells = [f"{rates['hopper'][name]} ({rates['tiles'][name]})" for name in columns]
        rows.append(f"| {numbers} | {rates['torch.mm']['product']} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def tails() -> str:
    """What makes the gradient of the last classes' rows, in both forms."""
    columns = {"rows": "alone", "rows, shift": "Householder", "rows, offset and its own": "with a bias"}
    rows = ["| samples, features, last classes | " + " | ".join(columns.values()) + " |", "|---" * 4 + "|"]
    for shape, found in record("product_forms_gpu")["results"].items():
        if "torch.mm" not in found:
            numbers = ", ".join(f"{int(part.split()[0]):,}" for part in shape.split(", "))
            times = {
                form: {name: f"{1e3 * row['ms']:.0f}" for name, row in kinds.items()} for form, kinds in found.items()
            }
            rows.append(
                f"| {numbers} | "
                + " | ".join(f"{times['hopper'][name]} ({times['tiles'][name]})" for name in columns)
                + " |"
            )
    return "\n".join(rows) + "\n"


def step() -> str:
    """One training step at ten million classes."""
    steps = record("fused_gpu")["results"]["step"]
    found, other = steps["C=10000000"], steps.get("C=10000000, Householder")
    beside = "" if other is None else f", {other['ms']:.0f} in the Householder basis"
    return (
        f"One step of SGD at {found['num_classes']:,} classes of {found['width']} features, batch {found['batch']:,}, "
        f"bfloat16: {found['ms']:.0f} ms ({found['least']:.0f} to {found['most']:.0f}{beside}), "
        f"{found['peak_bytes'] / 1e9:.1f} GB at the peak, of which the weight and its gradient are "
        f"{2 * found['weight_bytes'] / 1e9:.1f}.\n"
    )


def targets() -> str:
    """What was aimed at and missed."""
    rows = []
    met = total = 0
    for name in ("head_gpu", "fused_gpu"):
        for target in record(name)["targets"]:
            total, met = total + 1, met + target["met"]
            if not target["met"]:
                least, most = target["least"], target["most"]
                limit = f"at most {most}" if least is None else f"at least {least}"
                rows.append(f"| {target['name']} | {target['value']:.3f} | {limit} |")
    names = "(`targets` in results/head_gpu.json and fused_gpu.json names them all)"
    if met == total:
        return f"All {total} targets are met {names}.\n"
    table = ["| aimed at | found | limit |", "|---|---|---|", *rows]
    return f"{met} of {total} targets are met {names}. The others:\n\n" + "\n".join(table) + "\n"


CONTENTS = {
    "product": product,
    "head": head,
    "fused": fused,
    "step": step,
    "forms": forms,
    "tails": tails,
    "targets": targets,
}


def rewritten(text: str) -> str:
    """The page with its tables replaced."""
    for name, content in CONTENTS.items():
        begin, end = (mark.format(name) for mark in MARK)
        before, rest = text.split(begin)
        text = before + begin + content() + end + rest.split(end)[1]
    return text


def growth_figure() -> str:
    """Time of the product against the number of classes, both logarithmic."""
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
