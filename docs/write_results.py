"""Write the tables of README and results page from run records and benchmarks, so that none is typed by hand.

python docs/write_results.py           # rewrites README.md and docs/results.md
"""

from __future__ import annotations

import functools
import itertools
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scipy import stats

from maxsep.lab import recipes
from maxsep.lab.data.open_set import SPLITS, OpenSetSplit
from maxsep.lab.recipes.beyond import ADJUSTED, CHOSEN, STRONG, WEAK, candidates
from maxsep.lab.recipes.longtail import DEFERRED
from maxsep.lab.recipes.published import RESNET32
from maxsep.lab.report.collect import Record, collect
from maxsep.lab.report.outliers import measured
from maxsep.lab.report.statistics import adjust, compare, mean
from maxsep.lab.report.tables import p_text, rounded, signed
from maxsep.lab.spec import RunSpec, options

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "results" / "runs"
RESULTS = "<!-- results: written from results/runs by docs/write_results.py -->\n", "<!-- /results -->"
METHODS = "<!-- methods: written from results/runs by docs/write_results.py -->\n", "<!-- /methods -->"
BEYOND = "<!-- beyond: written from results/runs by docs/write_results.py -->\n", "<!-- /beyond -->"
ABLATION = "<!-- ablation: written from results/runs by docs/write_results.py -->\n", "<!-- /ablation -->"
PLAN = "<!-- plan: written from results/runs by docs/write_results.py -->\n", "<!-- /plan -->"
CELLS = "<!-- cells: written from results/runs by docs/write_results.py -->\n", "<!-- /cells -->"
OUTSIDE = "<!-- outside: written from results/runs by docs/write_results.py -->\n", "<!-- /outside -->"
OPEN = "<!-- open: written from results/runs by docs/write_results.py -->\n", "<!-- /open -->"
ADAMW = "<!-- adamw: written from results/adamw_digits.json by docs/write_results.py -->\n", "<!-- /adamw -->"
COST = "<!-- cost: written from results/*.json by docs/write_results.py -->\n", "<!-- /cost -->"
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
ARMS = {
    ("plain", 1.0): "plain head",
    ("scaled", 0.1): "plain head, times 0.1 (control)",
    ("maxsep", 0.1): "maxsep, radius 0.1",
}


def accuracies(dataset: str, head: str, radius: float) -> list[float]:
    """Top-1 accuracies, one per seed, of the paper's ResNet at imbalance 0.01."""
    weak = {"augmentation": WEAK, "loss": "cross_entropy"}  # the recipe `beyond` has the scaled head, too
    return _top1("beyond", network="resnet34", dataset=dataset, imbalance=0.01, head=head, radius=radius, **weak)


def table() -> str:
    """The table in Markdown."""
    tables = json.loads((ROOT / "src/maxsep/lab/recipes/paper.json").read_text())["tables"]
    paper, bars = tables["table1_cifar"], tables["table1_error_bars"]
    rows = ["| | paper | mean of its 5 runs | ours | seeds |", "|---|---|---|---|---|"]
    for dataset, title in TITLES.items():
        for (head, radius), name in ARMS.items():
            found = accuracies(dataset, head, radius)
            theirs = paper[dataset]["resnet"].get(head, {}).get("0.01")
            given = "- | -"
            if theirs is not None:
                five = bars[dataset]["resnet"][head]["0.01"]
                given = f"{theirs:.2f} | {five['mean']:.2f} ± {five['std']:.2f}"
            rows.append(f"| {title}, {name} | {given} | {in_percent(found)} | {len(found)} |")
    return "\n".join(rows) + "\n"


def plan() -> str:
    """The cells of Table 1 that were run by docs/plan.md on CIFAR-100, in Markdown."""
    tables = json.loads((ROOT / "src/maxsep/lab/recipes/paper.json").read_text())["tables"]["table1_cifar"]["cifar100"]
    rows = ["| cell | plain | maxsep | difference, 95 % interval | paper's difference |", "|---|---|---|---|---|"]
    records = collect(RUNS).records
    for imbalance, network in itertools.product((0.01, 0.02), ("resnet34", "convnet")):
        found: dict[str, dict[int, float]] = {"plain": {}, "maxsep": {}}
        for record in records:
            spec = record.spec
            is_cell = (spec.data_order, spec.imbalance, spec.network) == ("official", imbalance, network)
            if is_cell and spec.head in found:
                found[spec.head][spec.seed] = 100 * record.metrics["top1"]
        plain, matrix = ([values[seed] for seed in sorted(values)] for values in found.values())
        differences = [ours - theirs for ours, theirs in zip(matrix, plain, strict=True)]
        low, high = stats.t.interval(0.95, len(plain) - 1, statistics.mean(differences), stats.sem(differences))
        paper = tables["resnet" if network == "resnet34" else network]
        gain = paper["maxsep"][str(imbalance)] - paper["plain"][str(imbalance)]
        name = {"resnet34": "ResNet", "convnet": "ConvNet"}[network]
        interval = f"{statistics.mean(differences):+.2f} [{low:+.2f}, {high:+.2f}]"
        means = f"{statistics.mean(plain):.2f} | {statistics.mean(matrix):.2f}"
        rows.append(f"| {name}, {imbalance} | {means} | {interval} | {gain:+.2f} |")
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
    return "\n".join(rows) + f"\n\n{verdict()}\n"


def verdict() -> str:
    """Whether the matrix helps on top of LDAM, in the mean of its four rows, and of MiSLAS, seed by seed."""
    gains = {
        'LDAM, behind cosines, over "without"': compare(ldam_means("cosine_maxsep"), ldam_means("cosine")),
        "LDAM, as class vectors, over the control": compare(ldam_means("maxsep_cosine"), ldam_means("centred_cosine")),
    }
    for stage in ("1", "2"):
        ours, theirs = (by_seed(mislas_records(head, 1.0, f"mislas_stage{stage}")) for head in ("maxsep", "plain"))
        gains[f"MiSLAS, stage {stage}"] = compare(ours, theirs)
    gains = dict(zip(gains, adjust(list(gains.values())), strict=True))
    told = [
        f"{name} {signed(gain.difference, scale=100)} ({p_text(gain.p)}, {gain.adjusted:.2g} corrected)"
        for name, gain in gains.items()
    ]
    (seeds,) = {gain.n for gain in gains.values()}
    return (
        f"What the matrix adds, in points, by a paired test over {seeds} seeds, LDAM in the mean of its four rows: "
        f"{'; '.join(told)}. With three seeds a gain of half a point may well go unseen."
    )


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
    return in_percent(record.metrics["top1"] for record in _ldam_records(head, margin, deferred))


def ldam_means(head: str) -> dict[int, float]:
    """Accuracy with LDAM in the mean over both margins, with and without deferred weights, of every seed."""
    settings = itertools.product((0.4, 0.5), (False, True))
    rows = [by_seed(_ldam_records(head, margin, deferred)) for margin, deferred in settings]
    return {seed: mean([row[seed] for row in rows]) for seed in set.intersection(*(set(row) for row in rows))}


def by_seed(records: list[Record]) -> dict[int, float]:
    """Top-1 accuracy of every seed."""
    return {record.spec.seed: record.metrics["top1"] for record in records}


def _ldam_records(head: str, margin: float, deferred: bool) -> list[Record]:
    loss_options = options(max_margin=margin, **(DEFERRED if deferred else {}))
    return _records("longtail", imbalance=0.01, head=head, loss="ldam", loss_options=loss_options)


def mislas(head: str, radius: float, stage: str) -> str:
    """Accuracy with MiSLAS on CIFAR-100 at imbalance 0.01."""
    return in_percent(by_seed(mislas_records(head, radius, stage)).values())


def mislas_records(head: str, radius: float, stage: str) -> list[Record]:
    """The runs of one of its stages."""
    loss = "label_aware_smoothing" if stage == "mislas_stage2" else "cross_entropy"
    return _records("longtail", imbalance=0.01, head=head, radius=radius, loss=loss)


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
            found = [part(dataset, augmentation, head=head) for dataset in TITLES]
            if not any(found):
                continue
            seeds = _seeds({title: len(each) for title, each in zip(TITLES.values(), found, strict=True)})
            rows.append(
                f"| {name}: logit adjustment here, {head} head | {' | '.join(map(in_percent, found))} | {seeds} |"
            )
    return "\n".join(rows) + "\n"


def _seeds(counts: dict[str, int]) -> str:
    """How many seeds the columns of a row have; a column without runs has a dash, and is not counted.

    >>> _seeds({"CIFAR-10": 3, "CIFAR-100": 3}), _seeds({"CIFAR-10": 0, "CIFAR-100": 3})
    ('3', '3 (CIFAR-100 only)')
    >>> _seeds({"CIFAR-10": 1, "CIFAR-100": 3})
    'CIFAR-10: 1, CIFAR-100: 3'
    >>> _seeds({"CIFAR-10": 0, "CIFAR-100": 0})
    '0'
    """
    run = {title: count for title, count in counts.items() if count}
    if not run:
        return "0"
    if len(set(run.values())) > 1:
        return ", ".join(f"{title}: {count}" for title, count in run.items())
    return f"{min(run.values())}" + ("" if len(run) == len(counts) else f" ({', '.join(run)} only)")


def ablation() -> str:
    """The recipe on the true ResNet-32 with one part exchanged at a time, in Markdown."""
    titles = [f"{title}, {name}" for title in TITLES.values() for name in ("weak", "strong")]
    rows = [f"| | {' | '.join(titles)} |", f"|---{'|---' * len(titles)}|"]
    settings = [(dataset, augmentation) for dataset in TITLES for augmentation in (WEAK, STRONG)]
    recipe = {setting: part(*setting) for setting in settings}
    for name, fields in PARTS.items():
        found = [_beside(part(*setting, **fields), recipe[setting]) for setting in settings]
        rows.append(f"| {name} | {' | '.join(found)} |")
    for changes in ({"weight_decay": 2e-4}, {}, {"weight_decay": 1e-3}, {"weight_decay": 2e-3}, {"mixup": 0.2}):
        found = [
            _beside(part(*setting, changes), recipe[setting]) if changes in candidates(setting[1]) else "-"
            for setting in settings
        ]
        decay, mixing = changes.get("weight_decay", 5e-4), ", mixup 0.2" if "mixup" in changes else ""
        rows.append(f"| logit adjustment, plain head, weight decay {decay:g}{mixing} | {' | '.join(found)} |")
    return "\n".join(rows) + "\n"


PARTS: dict[str, dict[str, Any]] = {
    "logit adjustment, plain head": {},
    "cross-entropy, plain head": {"loss": "cross_entropy"},
    "logit adjustment, maxsep, radius 1": {"head": "maxsep"},
    "logit adjustment, plain head, times 0.1": {"head": "scaled", "radius": 0.1},
    "logit adjustment, maxsep, radius 0.1": {"head": "maxsep", "radius": 0.1},
    "logit adjustment, cosine head, times 16": {"head": "cosine", "radius": 16.0},
}


def _beside(found: list[float], recipe: list[float]) -> str:
    """Accuracies, and what they have over the recipe's on the same seeds, which are its first."""
    if found == recipe:
        return f"{in_percent(found)}, the recipe"
    gains = [ours - theirs for ours, theirs in zip(found, recipe, strict=False)]
    return f"{in_percent(found)} ({signed(mean(gains), scale=100)})" if gains else in_percent(found)


def part(dataset: str, augmentation: str, changes: dict[str, float] | None = None, **fields: Any) -> list[float]:
    """Accuracies on the true ResNet-32, one per seed, in the chosen setting if no other is given."""
    wanted = {"network": "resnet32", "dataset": dataset, "augmentation": augmentation, "head": "plain", "radius": 1.0}
    wanted |= {"loss": ADJUSTED, "weight_decay": 5e-4, "mixup": 0.0}
    wanted |= CHOSEN[dataset, augmentation] if changes is None else changes
    return _top1("beyond", **(wanted | fields))


def cells() -> str:
    """The strongest recipe on the paper's ResNet beside the best number that the paper has for it, in Markdown."""
    paper = json.loads((ROOT / "src/maxsep/lab/recipes/paper.json").read_text())["tables"]["table1_cifar"]
    rows = ["| | the paper's best | ours | seeds |", "|---|---|---|---|"]
    for dataset, title in TITLES.items():
        for imbalance in (0.2, 0.1, 0.02, 0.01):
            wanted = {"augmentation": STRONG, "head": "plain", "loss": ADJUSTED, "imbalance": imbalance}
            found = _top1("beyond", network="resnet34", dataset=dataset, **wanted)
            best = max(head[str(imbalance)] for head in paper[dataset]["resnet"].values())
            if found:
                rows.append(f"| {title}, imbalance {imbalance} | {best:.2f} | {in_percent(found)} | {len(found)} |")
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
            ours = [in_percent(each) for each in found.values()]
            titles = ("SVHN", "Places", "CIFAR-10")
            seeds = _seeds({title: len(each) for title, each in zip(titles, found.values(), strict=True)})
            cells = [printed[0], ours[0], printed[1], ours[1], ours[2], seeds]
            rows.append(f"| {name}, {told} | {' | '.join(cells)} |")
            if (head, score) == ("plain", "energy"):
                ours = [in_percent(_auroc(head, radius, "energy_centred", place)) for place in found]
                rows.append(f"| {name}, {told}, centred | - | {ours[0]} | - | {ours[1]} | {ours[2]} | {cells[-1]} |")
    accuracies = "; ".join(
        f"{told} {in_percent(_top1('ood', optimiser='sgd', head=head, radius=radius))}"
        for head, radius, told in OUTSIDE_HEADS
    )
    return "\n".join(rows) + f"\n\nTop-1 accuracy of these networks on CIFAR-100: {accuracies}.\n"


OUTSIDE_HEADS = (
    ("plain", 1.0, "plain head"),
    ("maxsep", 1.0, "maxsep, radius 1"),
    ("scaled", 0.1, "plain head, times 0.1"),
    ("maxsep", 0.1, "maxsep, radius 0.1"),
)


def _auroc(head: str, radius: float, score: str, outliers: str) -> list[float]:
    """One per seed: the mean over ten draws of 2,000 outliers, as the paper does."""
    found = []
    for record in _records("ood", optimiser="sgd", head=head, radius=radius):
        told = (record.detection or {"sets": {}})["sets"].get(outliers, {"scores": {}})["scores"].get(score, {})
        draws = told.get("draws", {})
        if (draws.get("repeats"), draws.get("size")) == (10, 2000):
            found.append(draws["auroc"]["mean"])
    return found


def open_sets() -> str:
    """AUROC of both scores on every open-set benchmark, beside accuracy and the paper's numbers, in Markdown."""
    paper = json.loads((ROOT / "src/maxsep/lab/recipes/paper.json").read_text())["tables"]["open_set"]
    columns = "accuracy | max softmax: paper, 5 splits | ours | max logit: paper, 5 splits | ours | our splits"
    rows = [f"| | {columns} |", "|---|---|---|---|---|---|---|"]
    missing = []
    for (benchmark, outliers), name in BENCHMARKS.items():
        found = [_open_set_row(paper, benchmark, outliers, *head) for head in OPEN_SET_HEADS]
        rows += filter(None, found)
        missing += [] if any(found) else [name.upper()]
    told = f"\nNot run: {', '.join(missing)}.\n" if missing else ""
    return "\n".join(rows) + "\n" + told


BENCHMARKS = {
    ("svhn", "unknown"): "svhn",
    ("cifar10", "unknown"): "cifar10",
    ("cifar+", "cifar+10"): "cifar+10",
    ("cifar+", "cifar+50"): "cifar+50",
}
"""Known classes and the set of unknown ones, and the paper's name for both."""
OPEN_SET_HEADS = (
    ("plain", 1.0, "plain head", "max_logit"),
    ("plain", 1.0, "plain head, centred", "max_logit_centred"),
    *((*head, "max_logit") for head in OUTSIDE_HEADS[1:]),
)


def _open_set_row(paper: dict, benchmark: str, outliers: str, head: str, radius: float, told: str, logit: str) -> str:
    """A head on a benchmark; nothing if it has no run."""
    runs = open_set_runs(benchmark, head, radius)
    softmax, logits = (open_set_auroc(runs, outliers, score) for score in ("max_softmax", logit))
    if not logits:
        return ""
    name = BENCHMARKS[benchmark, outliers]
    own = radius == 1 and logit == "max_logit"  # the paper has no other radius, and does not centre
    printed = [f"{paper[row][head][name]:.2f}" if own else "-" for row in ("msp", "mls")]
    known = [record.metrics["top1"] for record in runs.values()]
    known, softmax = ([], []) if logit == "max_logit_centred" else (known, softmax)  # centring changes neither
    cells = [in_percent(known), printed[0], in_percent(softmax), printed[1], in_percent(logits), _splits(list(runs))]
    return f"| {name.upper()}, {told} | {' | '.join(cells)} |"


def open_set_runs(benchmark: str, head: str, radius: float) -> dict[tuple[int, int], Record]:
    """The runs of a head that were asked about unknown classes, by split and seed."""
    return {
        (split, record.spec.seed): record
        for split in range(SPLITS)
        for record in _records("openset", dataset=OpenSetSplit(benchmark, split).name, head=head, radius=radius)
        if record.detection
    }


def open_set_auroc(runs: dict[tuple[int, int], Record], outliers: str, score: str) -> list[float]:
    """One for each split and seed: all known against all unknown test images."""
    found = (measured(record, outliers, score, "auroc", "full") for record in runs.values())
    return [value for value in found if value is not None]


def _splits(runs: list[tuple[int, int]]) -> str:
    """Which splits a mean is over, and how many runs, if some splits have several.

    >>> _splits([(0, 0)]), _splits([(0, 0), (1, 0)]), _splits([(0, 0), (0, 1), (1, 0)])
    ('0 alone', '0, 1', '0, 1 (3 runs)')
    """
    splits = sorted({split for split, _ in runs})
    several = f" ({len(runs)} runs)" if len(runs) > len(splits) else ""
    alone = " alone" if len(splits) == 1 else ""
    return ", ".join(map(str, splits)) + alone + several


def _top1(recipe: str, **wanted: Any) -> list[float]:
    """Accuracies, one per seed, of the run of a recipe that has these fields."""
    return [record.metrics["top1"] for record in _records(recipe, **wanted)]


def _records(recipe: str, **wanted: Any) -> list[Record]:
    """The records of one run of a recipe, in the order of its seeds.

    They are the recipe's in every field but the seed and the precision, so that no shorter run, no run on held-out or
    fewer images and none with another augmentation or optimiser is taken for it.
    """
    specs = [spec for spec in _protocol(recipe) if all(getattr(spec, key) == value for key, value in wanted.items())]
    if len(specs) != 1:
        raise LookupError(f"{len(specs)} runs of the recipe {recipe} have {wanted}; name fields that single out one.")
    found = {}
    for record in collected(RUNS).get(of_any_seed(specs[0]), ()):
        if record.spec.seed in found:
            other = found[record.spec.seed].spec.name
            raise ValueError(f"{record.spec.name} and {other} are one run in two precisions. Keep one of them.")
        found[record.spec.seed] = record
    return [found[seed] for seed in sorted(found)]


@functools.cache
def _protocol(recipe: str) -> list[RunSpec]:
    return recipes.get(recipe).specs(1)


@functools.cache
def collected(runs: Path) -> dict[RunSpec, list[Record]]:
    """The records of a folder by their spec, whatever seed and precision."""
    found: dict[RunSpec, list[Record]] = {}
    for record in collect(runs).records:
        found.setdefault(of_any_seed(record.spec), []).append(record)
    return found


def of_any_seed(spec: RunSpec) -> RunSpec:
    """A spec that runs of all seeds and precisions share."""
    return spec.replace(seed=0, precision="32-true")


def in_percent(found: Iterable[float]) -> str:
    """Percent, with the standard deviation of several."""
    found = list(found)
    if not found:
        return "-"
    spread = f" ± {rounded(statistics.stdev(found), scale=100)}" if len(found) > 1 else ""
    return f"{rounded(mean(found), scale=100)}{spread}"


def adamw() -> str:
    """A comparison under AdamW, in Markdown."""
    found = json.loads((ROOT / "results" / "adamw_digits.json").read_text())
    rows = ["| | accuracy | over the plain head | over the control at the same radius |", "|---|---|---|---|"]
    for arm in found["arms"]:
        accuracy = in_percent(arm["top1"]["seeds"].values())
        over = " | ".join(_gain(arm[key]) for key in ("over_plain", "over_control"))
        rows.append(f"| {arm['label']} | {accuracy} | {over} |")
    return "\n".join(rows) + "\n"


def _gain(told: dict[str, Any] | None) -> str:
    if told is None or told["difference"] is None:
        return "-"
    return f"{signed(told['difference'], scale=100)} ({p_text(told['p_after_correction'])})"


def cost() -> str:
    """What the head costs, in Markdown."""
    head = json.loads((ROOT / "results" / "head_cpu.json").read_text())["results"]
    training = json.loads((ROOT / "results" / "train_gpu.json").read_text())["results"]
    rows = ["| what | figure |", "|---|---|"]
    for classes in (1_000, 10_000, 100_000):
        overhead = head[f"head C={classes}"]["overhead"]
        what = f"head and cross-entropy over nn.Linear, {classes:,} classes, batch 128, 512 features"
        rows.append(f"| {what}, one thread of a CPU | +{100 * overhead:.0f} % |")
    for classes in (1_000, 10_000):
        ratio = head[f"product C={classes}"]["ratio"]
        what = f"O(C) product against the dense matrix, {classes:,} classes, batch 128, one thread of a CPU"
        rows.append(f"| {what} | {ratio:.0f} times faster |")
    memory = head["memory C=1000000"]["peak_gib"]
    rows.append(f"| peak memory of forward and backward, 1,000,000 classes, batch 32, CPU | {memory:.1f} GiB |")
    ratio = head["fused C=20000"]["over_logits"]
    what = "fused loss over F.cross_entropy of the head's logits, 20,000 classes, batch 128, 256 features"
    rows.append(f"| {what}, one thread of a CPU | {ratio:.2f} times |")
    losses = head["losses C=50000"]
    for name in ("maxsep", "F.linear_cross_entropy", "F.cross_entropy"):
        found = losses[name]
        mib = found["mib_beyond_weight_and_gradient"]
        figure = f"{found['seconds']:.2f} s, {mib:.0f} MiB beyond weight and gradient"
        rows.append(f"| loss of 50,000 classes, batch 1,024, 128 features, one thread of a CPU: {name} | {figure} |")
    idle, busy = (training[name]["images_per_second"] for name in ("+ CUDA graph", "+ CUDA graph, host busy"))
    rows.append(f"| training the paper's ResNet, batch 512, one H200 | {idle:,.0f} images/s |")
    rows.append(f"| the same with every core of the host busy | {busy:,.0f} images/s |")
    return "\n".join(rows) + "\n"


PAGES = {
    "README.md": {RESULTS: table, BEYOND: beyond, COST: cost},
    "docs/results.md": {
        PLAN: plan,
        METHODS: methods,
        ABLATION: ablation,
        CELLS: cells,
        OUTSIDE: outside,
        OPEN: open_sets,
        ADAMW: adamw,
    },
}


def rewritten(page: str) -> str:
    """A page with its tables replaced."""
    text = (ROOT / page).read_text()
    for (begin, end), content in PAGES[page].items():
        before, rest = text.split(begin)
        text = before + begin + content() + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(rewritten(page))
