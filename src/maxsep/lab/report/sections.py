"""The sections of a report, each built only if there are runs for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from maxsep.lab.recipes import paper
from maxsep.lab.report import figures, names, summary
from maxsep.lab.report.controls import Method
from maxsep.lab.report.rows import FEW, MANY, Setting
from maxsep.lab.report.svg import Figure
from maxsep.lab.report.tables import ACCURACY, BALANCED, BEST, ECE, FISHER, TOP5, Block, Cell, Measure, Row, Table
from maxsep.lab.report.tables import comparison_table as compare
from maxsep.lab.run import Run

ONCE = (
    "Accuracies are percent of the test set after the last epoch: the mean over seeds with its 95 % interval. "
    "Differences are paired over seeds, in points, with 95 % t-intervals. Better or worse: the interval excludes 0. No "
    "difference larger than 1 point: it lies within ±1. Too few seeds: neither. About one interval in twenty excludes "
    "0 by chance."
)
SHOTS = f"Many, medium, few: classes with more than {MANY}, {FEW} to {MANY}, and fewer than {FEW} training images."
_MOST_FIGURES = 8
_SETS = {"svhn": "SVHN", "places": "Places", "cifar10": "CIFAR-10"}
_KINDS = {
    "table1": (
        "Table 1 and optimised prototypes",
        "The paper's CIFAR protocol. A method is compared with the paper's number, with a linear head, and with its "
        "control: the same radius without the matrix.",
    ),
    "long-tail": (
        "LDAM and MiSLAS",
        "The paper has one row with the matrix for LDAM, at margin 0.4, and does not say whether it multiplies the "
        "cosines or takes cosines with its columns: both are here. The scripts of LDAM and MiSLAS report the best "
        "epoch on test data; compare the paper's number with our best epoch. Claims here use the last.",
    ),
    "strong": (
        "Beyond the paper: losses and augmentation for long tails",
        "The paper's network, and the ResNet-32 of He et al., with logit adjustment and AutoAugment. Where two rows "
        "differ in one part, their difference is the worth of that part. Weight decay and mixup were chosen on "
        "held-out data. Published numbers use other draws of the subset, mostly one seed.",
    ),
    "other": ("Accuracy in other settings",),
}


@dataclass(frozen=True)
class Section:
    """A heading, sentences, tables and figures, in this order."""

    id: str
    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    after: tuple[str, ...] = ()


def build(settings: Sequence[Setting]) -> list[Section]:
    """Build all sections of a report in their order, each only if there are runs for it."""
    test = [setting for setting in settings if setting.spec.validation == 0]
    closed = [setting for setting in test if setting.unit == "seed"]
    found = (
        overview(test),
        *(accuracy(kind, [s for s in closed if kind_of(s) == kind]) for kind in _KINDS),
        held_out([setting for setting in settings if setting.spec.validation > 0]),
        outliers(closed),
        open_set([setting for setting in test if setting.unit == "split"]),
        features(test),
        class_gains(closed),
        curves(closed),
    )
    return [section for section in found if section is not None]


def overview(settings: Sequence[Setting]) -> Section | None:
    """What of the paper was measured and reached; nothing for runs that the paper does not have."""
    numbers, cells = summary.coverage(settings), summary.gains(settings)
    if not any(number.measured for number in numbers):
        return None
    drawn = (figures.forest_figure(cells),) if cells else ()
    return Section("coverage", "What was reproduced", (), (summary.coverage_table(numbers),), drawn)


def kind_of(setting: Setting) -> str:
    """The section whose table shows a setting: that of the paper's number, or of recipes for long tails."""
    tables = {cell.table for method in setting.methods for cell in setting.cells(method)}
    if tables & {"Table 1", "Optimised prototypes"}:
        return "table1"
    if "LDAM and MiSLAS" in tables or setting.spec.start_from is not None:
        return "long-tail"
    adjusted = any(method.loss == "logit_adjusted" for method in setting.methods)
    return "strong" if adjusted and setting.spec.imbalance < 1 and setting.spec.optimiser == "sgd" else "other"


def accuracy(kind: str, settings: Sequence[Setting]) -> Section | None:
    """Compare accuracies: one table for each dataset and network, a block of rows for each setting."""
    if not settings:
        return None
    title, *text = _KINDS[kind]
    tables = []
    for number, (name, group) in enumerate(groupby(settings, key=lambda setting: setting.title), 1):
        shown = list(group)
        measures = [ACCURACY, *([BALANCED] if any(map(_has_unequal_test, shown)) else []), BEST, ECE]
        measures += [TOP5] if shown[0].spec.dataset.startswith("imagenet") else []
        tailed = any(setting.is_tailed for setting in shown)
        blocks = []
        for setting in shown:
            best = paper.best_of_table1(setting.spec) if kind == "strong" else None
            label = setting.balance + ("" if best is None else f" · the paper's best {best.value:.2f}")
            blocks.append(Block(label, setting, tuple(measures), tailed))
        tables.append(compare(f"{kind}-{number}", name, blocks, extra=_published(shown[0]) if kind == "strong" else []))
    text += [SHOTS] if any(setting.is_tailed for setting in settings) else []
    after = [*summary.retrained(settings), *(_cause(settings) if kind == "table1" else [])]
    tables += _fisher(settings) if kind == "table1" else []
    return Section(kind, title, tuple(text), tuple(tables), (), tuple(after))


def _published(setting: Setting) -> list[Row]:
    spec = setting.spec
    rows: list[Row] = []
    for number in paper.published(spec.dataset, spec.network, spec.imbalance):
        augmentation = "crop and flip" if number.note == "crop_flip" else "AutoAugment and cutout"
        name = Cell(f"published: {number.method}", f"{number.table}, {augmentation}", "muted")
        group = "" if rows else f"imbalance {spec.imbalance:g} · published"
        rows.append(Row((name, Cell(f"{number.value:.1f}", value=number.value)), group))
    return rows


def _fisher(settings: Sequence[Setting]) -> list[Table]:
    shown = [setting for setting in settings if setting.spec.network == "resnet34"]
    blocks = [Block(f"{setting.title}, {setting.balance}", setting, (FISHER,)) for setting in shown]
    caption = (
        "Spread of test features within classes over that of the class means, both in angle; lower is better. The "
        "paper names neither the features nor every step of the formula, so the two may not measure the same thing."
    )
    return [compare("fisher", "Angular Fisher score", blocks, caption)] if any(b.methods for b in blocks) else []


def _cause(settings: Sequence[Setting]) -> list[str]:
    words = {found.agreement for s in settings if not s.earlier_draw for m in s.methods if (found := s.reached(m))}
    return [
        "Where ours is above or below, the cause is not known: settings are those of the paper and its released code, "
        "computed in bfloat16, and the subset may hold other images. The numbers of Table 1 are mostly at or above the "
        "mean of the paper's own five runs, as the best of several runs would be."
    ] * bool(words & {"above", "below"})


def held_out(settings: Sequence[Setting]) -> Section | None:
    """List what was measured on held-out training data, folded."""
    if not settings:
        return None
    blocks = [Block(f"{setting.title}, {setting.balance}", setting, (BALANCED,)) for setting in settings]
    share = f"{100 * settings[0].spec.validation:g} %"
    text = f"Trained without {share} of every training class and evaluated on it; the test set was not read."
    table = compare("held-out", "Candidates on held-out data", blocks, folded=True)
    return Section("held-out", "Search on held-out data", (text,), (table,))


def outliers(settings: Sequence[Setting]) -> Section | None:
    """Compare detectors of outliers: a table for each set, a block of rows for each score."""
    tables: list[Table] = []
    drawn: list[Figure] = []
    for setting in settings:
        runs = [run for runs in setting.runs.values() for run in runs.values()]
        for name, content in {n: found for run in runs for n, found in _sets(run).items()}.items():
            blocks = [
                Block(label, setting, _measures(name, score, ("auroc", "fpr95", "aupr")))
                for score, label in names.SCORES.items()
                if any(setting.values(method, f"{name} {score} auroc") for method in setting.methods)
            ]
            title = f"{setting.title} against {_SETS.get(name, name)}"
            title += f" · {setting.distinction}" * bool(setting.distinction)
            draws = next(iter(content["scores"].values())).get("draws")
            means = f"{draws['repeats']} draws of {draws['size']:,} of" if draws else "all"
            caption = f"Outliers: {content['origin']}. Means over {means} {content['count']:,} images."
            tables.append(compare(f"ood-{len(tables) + 1}", title, blocks, caption))
            pair = _one_seed(setting, (Method("plain"), main_method(setting))).items()
            shapes = {setting.name(m): _sets(r)[name]["histograms"]["energy"] for m, r in pair if name in _sets(r)}
            drawn += [figures.energy_figure(f"energy-{len(tables)}", title, shapes)] if shapes else []
    text = (
        "How well a trained network separates its test images from images of no known class. In-distribution images "
        "are positive; FPR95 is the share of outliers accepted at the recall closest to 95 %. Differences: AUROC.",
        "Mahalanobis is not comparable with the paper: we choose its input step on synthetic outliers, which picks 0 "
        "for most runs; the original code chooses it on test data.",
    )
    return Section("ood", "Out-of-distribution detection", text, tuple(tables), tuple(drawn)) if tables else None


def _sets(run: Run) -> dict[str, dict[str, Any]]:
    return dict((run.detection or {"sets": {}})["sets"])


def _measures(outliers: str, score: str, metrics: Sequence[str]) -> tuple[Measure, ...]:
    return tuple(Measure(f"{outliers} {score} {metric}", f"{metric.upper()}, %") for metric in metrics)


def open_set(settings: Sequence[Setting]) -> Section | None:
    """Compare AUROC on unknown classes: a block of rows for each benchmark, set of unknown classes and score."""
    blocks = []
    for setting in settings:
        splits = ", ".join(map(str, sorted({split for runs in setting.runs.values() for _, split in runs})))
        for unknown in dict.fromkeys(row.metric.split()[0] for row in setting.rows if row.metric.endswith(" auroc")):
            where = names.dataset_label(setting.spec.dataset) if unknown == "unknown" else unknown.upper()
            for score in ("max_softmax", "max_logit"):
                parts = (where, names.SCORES[score], f"split {splits} of 0 to 4", setting.distinction)
                measures = (*_measures(unknown, score, ("auroc", "oscr")), ACCURACY)
                blocks.append(Block(" · ".join(filter(None, parts)), setting, measures))
    text = (
        "A few classes are trained on, and test images of other classes are to be recognised as unknown. The paper's "
        "numbers are means over five splits of the classes. Two splits of each benchmark have the same known classes."
    )
    title, caption = "Open-set recognition", "Accuracy is that on the known classes."
    return Section("open-set", title, (text,), (compare("open-set", title, blocks, caption),)) if blocks else None


def features(settings: Sequence[Setting]) -> Section | None:
    """Draw features in the plane and their norms, for runs whose networks end with two features."""
    runs: dict[str, Run] = {}
    for setting in settings:
        for method in setting.methods:
            for run in setting.runs[method].values():
                epochs = (run.features or {"epochs": {}})["epochs"]
                if epochs and all(len(point) == 2 for found in epochs.values() for point in found["known"]):
                    runs.setdefault(setting.name(method), run)
    if not runs:
        return None
    logs = {label: (run.spec.head, run.history) for label, run in runs.items()}
    logs = {label: log for label, log in logs.items() if any("norm_unknown" in line for line in log[1])}
    drawn = [figures.features_figure({label: run.features or {} for label, run in runs.items()})]
    drawn += [figures.norms_figure(logs)] if logs else []
    text = (
        "A network whose last features are two numbers. The paper says that features of unknown classes become shorter "
        "than those of known ones; they do with the linear head, too."
    )
    return Section("features", "Features in the plane", (text,), (), tuple(drawn))


def main_method(setting: Setting) -> Method | None:
    """The matrix at the radius of the paper, or else the largest one: never the best on test data."""
    found = [method for method in setting.methods if method.head == "maxsep"]
    wanted = 0.1 if setting.spec.network == "resnet34" else 1.0
    return next((method for method in found if method.radius == wanted), found[0] if found else None)


def _one_seed(setting: Setting, methods: Sequence[Method | None]) -> dict[Method, Run]:
    """The runs of some methods in the lowest repetition that all of them share."""
    found = [method for method in setting.methods if method in methods]
    common = set.intersection(*(set(setting.runs[method]) for method in found)) if found else set()
    return {method: setting.runs[method][min(common)] for method in found} if common else {}


def class_gains(settings: Sequence[Setting]) -> Section | None:
    """Draw the gain of each class over the linear head against its number of training images."""
    drawn = []
    for number, setting in enumerate(settings, 1):
        counts, matrix = setting.counts, main_method(setting)
        if not setting.is_tailed or matrix is None or not counts or min(counts) == 0:
            continue
        methods = [m for m in (matrix, setting.control(matrix)) if m is not None and m != matrix.baseline]
        gains = {method.head: gain for method in methods if (gain := _class_gains(setting, method, len(counts)))}
        if gains:
            title = f"{setting.title}, {setting.balance}, {names.method_label(matrix)}"
            drawn.append(figures.class_gain_figure(f"classes-{number}", title, counts, gains))
    text = ("Test accuracy of each class minus that of the linear head, averaged over common seeds.",)
    return Section("classes", "Gain of each class", text, (), tuple(drawn[:_MOST_FIGURES])) if drawn else None


def _class_gains(setting: Setting, method: Method, num_classes: int) -> list[float]:
    """The mean gain of each class over the baseline; empty if no common run has recorded its classes."""
    ours, theirs = setting.runs[method], setting.runs.get(method.baseline, {})
    pairs = [
        (ours[key].metrics.get("per_class"), theirs[key].metrics.get("per_class")) for key in ours if key in theirs
    ]
    known = [(a, b) for a, b in pairs if a and b and len(a) == len(b) == num_classes and None not in (*a, *b)]
    return [fmean(a[k] - b[k] for a, b in known) for k in range(num_classes)] if known else []


def curves(settings: Sequence[Setting]) -> Section | None:
    """Draw training curves of one seed: for each dataset and network the setting with most methods to compare."""
    drawn: list[Figure] = []
    for _, group in groupby(settings, key=lambda setting: setting.title):
        setting, runs = max(((s, _one_seed(s, _drawn(s))) for s in group), key=lambda choice: len(choice[1]))
        logs = {setting.name(method): (method.head, run.history) for method, run in runs.items()}
        drawn += figures.curve_figures(f"{len(drawn)}", f"{setting.title}, {setting.balance}", logs)
    text = ("One seed for each method, the lowest that all of them share.",)
    return Section("curves", "Training curves", text, (), tuple(drawn[:_MOST_FIGURES])) if drawn else None


def _drawn(setting: Setting) -> list[Method | None]:
    """The linear head, the matrix at its main radius and its control; else the first methods of the first loss."""
    matrix = main_method(setting)
    first = [method for method in setting.methods if method.loss == setting.methods[0].loss]
    return [Method("plain"), matrix, setting.control(matrix)] if matrix in first and matrix else [*first[:4]]


def _has_unequal_test(setting: Setting) -> bool:
    """Whether accuracy and mean over classes differ: not where classes have as many test images."""
    pairs = [(setting.values(m), setting.values(m, "balanced")) for m in setting.methods]
    return any(abs(top1[key] - mean[key]) > 1e-6 for top1, mean in pairs for key in top1.keys() & mean.keys())
