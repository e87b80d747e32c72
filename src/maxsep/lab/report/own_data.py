"""The result of `compare` on one's own data: one object for terminal, JSON and page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from maxsep.lab.data import Dataset, ImageSet, fingerprints_differ, prepare
from maxsep.lab.engine.evaluate import Outputs, load_pipeline, predict
from maxsep.lab.reference import ADVICE, Reference, decisive_metric, shortfall, why_untrained
from maxsep.lab.report import figures, names, sections, tables
from maxsep.lab.report.controls import MATRIX_HEADS, Method
from maxsep.lab.report.render import Report, results, write
from maxsep.lab.report.rows import Setting, tidy
from maxsep.lab.report.runs import Collection, check_data, collect
from maxsep.lab.report.sections import SHOTS, Section
from maxsep.lab.report.statistics import Difference, plural
from maxsep.lab.report.summary import THEOREM
from maxsep.lab.report.tables import ACCURACY, BALANCED, ECE, EMPTY, MACRO_F1, Cell, Row, SettingRows, Table
from maxsep.lab.run import Run
from maxsep.lab.search import Choice
from maxsep.lab.spec import RunSpec
from maxsep.packages import printable

TITLE = "Does the matrix help on these data?"
_GUESSING, _BEHIND = 0.05, 0.75
_MOST_CLASSES, _MISTAKES, _BINS, _THUMBNAIL = 30, 12, 10, 112


@dataclass(frozen=True)
class Comparison:
    """A method against another: `matrix` at equal radius, `radius` without the matrix, `both`, or `loss`."""

    effect: str
    method: str
    other: str
    difference: Difference

    @property
    def text(self) -> str:
        """One line: the methods, the difference with its interval, and the word."""
        return f"{self.method} against {self.other}: {self.difference.text}"


@dataclass(frozen=True)
class Verdict:
    """What a comparison on one's own data says: the runs asked for, and the finished ones, which share a setting."""

    specs: tuple[RunSpec, ...]
    collection: Collection
    setting: Setting
    reference: Reference | None = None
    """Logistic regression on the same images."""
    choices: tuple[Choice, ...] = ()
    """How the learning rate of every method was chosen, if it was."""
    test_counts: tuple[int, ...] = ()
    """Test images of every class, if known."""

    @property
    def metric(self) -> str:
        """What methods are compared by: the accuracy, or its mean over classes where these are unequal."""
        return decisive_metric(self.setting.counts)

    @property
    def failure(self) -> list[str]:
        """Why the baseline did not train or is below the reference, and what to change; empty if neither is so."""
        reasons = self.setting.untrained.get(self.setting.methods[0].baseline)
        return [*reasons, ADVICE] if reasons else []

    @property
    def missing(self) -> list[RunSpec]:
        """The runs that are not finished."""
        done = {run.spec.name for run in self.collection.runs}
        return [spec for spec in self.specs if spec.name not in done]

    @property
    def comparisons(self) -> list[Comparison]:
        """Every comparison, in the order of the methods; none if the baseline did not train."""
        setting, comparisons = self.setting, list[Comparison]()
        if self.failure:
            return comparisons
        for method in setting.methods:
            baseline, control = setting.baseline(method), setting.control(method)
            effect = "loss" if method.brings_loss else "both" if method.head in MATRIX_HEADS else "radius"
            pairs = {control: "matrix"} | ({} if baseline == control else {baseline: effect})
            for other, kind in pairs.items():
                if other is not None and (difference := setting.difference(method, other, self.metric)):
                    comparisons.append(Comparison(kind, setting.name(method), setting.name(other), difference))
        return comparisons

    @property
    def headline(self) -> str:
        """Answer in one sentence whether the matrix helps."""
        if self.failure:
            return f"The baseline {self._shortfall(self.setting.methods[0].baseline)}; nothing can be said."
        matrix = [c for c in self.comparisons if c.effect == "matrix" and c.difference.word]
        controls = [control for method in self.setting.methods for control in method.controls]
        if not matrix and (failed := [control for control in controls if control in self.setting.untrained]):
            return f"The control {self._shortfall(failed[0])}; nothing can be said about the matrix."
        if all(c.difference.low is None for c in matrix):
            few = matrix[0].difference.word if matrix else "too few seeds"
            return f"{few.capitalize()}: no comparison of the matrix with its control has an interval yet."
        if apart := [c for c in matrix if c.difference.excludes_zero]:
            return "; ".join(map(self._finding, apart)) + "."
        none = all(c.difference.word.startswith("no difference") for c in matrix)
        more = "test images" if self.points > 1 else "seeds"
        end = "none is larger than 1 point" if none else f"some intervals are wider than 1 point: use more {more}"
        return f"No difference between the matrix and its control is visible; {end}."

    def _finding(self, found: Comparison) -> str:
        """Say how a method differs from its control, and from the linear head if the words differ."""
        text = f"{found.method} is {found.difference.word} than {found.other} ({found.difference.format()} points)"
        for whole in (c for c in self.comparisons if (c.method, c.effect) == (found.method, "both")):
            if whole.difference.excludes_zero and whole.difference.word != found.difference.word:
                text += f", but {whole.difference.word} than {whole.other} ({whole.difference.format()} points)"
        return text

    @property
    def warnings(self) -> list[str]:
        """What makes a comparison doubtful: methods near chance or far behind, few test images."""
        setting, doubts = self.setting, []
        chance = 1 / max(len(setting.counts), 1)
        for method in [] if self.failure else setting.methods:  # a failure says all
            name, ours, mean = setting.name(method), setting.summary(method), setting.summary(method, "balanced")
            baseline = setting.summary(method.baseline) if method.baseline in setting.runs else None
            alone = " Nothing is compared with it." if method in setting.untrained else ""
            if mean and mean.mean < chance + _GUESSING * (1 - chance):
                doubts.append(f"{name} is near chance: {100 * mean.mean:.1f} %.{alone}")
            elif method in setting.untrained:
                doubts.append(f"{name} {self._shortfall(method)}. {' '.join(setting.untrained[method])}{alone}")
            elif ours and baseline and ours.mean < _BEHIND * baseline.mean:
                doubts.append(f"{name} is under-trained: {100 * ours.mean:.1f} %, linear {100 * baseline.mean:.1f} %.")
        doubts += ["Train longer or lower the learning rate before you compare."] if doubts else []
        one = "of them is" if self.metric == "top1" else "of the smallest class is"
        few = f"There are {self.num_test} test images: one {one} {self.points:.1f} points."
        return [*doubts, few] if self.points > 1 else doubts

    @property
    def num_test(self) -> int:
        """The number of test images."""
        return int(self.collection.runs[0].metrics["num_test"])

    @property
    def points(self) -> float:
        """The points of one test image: of the smallest class where the mean over classes decides."""
        counts = [count for count in self.test_counts if count] if self.metric == "balanced" else []
        return 100 / (len(counts) * min(counts) if counts else self.num_test)

    @property
    def is_searched(self) -> bool:
        """Whether learning rates were searched."""
        return any(choice.trials for choice in self.choices)

    def _shortfall(self, method: Method) -> str:
        return shortfall([*self.setting.runs[method].values()])

    @property
    def header(self) -> list[str]:
        """What was compared."""
        spec, counts = self.specs[0], self.setting.counts
        test = f"{self.num_test:,} test images ({Dataset.parse(spec.dataset).test_description})"
        tail = names.augmentation_label(spec.augmentation)
        tail += "" if spec.imbalance == 1 else f", imbalance {spec.imbalance:g}"
        rate = f"at {spec.learning_rate:g}" + (" (by the batch size, without a search)" if self.choices else "")
        rate = "with a learning rate for each method" if self.is_searched else rate
        rate = f"{spec.optimiser} {rate}, batches of {spec.batch_size}"
        warmup = dict(spec.schedule_options).get("warmup")
        rate += f", warm-up of {plural(warmup, 'epoch')}" if warmup else ""
        least = None if self.reference is None else getattr(self.reference, self.metric)
        reference = [] if least is None else [f"For reference, {self.reference}: {least:.1%}."]
        return [
            f"{names.dataset_label(spec.dataset)}: {sum(counts):,} training images of {len(counts)} classes, {test}.",
            f"{names.network_label(spec.network)}, {plural(spec.epochs, 'epoch')} of {rate}, {tail}.",
            "Accuracy after the last epoch; nothing was chosen on the test images.",
            *reference,
        ]

    @property
    def table(self) -> Table:
        """Every method with its differences, unless the baseline did not train."""
        unequal = self.metric == "balanced"
        measures = (BALANCED, ACCURACY, MACRO_F1, ECE) if unequal else (ACCURACY, ECE)
        block = SettingRows("", self.setting, measures, unequal)
        table = tables.comparison_table("comparison", "Methods", [block], SHOTS if unequal else "")
        return table.without(tables.DIFFERENCES) if self.failure else table

    def show(self, console: Any) -> None:
        """Print header, table, one line for each comparison, warnings and missing runs with a rich console."""
        lines = [*(comparison.text for comparison in self.comparisons), "", self.headline]
        lines += [*self.failure, *self.warnings]
        if missing := [spec.title for spec in self.missing]:
            titles = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            lines.append(f"{len(missing)} of {len(self.specs)} runs are missing; the same command resumes: {titles}")
        plain = {"markup": False, "highlight": False, "soft_wrap": True}
        searched = self.choices if self.is_searched else ()  # else the header has the rate, once
        choices = [f"{self.setting.name(Method.of(choice.spec))}: {choice}." for choice in searched]
        console.print("\n".join(["", *self.header, *choices]), **plain)
        console.print(self.table.without((*tables.DIFFERENCES, tables.GROUPS)).to_rich())  # differences are lines below
        console.print("\n".join(lines), **plain)

    def _means(self, method: Method) -> dict[str, float]:
        names = ("top1", "balanced", "macro_f1", "ece", "loss")
        return {name: mean.mean for name in names if (mean := self.setting.summary(method, name)) is not None}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; accuracies and differences are fractions."""
        drop = ["setting", "subset", "counted", "paper", "to_paper", "reached"]
        drop += ["to_baseline", "to_control"] if self.failure else []
        methods = zip(self.setting.methods, results(self.setting, self.metric), strict=True)
        return {
            "headline": self.headline,
            "failure": self.failure,
            "metric": self.metric,
            "reference": None if self.reference is None else asdict(self.reference),
            "search": [choice.to_dict() for choice in self.choices],
            "data": self.specs[0].dataset,
            "class_counts": self.setting.counts,
            "num_train": sum(self.setting.counts),
            "num_test": self.num_test,
            "setting": self.setting.spec.to_dict(),
            "seeds": sorted({spec.seed for spec in self.specs}),
            "methods": [
                {"label": self.setting.name(method), "metrics": self._means(method)}
                | {key: row[key] for key in row if key not in drop}
                for method, row in methods
            ],
            "comparisons": [
                {"effect": c.effect, "method": c.method, "other": c.other, **c.difference.to_dict()}
                for c in self.comparisons
            ],
            "warnings": self.warnings,
            "missing": [spec.name for spec in self.missing],
        }


def verdict(
    specs: Sequence[RunSpec],
    runs: Sequence[Run],
    reference: Reference | None = None,
    choices: Sequence[Choice] = (),
    test_counts: Sequence[int] = (),
) -> Verdict:
    """Compare the finished runs of one setting, at least one, whose specs differ in method, seed and learning rate.

    Raises:
        ValueError: The runs have seen different images.
    """
    check_data(runs)
    asked = {spec.name for spec in specs}
    collection = collect(*(run.folder for run in runs if run.spec.name in asked))
    setting = Setting(specs[0], tidy(collection))
    reasons = {method: why_untrained(list(some.values()), reference) for method, some in setting.runs.items()}
    setting.untrained = {method: why for method, why in reasons.items() if why}
    result = Verdict(tuple(specs), collection, setting, reference, tuple(choices), tuple(test_counts))
    setting.step = result.points / 100
    return result


def write_page(result: Verdict, out: str | Path, *, data_root: str | Path | None = None) -> Path:
    """Write the page of a comparison: verdict, table, confusion matrix, most confident mistakes, classes, curves.

    The test images are read again from `data_root`.
    """
    setting = result.setting
    text, warnings = " ".join(result.header), tuple(result.warnings)
    table = Section("comparison", "Methods", (text,), (result.table,), after=warnings)
    parts = [table, _search(result), *_predictions(setting, _evaluate(setting, data_root))]
    parts += [None if result.failure else sections.class_gains([setting]), sections.curves([setting])]
    page_sections = tuple(part for part in parts if part is not None)
    theorem = [THEOREM] if not result.failure and all(spec.optimiser == "sgd" for spec in result.specs) else []
    sentences = (*result.failure, *(comparison.text for comparison in result.comparisons), *theorem)
    rows, data = tuple(setting.rows), result.to_dict()
    return write(Report(TITLE, result.headline, sentences, page_sections, rows, result.collection, data), out)


def _search(result: Verdict) -> Section | None:
    """Tabulate what the search tried for every method: the metric on held-out data of each learning rate."""
    if not result.is_searched:
        return None
    rates, rows = sorted({trial.learning_rate for choice in result.choices for trial in choice.trials}), []
    for choice in result.choices:
        last = {t.learning_rate: Cell(f"{100 * t.score:.1f}", plural(t.epochs, "epoch")) for t in choice.trials}
        chosen = choice.spec.learning_rate
        cells = [Cell(result.setting.name(Method.of(choice.spec))), Cell(f"{chosen:g}")]
        cells += [replace(last.get(rate, EMPTY), tone="" if rate == chosen else "muted") for rate in rates]
        rows.append(Row(tuple(cells)))
    columns = ("method", "chosen", *(f"{rate:g}" for rate in rates))
    name = "Accuracy" if result.metric == "top1" else "Mean accuracy over classes"
    text = (
        f"{name} in percent on a fifth of the training images, held out, after the longest training with each learning "
        "rate. Every method has the rate that was best for it."
    )
    return Section("search", "Learning rates", (text,), (Table("search", "Learning rates", columns, tuple(rows)),))


def _main_methods(setting: Setting) -> list[Method]:
    """The linear head and the matrix at its main radius, or what there is."""
    wanted = (Method("plain"), sections.main_method(setting))
    return [method for method in setting.methods if method in wanted] or setting.methods[:1]


def _first_run(setting: Setting, method: Method) -> Run:
    return setting.runs[method][min(setting.runs[method])]


def _evaluate(setting: Setting, data_root: str | Path | None) -> tuple[ImageSet, list[Outputs]] | str:
    """Evaluate the first run of each main method on the test images again, or say why that cannot be done."""
    runs = [_first_run(setting, method) for method in _main_methods(setting)]
    try:
        data = prepare(runs[0].spec, data_root)
        if fingerprints_differ(data.fingerprint, runs[0].metrics.get("files")):
            raise ValueError("they have changed.")
        return data.test, [predict(load_pipeline(run.folder), data.test) for run in runs]
    except (OSError, ValueError) as error:
        return f"The test images could not be evaluated again: {error}"


def _predictions(setting: Setting, evaluated: tuple[ImageSet, list[Outputs]] | str) -> list[Section]:
    """Accuracy of every class, confusion matrices, calibration and the most confident mistakes of the main methods."""
    if isinstance(evaluated, str):
        return [Section("classes", "Classes", (evaluated,), _class_table(setting, None))]
    test, outputs = evaluated
    drawn, mistakes, curves = [], [], dict[str, tuple[str, list[tuple[float, float, int]]]]()
    classes = [printable(str(item)) for item in test.classes]
    for number, method in enumerate(_main_methods(setting)):
        run = _first_run(setting, method)
        confidence, predicted = (outputs[number].logits * run.spec.softmax_scale).softmax(1).max(1)
        name = f"{setting.name(method)}, seed {run.spec.seed}"
        pairs = torch.bincount(test.labels * len(classes) + predicted, minlength=len(classes) ** 2)
        matrix = pairs.view(len(classes), -1).tolist()
        drawn.append(figures.confusion_figure(f"confusion-{number}", f"Confusion: {name}", matrix, classes))
        curves[name] = method.head, _calibration(confidence, predicted == test.labels)
        wrong = torch.where(predicted != test.labels, confidence, -1.0).argsort(descending=True)
        rows = tuple(
            Row((Cell(classes[test.labels[k]], _file(test, k), image=_thumbnail(test, k)), Cell(classes[predicted[k]]),
                 Cell(f"{100 * confidence[k]:.1f}")))
            for k in wrong[:_MISTAKES].tolist() if predicted[k] != test.labels[k]
        )  # fmt: skip
        columns = ("true class", "predicted class", "probability, %")
        mistakes.append(Table(f"mistakes-{number}", name, columns, rows, folded=number > 0))
    drawn.append(figures.calibration_figure("calibration", "Calibration", curves))
    text = "Accuracies are means over seeds; figures and mistakes are of the run with the lowest seed."
    most = f"The test images that were given a wrong class with the highest probability, at most {_MISTAKES}."
    filled = tuple(table for table in mistakes if table.rows)
    first = Section("classes", "Classes", (text,), _class_table(setting, test), tuple(drawn))
    return [first, *([Section("mistakes", "Most confident mistakes", (most,), filled)] if filled else [])]


def _class_table(setting: Setting, test: ImageSet | None) -> tuple[Table, ...]:
    """Tabulate the accuracy of every class with its number of images; of many classes those with the lowest."""
    methods, columns = _main_methods(setting), []
    for method in methods:
        known = [row for run in setting.runs[method].values() if (row := run.metrics.get("per_class"))]
        columns.append([sum(c) / len(c) if None not in c else 0.0 for c in zip(*known, strict=True)])
    classes = _first_run(setting, methods[0]).preprocessing["classes"]
    if {len(setting.counts), *map(len, columns)} != {len(classes)}:
        return ()
    tested = [EMPTY.text] * len(classes) if test is None else [f"{n:,}" for n in test.class_counts]
    rows = []
    for k in sorted(range(len(classes)), key=lambda k: columns[-1][k])[:_MOST_CLASSES]:
        cells = printable(str(classes[k])), f"{setting.counts[k]:,}", tested[k], *(f"{100 * c[k]:.1f}" for c in columns)
        rows.append(Row(tuple(map(Cell, cells))))
    headings = ("class", "training images", "test images", *(f"{setting.name(method)}, %" for method in methods))
    caption = f"The {_MOST_CLASSES} classes with the lowest accuracy." if len(classes) > _MOST_CLASSES else ""
    return (Table("class-accuracy", "Classes", headings, tuple(rows), caption),)


def _calibration(confidence: Tensor, is_right: Tensor) -> list[tuple[float, float, int]]:
    """Mean confidence, accuracy and number of images of every bin of confidence that has images."""
    bins = torch.bucketize(confidence, torch.arange(1, _BINS) / _BINS)
    parts = [bins == k for k in range(_BINS)]
    return [(float(confidence[p].mean()), float(is_right[p].float().mean()), int(p.sum())) for p in parts if p.any()]


def _file(test: ImageSet, position: int) -> str:
    """Where a picture is: its last folders and its name; else its number."""
    return printable("/".join(str(test.files[position]).split("/")[-3:])) if test.files else f"test image {position}"


def _thumbnail(test: ImageSet, position: int) -> str:
    """A picture as a small PNG inside the page."""
    image = test.subset(torch.tensor([position])).batch(torch.tensor([0]))[0][0]
    picture = Image.fromarray(image.permute(1, 2, 0).squeeze(-1).contiguous().numpy())
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
