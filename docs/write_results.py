"""Write the README's tables from the run records and benchmarks, so that no number in them is typed by hand.

python docs/write_results.py           # rewrites README.md
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path

from maxsep.lab.recipes.beyond import ADJUSTED, CHOSEN, STRONG, WEAK
from maxsep.lab.recipes.published import RESNET32
from maxsep.lab.report.statistics import mean
from maxsep.lab.report.tables import rounded

ROOT = Path(__file__).parent.parent
RESULTS = "<!-- results: written from results/runs by docs/write_results.py -->\n", "<!-- /results -->"
METHODS = "<!-- methods: written from results/runs by docs/write_results.py -->\n", "<!-- /methods -->"
BEYOND = "<!-- beyond: written from results/runs by docs/write_results.py -->\n", "<!-- /beyond -->"
CELLS = "<!-- cells: written from results/runs by docs/write_results.py -->\n", "<!-- /cells -->"
OUTSIDE = "<!-- outside: written from results/runs by docs/write_results.py -->\n", "<!-- /outside -->"
COST = "<!-- cost: written from results/*.json by docs/write_results.py -->\n", "<!-- /cost -->"
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
ARMS = {
    ("plain", 1.0): "plain head",
    ("scaled", 0.1): "plain head, times 0.1 (control)",
    ("maxsep", 0.1): "maxsep, radius 0.1",
}


def accuracies(dataset: str, head: str, radius: float) -> list[float]:
    """Top-1 accuracies, one per seed, of the paper's ResNet at imbalance 0.01."""
    wanted = {"dataset": dataset, "head": head, "radius": radius, "imbalance": 0.01, "network": "resnet34"}
    wanted |= {"loss": "cross_entropy", "epochs": 200, "validation": 0.0}
    results = (json.loads(path.read_text()) for path in sorted((ROOT / "results" / "runs").glob("*/result.json")))
    return [
        result["metrics"]["top1"]
        for result in results
        if all(result["spec"][key] == value for key, value in wanted.items())
    ]


def table() -> str:
    """The table in Markdown."""
    paper = json.loads((ROOT / "src/maxsep/lab/recipes/paper.json").read_text())["tables"]["table1_cifar"]
    rows = ["| | paper | ours | seeds |", "|---|---|---|---|"]
    for dataset, title in TITLES.items():
        for (head, radius), name in ARMS.items():
            found = accuracies(dataset, head, radius)
            theirs = paper[dataset]["resnet"].get(head, {}).get("0.01")
            given = "-" if theirs is None else f"{theirs:.2f}"
            rows.append(f"| {title}, {name} | {given} | {_told(found)} | {len(found)} |")
    return "\n".join(rows) + "\n"


def methods() -> str:
    """LDAM and MiSLAS, each without and with the matrix and with its control, in Markdown."""
    paper = json.loads((ROOT / "src/maxsep/lab/recipes/paper.json").read_text())["tables"]["long_tailed_methods"]
    rows = ["| | paper, without / with | without | with, behind cosines | with, as class vectors | control |"]
    rows.append("|---|---|---|---|---|---|")
    for key, name in (("ldam_sgd", "LDAM"), ("ldam_drw", "LDAM-DRW")):
        for margin in (0.4, 0.5):
            found = [ldam(head, margin, key == "ldam_drw") for head in COSINES]
            rows.append(f"| {name}, margin {margin} | {_of_paper(paper, key, margin)} | {' | '.join(found)} |")
    for key, name, radius in (
        ("mislas_stage1", "MiSLAS, stage 1", 1.0),
        ("mislas_stage1", "MiSLAS, stage 1, radius 0.1", 0.1),
        ("mislas_stage2", "MiSLAS, stage 2", 1.0),
        ("mislas_stage2", "MiSLAS, stage 2, radius 0.1", 0.1),
    ):
        without, matrix = (mislas(head, radius, key) for head in ("plain" if radius == 1 else "scaled", "maxsep"))
        theirs = _of_paper(paper, key) if radius == 1 else "-"
        rows.append(f"| {name} | {theirs} | {without} | - | {matrix} | {SAME} |")
    return "\n".join(rows) + "\n"


SAME = 'same run as "without"'
"""A plain head times the radius is its own control: one run, and no second measurement."""
COSINES = ("cosine", "cosine_maxsep", "maxsep_cosine", "centred_cosine")


def _of_paper(paper: dict, method: str, margin: float | None = None) -> str:
    """What the paper has without and with the matrix; it gave LDAM a margin of 0.5 without and 0.4 with it."""
    numbers = (paper[method][head]["0.01"] for head in ("plain", "maxsep"))
    without, matrix = (f"{number:.2f}" for number in numbers)
    return f"{without if margin != 0.4 else '-'} / {matrix if margin != 0.5 else '-'}"


def ldam(head: str, margin: float, deferred: bool) -> str:
    """Accuracy with LDAM on CIFAR-100 at imbalance 0.01."""
    return _told(
        result["metrics"]["top1"]
        for result in _small_runs()
        if result["spec"]["head"] == head
        and result["spec"]["loss"] == "ldam"
        and dict(result["spec"]["loss_options"])["max_margin"] == margin
        and ("reweight" in dict(result["spec"]["loss_options"])) == deferred
    )


def mislas(head: str, radius: float, stage: str) -> str:
    """Accuracy with MiSLAS on CIFAR-100 at imbalance 0.01."""
    return _told(
        result["metrics"]["top1"]
        for result in _small_runs()
        if (result["spec"]["head"], result["spec"]["radius"]) == (head, radius)
        and (
            result["spec"]["loss"] == "label_aware_smoothing"
            if stage == "mislas_stage2"
            else (result["spec"]["loss"], result["spec"].get("mixup")) == ("cross_entropy", 1.0)
        )
    )


def beyond() -> str:
    """The strongest recipe on the true ResNet-32 beside what others published for it, in Markdown."""
    rows = [f"| | {' | '.join(TITLES.values())} | seeds of each |", "|---|---|---|---|"]
    for augmentation, name in ((WEAK, "crops and flips"), (STRONG, "with AutoAugment and cutout")):
        rows += [
            f"| {name}: {other.method} ({other.source}) | {other.cifar10:.1f} | {other.cifar100:.1f} | - |"
            for other in RESNET32
            if other.augmentation == augmentation
        ]
        for head in ("plain", "maxsep"):
            found = [strongest(dataset, augmentation, head) for dataset in TITLES]
            if not any(found):
                continue
            seeds = _seeds({title: len(each) for title, each in zip(TITLES.values(), found, strict=True)})
            rows.append(f"| {name}: logit adjustment here, {head} head | {' | '.join(map(_told, found))} | {seeds} |")
    return "\n".join(rows) + "\n"


def _seeds(counts: dict[str, int]) -> str:
    """How many seeds the columns of a row have; a column without runs has a dash, and is not counted.

    >>> _seeds({"CIFAR-10": 3, "CIFAR-100": 3}), _seeds({"CIFAR-10": 0, "CIFAR-100": 3})
    ('3', '3 (CIFAR-100 only)')
    >>> _seeds({"CIFAR-10": 1, "CIFAR-100": 3})
    'CIFAR-10: 1, CIFAR-100: 3'
    """
    run = {title: count for title, count in counts.items() if count}
    if len(set(run.values())) > 1:
        return ", ".join(f"{title}: {count}" for title, count in run.items())
    return f"{min(run.values())}" + ("" if len(run) == len(counts) else f" ({', '.join(run)} only)")


def strongest(dataset: str, augmentation: str, head: str) -> list[float]:
    """Accuracies of a head at radius 1 in the setting that the search chose, one per seed."""
    wanted = {"augmentation": augmentation, "head": head, "radius": 1.0, "loss": ADJUSTED}
    wanted |= {"weight_decay": 5e-4, "mixup": 0.0} | CHOSEN[dataset, augmentation]
    return [
        result["metrics"]["top1"]
        for result in _small_runs(dataset)
        if all(result["spec"][key] == value for key, value in wanted.items())
    ]


def cells() -> str:
    """The strongest recipe on the paper's ResNet beside the best number that the paper has for it, in Markdown."""
    paper = json.loads((ROOT / "src/maxsep/lab/recipes/paper.json").read_text())["tables"]["table1_cifar"]
    rows = ["| | the paper's best | ours | seeds |", "|---|---|---|---|"]
    for dataset, title in TITLES.items():
        for imbalance in (0.2, 0.1, 0.02, 0.01):
            wanted = {"augmentation": STRONG, "head": "plain", "loss": ADJUSTED, "imbalance": imbalance}
            found = [
                result["metrics"]["top1"]
                for result in _runs(f"{dataset}-lt{imbalance}-resnet34-*")
                if all(result["spec"][key] == value for key, value in wanted.items())
            ]
            best = max(head[str(imbalance)] for head in paper[dataset]["resnet"].values())
            if found:
                rows.append(f"| {title}, imbalance {imbalance} | {best:.2f} | {_told(found)} | {len(found)} |")
    return "\n".join(rows) + "\n"


def outside() -> str:
    """AUROC of every score on every set of outliers, beside the paper's, in Markdown."""
    paper = json.loads((ROOT / "src/maxsep/lab/recipes/paper.json").read_text())["tables"]["ood"]
    rows = ["| | SVHN, paper | ours | Places, paper | ours | CIFAR-10, ours | seeds |", "|---|---|---|---|---|---|---|"]
    for score, theirs, name in (
        ("max_softmax", "softmax", "max softmax"),
        ("energy", "energy", "energy"),
        ("mahalanobis", "mahalanobis", "Mahalanobis"),
    ):
        for head, radius, told in OUTSIDE_HEADS:
            found = {place: _auroc(head, radius, score, place) for place in ("svhn", "places", "cifar10")}
            known = [paper[place][theirs].get(head) for place in ("svhn", "places365")]
            printed = [f"{numbers['auroc']:.2f}" if numbers and radius == 1 else "-" for numbers in known]
            ours = [_told(each) for each in found.values()]
            cells = [printed[0], ours[0], printed[1], ours[1], ours[2], str(len(found["svhn"]))]
            rows.append(f"| {name}, {told} | {' | '.join(cells)} |")
            if (head, score) == ("plain", "energy"):
                ours = [_told(_auroc(head, radius, "energy_centred", place)) for place in found]
                rows.append(f"| {name}, {told}, centred | - | {ours[0]} | - | {ours[1]} | {ours[2]} | {cells[-1]} |")
    return "\n".join(rows) + "\n"


OUTSIDE_HEADS = (
    ("plain", 1.0, "plain head"),
    ("maxsep", 1.0, "maxsep, radius 1"),
    ("scaled", 0.1, "plain head, times 0.1"),
    ("maxsep", 0.1, "maxsep, radius 0.1"),
)


def _auroc(head: str, radius: float, score: str, outliers: str) -> list[float]:
    """One per seed: the mean over draws of 2,000 outliers, as the paper does."""
    found = []
    for path in sorted((ROOT / "results" / "runs").glob("cifar100-wrn40_2-*/detection.json")):
        spec = json.loads((path.parent / "spec.json").read_text())
        if (spec["head"], spec["radius"], spec["optimiser"]) == (head, radius, "sgd"):
            found.append(json.loads(path.read_text())["sets"][outliers]["scores"][score]["draws"]["auroc"]["mean"])
    return found


def _runs(pattern: str) -> list[dict]:
    paths = sorted((ROOT / "results" / "runs").glob(f"{pattern}/result.json"))
    return [result for result in (json.loads(path.read_text()) for path in paths) if not result["spec"]["validation"]]


def _small_runs(dataset: str = "cifar100") -> list[dict]:
    return _runs(f"{dataset}-lt0.01-resnet32-*")


def _told(found: Iterable[float]) -> str:
    found = list(found)
    if not found:
        return "-"
    spread = f" ± {rounded(statistics.stdev(found), scale=100)}" if len(found) > 1 else ""
    return f"{rounded(mean(found), scale=100)}{spread}"


def cost() -> str:
    """What the head costs, in Markdown."""
    head = json.loads((ROOT / "results" / "head_cpu.json").read_text())["results"]
    training = json.loads((ROOT / "results" / "train_gpu.json").read_text())["results"]
    rows = ["| what | figure |", "|---|---|"]
    for classes in (1_000, 10_000, 100_000):
        overhead = head[f"head C={classes}"]["overhead"]
        what = f"head and cross-entropy over nn.Linear, {classes:,} classes, one thread of a CPU"
        rows.append(f"| {what} | +{100 * overhead:.0f} % |")
    for classes in (1_000, 10_000):
        ratio = head[f"product C={classes}"]["ratio"]
        rows.append(f"| O(C) product against the dense matrix, {classes:,} classes, CPU | {ratio:.0f} times faster |")
    memory = head["memory C=1000000"]["peak_gib"]
    rows.append(f"| peak memory of forward and backward, 1,000,000 classes, batch 32, CPU | {memory:.1f} GiB |")
    gpu = json.loads((ROOT / "results" / "head_gpu.json").read_text())["results"]["head"]["autocast to bfloat16"]
    for form, name in (("row kernel", "fused loss"), ("separate", "the same loss")):
        what = f"head and {name} over nn.Linear and F.cross_entropy, 1,000 classes, H200, bfloat16, device time"
        rows.append(f"| {what} | {100 * gpu[form]['over_plain']:+.0f} % |")
    million = json.loads((ROOT / "results" / "fused_gpu.json").read_text())["results"]["C=1000000"]
    for name, told in (("maxsep, fused", "maxsep, fused loss"), ("torch.compile", "nn.Linear, torch.compile")):
        figure = f"{million[name]['ms']:.1f} ms, {million[name]['peak_bytes'] / 1e9:.1f} GB"
        rows.append(f"| 1,000,000 classes, batch 4,096, H200: {told} | {figure} |")
    idle, busy = (training[name]["images_per_second"] for name in ("+ CUDA graph", "+ CUDA graph, host busy"))
    rows.append(f"| training the paper's ResNet, batch 512, one H200 | {idle:,.0f} images/s |")
    rows.append(f"| the same with every core of the host busy | {busy:,.0f} images/s |")
    return "\n".join(rows) + "\n"


def rewritten(text: str) -> str:
    """The README with its tables replaced."""
    contents = {RESULTS: table, METHODS: methods, BEYOND: beyond, CELLS: cells, OUTSIDE: outside, COST: cost}
    for (begin, end), content in contents.items():
        before, rest = text.split(begin)
        text = before + begin + content() + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(rewritten(readme.read_text()))
