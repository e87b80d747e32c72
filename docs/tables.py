"""Fill `<!-- table: NAME -->` ... `<!-- /table -->` in README.md and all pages of docs/ with tables from results/runs.

python docs/tables.py             # rewrites the pages
python docs/tables.py --check     # exits with 1 if a page would change
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from maxsep.lab import recipes
from maxsep.lab.estimate import num_train
from maxsep.lab.grid import unique
from maxsep.lab.recipes import paper
from maxsep.lab.report import render, rows, stability, summary
from maxsep.lab.report.controls import Method
from maxsep.lab.report.rows import Setting
from maxsep.lab.report.runs import collect
from maxsep.lab.report.statistics import Difference, MeanInterval, signed
from maxsep.lab.run import find_runs

ROOT = Path(__file__).parent.parent
MARK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)
PLAIN, MATRIX = Method("plain"), Method("maxsep")
WEAK, STRONG, ADJUSTED = "crop_flip", "crop_flip_auto_cutout", "logit_adjusted"
FORMS = (("seconds", ".2f"), ("mib_beyond_weight_and_gradient", ".0f"))
HEADS = {PLAIN: "linear", MATRIX: "maxsep"}
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
CHOSEN = {
    ("cifar10", WEAK): (1e-3, 0.0), ("cifar10", STRONG): (5e-4, 0.2),
    ("cifar100", WEAK): (1e-3, 0.0), ("cifar100", STRONG): (5e-4, 0.0),
}  # fmt: skip
"""Weight decay and mixup that held-out data chose for the linear head on the ResNet-32."""

FINE_TUNED = {
    ("LIFT, ViT-B/16 (Shi et al. 2024)", "CLIP's 400 million images and texts"): 81.7,
    ("LIFT, ViT-B/16 (Shi et al. 2024)", "ImageNet-21K"): 89.1,
}
"""Published top-1 on CIFAR-100 at imbalance 0.01 from pretrained weights: Long-Tail Learning with Foundation Model:
Heavy Fine-Tuning Hurts, ICML 2024."""


@functools.cache
def settings() -> tuple[Setting, ...]:
    """Read all recorded settings once."""
    return tuple(rows.settings_of(rows.tidy(collect(ROOT / "results" / "runs"))))


def find(**fields: object) -> list[Setting]:
    """Find the settings on test data whose spec has these fields."""
    test = [s for s in settings() if s.spec.validation == 0]
    return [s for s in test if all(getattr(s.spec, name) == value for name, value in fields.items())]


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Format a table."""
    header, *others = (f"| {' | '.join(line)} |\n" for line in (columns, *lines))
    return header + "|---" * len(columns) + "|\n" + "".join(others)


def percent(found: MeanInterval | None) -> str:
    """Write a mean in percent; a dash without runs."""
    return "-" if found is None else f"{100 * found.mean:.2f}"


def coverage_row() -> str:
    """The paper's tables in columns: their numbers, those measured, with three seeds, and what came of them."""
    table = summary.coverage_table(summary.coverage(find()))
    names, numbers, measured, *counts = zip(*([cell.text for cell in row.cells] for row in table.rows), strict=True)
    counts.insert(0, tuple(f"{some} of {every}" for some, every in zip(measured, numbers, strict=True)))
    return markdown(["", *names], [[title, *texts] for title, texts in zip(table.columns[2:], counts, strict=True)])


def table1() -> str:
    """Every cell of Table 1 with three seeds of both heads."""
    lines = []
    for gain in summary.gains(find()):
        difference, setting = gain.to_baseline, gain.setting
        if gain.cell.table == "Table 1" and gain.counted and difference and difference.n >= summary.ENOUGH:
            values = [percent(setting.summary(m)) for m in (setting.baseline(gain.method), gain.method) if m]
            lines.append([gain.label, *values, difference.format(), difference.word, signed(100 * (gain.paper or 0))])
    columns = ["cell", "linear", "maxsep", "difference, 95 % interval", "word", "paper's difference"]
    return markdown(columns, lines)


def baseline() -> str:
    """CIFAR-10 at 0.01, ResNet: the linear head with single changes, and the matrix."""
    cells = stability.cells_of(find(network="resnet34", dataset="cifar10", imbalance=0.01))
    (table,) = (stability.stability_table({cell: arms}) for cell, arms in cells.items())
    lines = [[cell.text for cell in (*row.cells[:1], *row.cells[3:])] for row in table.rows]
    return markdown(["head", "accuracy", "to linear, 95 % interval", "maxsep minus this"], lines)


def long_tail_methods() -> str:
    """LDAM and MiSLAS without and with the matrix, at radius 1."""
    lines = []
    for setting in (s for s in find(network="resnet32", dataset="cifar100") if s.spec.augmentation == WEAK):
        for method, baseline, control in rows.matrix_methods(setting):
            name = _long_tail_name(setting, method)
            if not name or method.radius != 1 or control is None:
                continue
            cells = [cell for m in (baseline, method) if m for cell in setting.cells(m)]
            numbers = {cell.head: f"{cell.value:.2f}" for cell in cells}
            difference = setting.difference(method, control)
            values = [percent(setting.summary(m)) for m in (control, method)]
            printed = "/".join(numbers.get(head, "-") for head in ("plain", "maxsep"))
            lines.append([name, printed, *values, difference.format() if difference else "-"])
    return markdown(["", "paper, without/with", "control", "matrix", "difference, 95 % interval"], lines)


def _long_tail_name(setting: Setting, method: Method) -> str:
    loss = dict(method.loss_options)
    if method.loss == "ldam":
        reading = {"cosine_maxsep": "behind cosines", "maxsep_cosine": "class vectors"}[method.head]
        return f"LDAM{'-DRW' * ('reweight' in loss)} {loss['max_margin']}, {reading}"
    if setting.spec.start_from is not None:
        return "MiSLAS, stage 2"
    return "MiSLAS, stage 1" if setting.spec.mixup == 1 else ""


def recipe(dataset: str, augmentation: str) -> Setting:
    """The chosen setting of the strongest recipe on the ResNet-32."""
    decay, mixup = CHOSEN[dataset, augmentation]
    base = {"network": "resnet32", "imbalance": 0.01, "weight_decay": decay, "mixup": mixup}
    found = find(dataset=dataset, augmentation=augmentation, **base)
    return next(s for s in found if Method("plain", loss=ADJUSTED) in s.methods)


def recipe_parts() -> str:
    """The recipe on the ResNet-32 with one part exchanged at a time, and what others published."""
    parts = {
        "the recipe": Method("plain", loss=ADJUSTED),
        "with cross-entropy": PLAIN,
        "with maxsep": Method("maxsep", loss=ADJUSTED),
        "with linear times 0.1": Method("scaled", 0.1, loss=ADJUSTED),
        "with maxsep, radius 0.1": Method("maxsep", 0.1, loss=ADJUSTED),
    }
    first, lines = next(iter(parts.values())), []
    for name, method in parts.items():
        cells = []
        for key in CHOSEN:
            setting = recipe(*key)
            difference = setting.difference(method, first)
            change = f" ({signed(100 * difference.estimate)})" if difference and method != first else ""
            cells.append(percent(setting.summary(method)) + change)
        lines.append([name, *cells])
    others: dict[str, dict[tuple[str, str], str]] = {}
    for number in paper.cells():
        if number.note in (WEAK, STRONG):
            others.setdefault(f"{number.method} ({number.table})", {})[number.dataset, number.note] = f"{number.value}"
    lines += [[name, *(values.get(key, "-") for key in CHOSEN)] for name, values in others.items()]
    titles = [f"{TITLES[dataset]}, {'weak' if kind == WEAK else 'strong'}" for dataset, kind in CHOSEN]
    return markdown(["", *titles], lines)


def fine_tuned() -> str:
    """CIFAR-100 at imbalance 0.01 from pretrained weights, where they are recorded, beside runs from scratch."""
    weak, strong = recipe("cifar100", WEAK), recipe("cifar100", STRONG)
    adjusted = Method("plain", loss=ADJUSTED)
    lines = [
        ["linear head, cross-entropy, 200 epochs", "none", percent(weak.summary(PLAIN))],
        ["the strongest recipe, 200 epochs", "none", percent(strong.summary(adjusted))],
    ]
    for setting in find(dataset="cifar100", imbalance=0.01):
        spec, found = setting.spec, setting.summary(adjusted)
        if spec.weights and found:
            network = f"{spec.network.partition('/')[2]}, {spec.image_size} pixels"
            spread = "" if found.low is None else f" [{100 * found.low:.1f}, {100 * found.high:.1f}]"
            name = f"logit adjustment, {network}, {spec.augmentation}, {spec.epochs} epochs"
            lines.append([name, "ImageNet", percent(found) + spread])
    lines += [[name, start, f"{value}"] for (name, start), value in FINE_TUNED.items()]
    return markdown(["", "pretrained on", "top-1"], lines)


def recipe_cells() -> str:
    """The strongest recipe on the paper's ResNet beside the paper's best number."""
    lines = []
    for setting in find(network="resnet34", augmentation=STRONG):
        found, best = setting.summary(Method("plain", loss=ADJUSTED)), paper.best_of_table1(setting.spec)
        if found and best and found.low is not None and found.high is not None:
            name = f"{TITLES[setting.spec.dataset]}, {setting.spec.imbalance:g}"
            lines.append(
                [name, f"{best.value:.2f}", f"{percent(found)} [{100 * found.low:.1f}, {100 * found.high:.1f}]"]
            )
    return markdown(["data, imbalance", "the paper's best", "ours, 95 % interval"], lines)


def ood() -> str:
    """AUROC of three scores on two sets of outliers, and the accuracy, at radius 1."""
    (setting,) = find(network="wrn40_2", optimiser="sgd")
    names = {"max_softmax": "MSP", "energy": "energy", "mahalanobis": "Mahalanobis"}
    lines = []
    for (score, name), method in itertools.product(names.items(), (PLAIN, MATRIX)):
        numbers = {cell.metric: f"{cell.value:.2f}" for cell in setting.cells(method)}
        metrics = [f"{outliers} {score} auroc" for outliers in ("svhn", "places")]
        pairs = [(numbers.get(m, "-"), percent(setting.summary(method, m))) for m in metrics]
        lines.append([f"{name}, {HEADS[method]}", *itertools.chain(*pairs)])
    accuracies = ", ".join(f"{HEADS[m]} {percent(setting.summary(m))}" for m in (PLAIN, MATRIX))
    columns = ["", "SVHN, paper", "ours", "Places, paper", "ours"]
    return markdown(columns, lines) + f"\nAccuracy on CIFAR-100: {accuracies}.\n"


def open_set() -> str:
    """AUROC of both scores on every open-set benchmark, at radius 1."""
    lines = []
    for setting in find(network="vgg32", network_options=()):
        sets = dict.fromkeys(row.metric.split()[0] for row in setting.rows if row.metric.endswith(" auroc"))
        for outliers, method in itertools.product(sets, (PLAIN, MATRIX)):
            numbers = {cell.metric: f"{cell.value:.2f}" for cell in setting.cells(method)}
            metrics = [f"{outliers} {score} auroc" for score in ("max_softmax", "max_logit")]
            pairs = [(numbers.get(m, "-"), percent(setting.summary(method, m))) for m in metrics]
            name = setting.title.split(",")[0] if outliers == "unknown" else outliers.upper()
            lines.append([f"{name}, {HEADS[method]}", *itertools.chain(*pairs)])
    return markdown(["", "MSP, paper", "ours", "max logit, paper", "ours"], lines)


def adam_order() -> str:
    """Orders of the classes under AdamW, at radius 1: on long-tailed digits, and on frozen features of CIFAR-100."""
    orders, lines = ("rare last", "rare first"), []
    for data, file in (("digits", "adam_order.json"), ("features", "adam_order_features.json")):
        found = json.loads((ROOT / "results" / file).read_text())["rows"]
        chosen = [row for row in found if (row["optimiser"], row["radius"]) == ("adamw", 1)]
        rows = {(row["learning_rate"], row["head"]): row for row in chosen}
        for rate in sorted({rate for rate, _ in rows}):
            differences = [rows[rate, order]["balanced_minus_control"] for order in orders]
            texts = [Difference(*(number / 100 for number in values), n=0).format() for values in differences]
            lines.append([f"{data}, {rate:g}", f"{rows[rate, 'control']['balanced'][0]:.1f}", *texts])
    return markdown(["data, learning rate", "control", *orders], lines)


def sklearn() -> str:
    """MaxSeparationClassifier with its defaults against a scaled MLPClassifier on the tables of scikit-learn."""
    found = json.loads((ROOT / "results" / "sklearn.json").read_text())["rows"]
    rows = {(row["table"], row["classifier"]): row for row in found}
    lines = []
    for table in dict.fromkeys(table for table, _ in rows):
        mlp, row = rows[table, "mlp"], rows[table, "adam"]
        mean, low, high = (signed(number, 3) for number in row["log_loss_minus_mlp"])
        accuracies = [f"{100 * one['accuracy']:.1f}" for one in (mlp, row)]
        lines.append([table, *accuracies, *(f"{one['log_loss']:.3f}" for one in (mlp, row)), f"{mean} [{low}, {high}]"])
    columns = ["table", "accuracy, MLP", "ours", "log-loss, MLP", "ours", "difference, 95 % interval"]
    return markdown(columns, lines)


def photographs() -> str:
    """Runs on photographs by benchmarks/photographs.py, those of a comparison as means; nothing before it was run."""
    path = ROOT / "results" / "photographs.json"
    if not path.is_file():
        return ""
    lines = []
    for name, row in json.loads(path.read_text())["rows"].items():
        reference = f"{100 * row['reference'][row['metric']]:.1f}"
        if name != "rates":  # the text says what these show
            lines += [[f"{name}, {r['title']}", f"{100 * r['balanced']:.1f}", reference] for r in row["runs"]]
    return markdown(["", "mean accuracy over classes", "logistic regression"], lines)


def cost() -> str:
    """What head and loss cost on one thread of a CPU."""
    head = json.loads((ROOT / "results" / "head_cpu.json").read_text())["results"]
    lines = []
    for classes in (1_000, 100_000):
        overhead = f"+{100 * head[f'head C={classes}']['overhead']:.0f} %"
        lines.append([f"head and cross-entropy against nn.Linear, {classes:,} classes", overhead])
    ours, theirs = (head["losses C=50000"][name] for name in ("maxsep", "F.cross_entropy"))
    spent, extra = (f"{ours[key]:{form}} against {theirs[key]:{form}}" for key, form in FORMS)
    text = f"{spent} s, {extra} MiB beyond weight and gradient"
    lines.append(["loss against F.cross_entropy, 50,000 classes, batch 1,024", text])
    return markdown(["what (one CPU thread)", "cost"], lines)


def gpu_hours() -> str:
    """GPU hours of every recipe from the median rate of each network's records on an H200, start included."""
    rates: dict[str, list[float]] = {}
    for run in find_runs(ROOT / "results" / "runs"):
        if run.state == "finished" and run.result["hardware"]["device"] == "NVIDIA H200":
            seconds = run.result.get("wall_seconds") or run.result["seconds"]
            rates.setdefault(run.spec.network, []).append(run.metrics["num_train"] * run.spec.trained_epochs / seconds)
    paces = {network: statistics.median(values) for network, values in rates.items()}
    lines = []
    for name in recipes.names():
        specs = recipes.get(name).specs()
        images: dict[str, int] = {}
        for spec in unique(specs):
            images[spec.network] = images.get(spec.network, 0) + num_train(spec) * spec.trained_epochs
        known = [network for network in images if network in paces]
        hours = sum(images[network] / paces[network] for network in known) / 3600
        missing = ", ".join(sorted(images.keys() - paces.keys()))
        time = f"{hours:,.1f}" if not missing else f"{missing}: no record on a GPU"
        shown = [f"{network} {paces[network]:,.0f}" for network in known]
        lines.append([name, f"{len(specs)}", f"{sum(images.values()) / 1e6:,.1f}", ", ".join(shown) or "-", time])
    return markdown(["recipe", "runs", "million images", "images/s", "GPU hours"], lines)


def class_memory() -> str:
    """GB of one GPU for a step with SGD and momentum at 512 features, measured or by the measured bytes of a row."""
    found = json.loads((ROOT / "results" / "memory_gpu.json").read_text())["results"]
    whole, part = ([*cases.values()] for cases in found.values())
    each = max(case["peak_bytes"] / case["rows"] for case in whole)
    logit = max((case["peak_bytes"] / case["rows"] - 12 * 512) / case["batch"] for case in part)
    lines = []
    for classes in (1_000_000, 10_000_000, 100_000_000):
        measured = {case["rows"]: f"**{case['peak_bytes'] / 1e9:.1f}**" for case in whole}
        shards = [(12 * 512 + logit * 1024) * classes / gpus / 1e9 for gpus in (8, 32)]
        alone = measured.get(classes, f"{each * classes / 1e9:,.0f}")
        lines.append([f"{classes:,}", f"{12 * 512 * classes / 1e9:,.1f}", alone, *(f"{size:,.0f}" for size in shards)])
    columns = ["classes", "weights, gradients, momentum", "whole, fused loss", "a part on 8 GPUs", "a part on 32 GPUs"]
    return markdown(columns, lines)


_FUNCTIONS = (
    coverage_row, table1, baseline, long_tail_methods, fine_tuned, recipe_parts, recipe_cells, ood, open_set,
    adam_order, sklearn, photographs, cost, gpu_hours, class_memory,
)  # fmt: skip
TABLES: dict[str, Callable[[], str]] = {function.__name__: function for function in _FUNCTIONS}


def rewritten(text: str) -> str:
    """Return a page with its tables replaced; names of other scripts and of the report's own tables are looked up."""
    return MARK.sub(lambda mark: mark[1] + _content(mark) + mark[3], text)


def _content(mark: re.Match[str]) -> str:
    if mark[2] in TABLES:
        return TABLES[mark[2]]()
    if mark[2] in _report_tables():
        return _report_tables()[mark[2]]
    return mark[0].removeprefix(mark[1]).removesuffix(mark[3])  # a table of docs/speed_tables.py


@functools.cache
def _report_tables() -> dict[str, str]:
    report = render.build(collect(ROOT / "results" / "runs"))
    tables = (table for section in report.sections for table in section.tables)
    return {"finding": report.headline + "\n"} | {table.id: table.to_markdown() + "\n" for table in tables}


if __name__ == "__main__":
    pages = {page: page.read_text() for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
    changed = {page: new for page, text in pages.items() if (new := rewritten(text)) != text}
    if "--check" in sys.argv:
        sys.exit(f"run python docs/tables.py: {', '.join(page.name for page in changed)}" if changed else 0)
    for page, text in changed.items():
        page.write_text(text)
