"""Build the sections of a report, each only if there are runs for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Any

from maxsep.lab.recipes import paper
from maxsep.lab.report import figures, names, stability, summary
from maxsep.lab.report.controls import Method
from maxsep.lab.report.rows import FEW, MANY, Setting
from maxsep.lab.report.svg import Figure
from maxsep.lab.report.tables import ACCURACY, BALANCED, BEST, ECE, FISHER, TOP5, Cell, Measure, Row, SettingRows, Table
from maxsep.lab.report.tables import comparison_table as compare
from maxsep.lab.run import Run

ONCE = (
    "Accuracies are percent of the test set after the last epoch: the mean over seeds with its 95 % interval. "
    "Differences are paired over seeds, in points, with 95 % t-intervals. Better or worse: the interval excludes 0. No "
    "difference larger than 1 point: it lies within ±1. Too few seeds: neither; with the number needed an interval is "
    "about ±1. About one interval in twenty excludes 0 by chance."
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
        "cosines or takes cosines with its columns: both are here. Their baseline is LDAM's own cosine head, that "
        "of MiSLAS the linear head. The scripts of LDAM and MiSLAS report the best epoch on test data; compare the "
        "paper's number with our best epoch. Claims here use the last.",
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
    sections = (
        overview(test),
        plan(settings),
        *(accuracy(kind, [s for s in closed if kind_of(s) == kind]) for kind in _KINDS),
        start(closed),
        held_out([setting for setting in settings if setting.spec.validation > 0]),
        outliers(closed),
        open_set([setting for setting in test if setting.unit == "split"]),
        features(test),
        class_gains(closed),
        curves(closed),
    )
    return [section for section in sections if section is not None]


def overview(settings: Sequence[Setting]) -> Section | None:
    """Show what of the paper was measured and reached; nothing for runs that the paper does not have."""
    numbers, cells = summary.coverage(settings), summary.gains(settings)
    if not any(number.measured for number in numbers):
        return None
    drawn = (figures.forest_figure(cells),) if cells else ()
    return Section("coverage", "What was reproduced", (), (summary.coverage_table(numbers),), drawn)


def plan(settings: Sequence[Setting]) -> Section | None:
    """Count what of the plan is finished and missing; nothing where the plan names none of the runs."""
    table = summary.plan_table(settings)
    text = "The runs that docs/plan.md asks for. The tables below hold finished runs only."
    finished = any(row.cells[2].value for row in table.rows)
    return Section("plan", "What is missing", (text,), (table,)) if finished else None


def kind_of(setting: Setting) -> str:
    """Choose the section whose table shows a setting: that of the paper's number, or of recipes for long tails."""
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
        peers = list(group)
        measures = [ACCURACY, *([BALANCED] if any(setting.has_unequal_test for setting in peers) else [])]
        if any(setting.metric == BALANCED.metric for setting in peers):
            measures.reverse()
        once = all(setting.values(m) == setting.values(m, BEST.metric) for setting in peers for m in setting.methods)
        measures += [ECE] if once else [BEST, ECE]  # test images evaluated once have no best epoch
        measures += [TOP5] if peers[0].spec.dataset.startswith("imagenet") else []
        tailed = any(setting.is_tailed for setting in peers)
        blocks = []
        for setting in peers:
            label = setting.balance if kind != "strong" else _with_augmentation(setting)
            blocks.append(SettingRows(label, setting, tuple(measures), tailed))
        tables.append(compare(f"{kind}-{number}", name, blocks, extra=_published(peers[0]) if kind == "strong" else []))
    text += [SHOTS] if any(setting.is_tailed for setting in settings) else []
    after = [*summary.retrained(settings), *(_cause(settings) if kind == "table1" else [])]
    tables += _fisher(settings) if kind == "table1" else []
    return Section(kind, title, tuple(text), tuple(tables), (), tuple(after))


def _with_augmentation(setting: Setting) -> str:
    """Write the imbalance with the augmentation, also where no other setting has another, and the paper's best."""
    augmentation, best = names.augmentation_label(setting.spec.augmentation), paper.best_of_table1(setting.spec)
    if augmentation not in setting.distinction:
        setting = replace(setting, distinction=", ".join(filter(None, (setting.distinction, augmentation))))
    return setting.balance + ("" if best is None else f" · the paper's best {best.value:.2f}")


def start(settings: Sequence[Setting]) -> Section | None:
    """Show whether the linear head of Table 1 starts unstably, and what mends it."""
    if not (cells := stability.cells_of(settings)):
        return None
    text = (
        "Guessing has the loss ln C. A run whose mean loss in the first epoch is above it has started unstably. A "
        "change explains the gain if it makes the linear head better and the matrix is not better than it.",
        *stability.sentences(cells),
    )
    return Section("start", "Does the linear head start unstably?", text, (stability.stability_table(cells),))


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
    resnets = [setting for setting in settings if setting.spec.network == "resnet34"]
    blocks = [SettingRows(f"{setting.title}, {setting.balance}", setting, (FISHER,)) for setting in resnets]
    caption = (
        "Spread of test features within classes over that of the class means, both in angle; lower is better. The "
        "paper names neither the features nor every step of the formula, so the two may not measure the same thing."
    )
    return [compare("fisher", "Angular Fisher score", blocks, caption)] if any(b.methods for b in blocks) else []


def _cause(settings: Sequence[Setting]) -> list[str]:
    words = {d.agreement for s in settings if not s.earlier_draw for m in s.methods if (d := s.reached(m))}
    return [
        "Where ours is above or below, the cause is not known: settings are those of the paper and its released code, "
        "computed in bfloat16, and the subset may hold other images. The numbers of Table 1 are mostly at or above the "
        "mean of the paper's own five runs, as the best of several runs would be."
    ] * bool(words & {"above", "below"})


def held_out(settings: Sequence[Setting]) -> Section | None:
    """List what was measured on held-out training data, folded."""
    if not settings:
        return None
    blocks = [SettingRows(f"{setting.title}, {setting.balance}", setting, (BALANCED,)) for setting in settings]
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
        for name, content in {n: record for run in runs for n, record in _sets(run).items()}.items():
            blocks = [
                SettingRows(label, setting, _measures(name, score, ("auroc", "fpr95", "aupr")))
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
                blocks.append(SettingRows(" · ".join(filter(None, parts)), setting, measures))
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
                if epochs and all(len(point) == 2 for points in epochs.values() for point in points["known"]):
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
    """Choose the matrix at the radius of the paper, or else the largest one: never the best on test data."""
    matrices = [method for method in setting.methods if method.head == "maxsep"]
    wanted = 0.1 if setting.spec.network == "resnet34" else 1.0
    return next((method for method in matrices if method.radius == wanted), matrices[0] if matrices else None)


def _one_seed(setting: Setting, methods: Sequence[Method | None]) -> dict[Method, Run]:
    """Return the runs of some methods in the lowest repetition that all of them share."""
    chosen = [method for method in setting.methods if method in methods]
    common = set.intersection(*(set(setting.runs[method]) for method in chosen)) if chosen else set()
    return {method: setting.runs[method][min(common)] for method in chosen} if common else {}


def class_gains(settings: Sequence[Setting]) -> Section | None:
    """Draw the gain of each class over the linear head against its number of training images."""
    drawn = []
    for number, setting in enumerate(settings, 1):
        counts, matrix = setting.counts, main_method(setting)
        if not setting.is_tailed or matrix is None or not counts or min(counts) == 0:
            continue
        methods = [m for m in (matrix, setting.control(matrix)) if m is not None and m != matrix.baseline]
        pairs = [(method, _class_gains(setting, method, len(counts))) for method in methods]
        gains = {setting.name(method): (method.head, gain) for method, gain in pairs if gain}
        if gains:
            title = f"{setting.title}, {setting.balance}"
            drawn.append(figures.class_gain_figure(f"classes-{number}", title, counts, gains))
    text = ("Test accuracy of each class minus that of the linear head, averaged over common seeds.",)
    return Section("classes", "Gain of each class", text, (), tuple(drawn[:_MOST_FIGURES])) if drawn else None


def _class_gains(setting: Setting, method: Method, num_classes: int) -> list[float]:
    """Return the mean gain of each class over the baseline; empty if no common run has recorded its classes."""
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
        choices = [(s, _one_seed(s, _drawn(s))) for s in group]
        setting, runs = max(choices, key=lambda choice: (not choice[0].earlier_draw, len(choice[1])))
        logs = {setting.name(method): (method.head, run.history) for method, run in runs.items()}
        drawn += figures.curve_figures(f"{len(drawn)}", f"{setting.title}, {setting.balance}", logs)
    text = ("One seed for each method, the lowest that all of them share.",)
    return Section("curves", "Training curves", text, (), tuple(drawn[:_MOST_FIGURES])) if drawn else None


def _drawn(setting: Setting) -> Sequence[Method | None]:
    """Return the matrix at its main radius, its baseline and its control; else the first methods of the first loss."""
    if (matrix := main_method(setting)) is not None:
        return [matrix.baseline, matrix, setting.control(matrix)]
    return [method for method in setting.methods if method.loss == setting.methods[0].loss][:4]
