"""The result of `compare` on one's own data: one object for terminal, JSON and page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from maxsep.lab.data import Dataset, fingerprints_differ, prepare
from maxsep.lab.engine.evaluate import load_pipeline, predict
from maxsep.lab.reference import ADVICE, FAILED, Reference, decisive_metric, why_untrained
from maxsep.lab.report import figures, names, sections
from maxsep.lab.report.controls import MATRIX_HEADS, Method
from maxsep.lab.report.render import Report, results, write
from maxsep.lab.report.rows import Setting, tidy
from maxsep.lab.report.runs import Collection, collect
from maxsep.lab.report.sections import SHOTS, Section
from maxsep.lab.report.statistics import Difference
from maxsep.lab.report.summary import THEOREM
from maxsep.lab.report.tables import (
    ACCURACY,
    BALANCED,
    DIFFERENCES,
    ECE,
    MACRO_F1,
    Block,
    Cell,
    Row,
    Table,
    comparison_table,
)
from maxsep.lab.run import Run
from maxsep.lab.search import Choice
from maxsep.lab.spec import RunSpec

TITLE = "Does the matrix help on these data?"
_GUESSING, _BEHIND, _FEW_TEST = 0.05, 0.75, 100
_MOST_CLASSES, _MISTAKES = 30, 12


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

    @property
    def metric(self) -> str:
        """What methods are compared by: the accuracy, or its mean over classes where these are unequal."""
        return decisive_metric(self.setting.counts)

    @property
    def failure(self) -> list[str]:
        """Why the baseline cannot be called trained, and what to change; empty if it can or has no finished run."""
        baseline = self.setting.methods[0].baseline
        if baseline not in self.setting.runs:
            return []
        reasons = why_untrained(list(self.setting.runs[baseline].values()), self.reference)
        return [*reasons, ADVICE] if reasons else []

    @property
    def missing(self) -> list[RunSpec]:
        """The runs that are not finished."""
        done = {run.spec.name for run in self.collection.runs}
        return [spec for spec in self.specs if spec.name not in done]

    @property
    def comparisons(self) -> list[Comparison]:
        """Every comparison, in the order of the methods; none if the baseline did not train."""
        setting, found = self.setting, list[Comparison]()
        if self.failure:
            return found
        for method in setting.methods:
            baseline, control = setting.baseline(method), setting.control(method)
            effect = "loss" if method.brings_loss else "both" if method.head in MATRIX_HEADS else "radius"
            pairs = {control: "matrix"} | ({} if baseline == control else {baseline: effect})
            for other, kind in pairs.items():
                if other is not None and (difference := setting.difference(method, other, self.metric)):
                    found.append(Comparison(kind, setting.name(method), setting.name(other), difference))
        return found

    @property
    def headline(self) -> str:
        """Answer in one sentence whether the matrix helps."""
        if self.failure:
            return FAILED
        found = [c for c in self.comparisons if c.effect == "matrix" and c.difference.word]
        if not found:
            return "Too few seeds: no comparison of the matrix with its control has an interval yet."
        if apart := [c for c in found if c.difference.excludes_zero]:
            points = [
                f"{c.method} is {c.difference.word} than {c.other} ({c.difference.format()} points)" for c in apart
            ]
            return "; ".join(points) + "."
        none = all(c.difference.word.startswith("no difference") for c in found)
        end = "none is larger than 1 point" if none else "some intervals are wider than 1 point: use more seeds"
        return f"No difference between the matrix and its control is visible; {end}."

    @property
    def warnings(self) -> list[str]:
        """What makes a comparison doubtful: methods near chance or far behind, few test images."""
        setting, told = self.setting, []
        chance = 1 / max(len(setting.counts), 1)
        for method in setting.methods:
            name, ours, mean = setting.name(method), setting.summary(method), setting.summary(method, "balanced")
            baseline = setting.summary(method.baseline) if method.baseline in setting.runs else None
            if mean and mean.mean < chance + _GUESSING * (1 - chance):
                told.append(f"{name} is near chance: {100 * mean.mean:.1f} %.")
            elif ours and baseline and ours.mean < _BEHIND * baseline.mean:
                told.append(f"{name} is under-trained: {100 * ours.mean:.1f} %, linear {100 * baseline.mean:.1f} %.")
        told += ["Train longer or lower the learning rate before you compare."] if told else []
        few = f"There are {self.num_test} test images: one of them is {100 / self.num_test:.1f} points."
        return [*told, few] if self.num_test < _FEW_TEST else told

    @property
    def num_test(self) -> int:
        """The number of test images."""
        return int(self.collection.runs[0].metrics["num_test"])

    @property
    def header(self) -> list[str]:
        """What was compared."""
        spec, counts = self.specs[0], self.setting.counts
        test = f"{self.num_test:,} test images ({Dataset.parse(spec.dataset).test_description})"
        tail = "" if spec.imbalance == 1 else f", imbalance {spec.imbalance:g}"
        rate = f"at {spec.learning_rate:g}" if not self.choices else "with a learning rate for each method"
        rate = f"{spec.optimiser} {rate}, batches of {spec.batch_size}"
        least = None if self.reference is None else getattr(self.reference, self.metric)
        reference = [] if least is None else [f"For reference, {self.reference}: {least:.1%}."]
        return [
            f"{names.dataset_label(spec.dataset)}: {sum(counts):,} training images of {len(counts)} classes, {test}.",
            f"{names.network_label(spec.network)}, {spec.epochs} epochs of {rate}, {spec.augmentation}{tail}.",
            "Accuracy after the last epoch; nothing was chosen on the test images.",
            *reference,
            *(f"{self.setting.name(Method.of(choice.spec))}: {choice}." for choice in self.choices),
        ]

    @property
    def table(self) -> Table:
        """Every method with its differences, unless the baseline did not train."""
        unequal = self.metric == "balanced"
        measures = (BALANCED, ACCURACY, MACRO_F1, ECE) if unequal else (ACCURACY, ECE)
        block = Block("", self.setting, measures, unequal)
        table = comparison_table("comparison", "Methods", [block], SHOTS if unequal else "")
        return table.without(DIFFERENCES) if self.failure else table

    def show(self, console: Any) -> None:
        """Print header, table, one line for each comparison, warnings and missing runs with a rich console."""
        lines = [
            *(comparison.text for comparison in self.comparisons),
            "",
            self.headline,
            *self.failure,
            *self.warnings,
        ]
        if missing := [spec.title for spec in self.missing]:
            shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            lines.append(f"{len(missing)} of {len(self.specs)} runs are missing; the same command resumes: {shown}")
        plain = {"markup": False, "highlight": False, "soft_wrap": True}
        console.print("\n".join(["", *self.header]), **plain)
        console.print(self.table.without(DIFFERENCES).to_rich())  # these are lines below
        console.print("\n".join(lines), **plain)

    def _means(self, method: Method) -> dict[str, float]:
        found = {name: self.setting.summary(method, name) for name in ("top1", "balanced", "macro_f1", "ece", "loss")}
        return {name: summary.mean for name, summary in found.items() if summary is not None}

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
                | {key: found[key] for key in found if key not in drop}
                for method, found in methods
            ],
            "comparisons": [
                {"effect": c.effect, "method": c.method, "other": c.other, **c.difference.to_dict()}
                for c in self.comparisons
            ],
            "warnings": self.warnings,
            "missing": [spec.name for spec in self.missing],
        }


def verdict(
    specs: Sequence[RunSpec], runs: Sequence[Run], reference: Reference | None = None, choices: Sequence[Choice] = ()
) -> Verdict:
    """Compare the finished runs of one setting, at least one, whose specs differ in method, seed and learning rate.

    Raises:
        ValueError: The runs have seen different images.
    """
    check_data(runs)
    asked = {spec.name for spec in specs}
    collection = collect(*(run.folder for run in runs if run.spec.name in asked))
    return Verdict(tuple(specs), collection, Setting(specs[0], tidy(collection)), reference, tuple(choices))


def check_data(
    runs: Sequence[Run], class_counts: Sequence[int] = (), num_test: int | None = None, files: str | None = None
) -> None:
    """Raise if runs have not seen the same images: a folder may change between calls.

    The other arguments are what a run would see now, if known; `files` is the fingerprint of the pictures.
    """
    seen = {(tuple(run.metrics["class_counts"]), run.metrics["num_test"]) for run in runs}
    for counts, tests in sorted(seen)[:1]:
        seen.add((tuple(class_counts) or counts, tests if num_test is None else num_test))
    if len(seen) > 1 or fingerprints_differ(files, *(run.metrics.get("files") for run in runs)):
        told = "; ".join(f"{sum(counts):,} training and {tests:,} test images" for counts, tests in sorted(seen))
        raise ValueError(
            f"the images of {runs[0].spec.dataset} have changed since some of these runs were trained ({told}). "
            "Name another folder with --runs to compare anew."
        )


def write_page(
    found: Verdict, out: str | Path, *, commands: Sequence[str] = (), data_root: str | Path | None = None
) -> Path:
    """Write the page of a comparison: verdict, table, confusion matrix, most confident mistakes, classes, curves.

    The test images are read again from `data_root`.
    """
    setting = found.setting
    doubts = (*found.failure, *found.warnings)
    table = Section("comparison", "Methods", tuple(found.header), (found.table,), after=doubts)
    parts = [table, _search(found), _mistakes(setting, data_root), _classes(setting)]
    parts += [None if found.failure else sections.class_gains([setting]), sections.curves([setting])]
    shown = tuple(part for part in parts if part is not None)
    theorem = [THEOREM] if not found.failure and all(spec.optimiser == "sgd" for spec in found.specs) else []
    sentences = (*(comparison.text for comparison in found.comparisons), *theorem)
    rows, data = tuple(setting.rows), found.to_dict()
    return write(Report(TITLE, found.headline, sentences, shown, rows, found.collection, tuple(commands), data), out)


def _search(found: Verdict) -> Section | None:
    """Tabulate what the search tried for every method: the metric on held-out data of each learning rate."""
    rows = []
    for choice in found.choices:
        tried = [f"{t.learning_rate:g} ({t.epochs} epochs): {100 * t.score:.1f}" for t in choice.trials]
        cells = found.setting.name(Method.of(choice.spec)), f"{choice.spec.learning_rate:g}", "; ".join(tried)
        rows.append(Row(tuple(map(Cell, cells))))
    if not any(choice.trials for choice in found.choices):
        return None
    table = Table("search", "Learning rates", ("method", "chosen", "tried, % on held-out images"), tuple(rows))
    text = "Every method has the learning rate that was best on a fifth of the training images, held out of training."
    return Section("search", "Learning rates", (text,), (table,))


def _main_methods(setting: Setting) -> list[Method]:
    """The linear head and the matrix at its main radius, or what there is."""
    wanted = (Method("plain"), sections.main_method(setting))
    return [method for method in setting.methods if method in wanted] or setting.methods[:1]


def _classes(setting: Setting) -> Section | None:
    """Tabulate the accuracy of every class; of many classes those with the lowest."""
    methods, columns = _main_methods(setting), []
    for method in methods:
        known = [row for run in setting.runs[method].values() if (row := run.metrics.get("per_class"))]
        columns.append([sum(c) / len(c) if None not in c else 0.0 for c in zip(*known, strict=True)])
    classes = next(iter(setting.runs[methods[0]].values())).preprocessing["classes"]
    if {len(setting.counts), *map(len, columns)} != {len(classes)}:
        return None
    rows = [
        Row((Cell(str(classes[k])), Cell(f"{setting.counts[k]:,}"), *(Cell(f"{100 * c[k]:.1f}") for c in columns)))
        for k in sorted(range(len(classes)), key=lambda k: columns[-1][k])[:_MOST_CLASSES]
    ]
    headings = ("class", "training images", *(f"{setting.name(method)}, %" for method in methods))
    text = f"Test accuracy of each class, mean over seeds, lowest first (at most {_MOST_CLASSES})."
    return Section("class-accuracy", "Classes", (text,), (Table("class-accuracy", "Classes", headings, tuple(rows)),))


def _mistakes(setting: Setting, data_root: str | Path | None) -> Section:
    """Draw a confusion matrix for the linear head and for the matrix, and show the most confident mistakes."""
    drawn, tables = [], []
    for number, method in enumerate(_main_methods(setting)):
        run = setting.runs[method][min(setting.runs[method])]
        try:
            data = prepare(run.spec, data_root).test
            outputs = predict(load_pipeline(run.folder), data)
        except (OSError, ValueError) as error:
            return Section("mistakes", "Mistakes", (f"The test images could not be evaluated again: {error}",))
        classes, name = [str(item) for item in data.classes], f"{setting.name(method)}, seed {run.spec.seed}"
        confidence, predicted = (outputs.logits * run.spec.softmax_scale).softmax(1).max(1)
        pairs = torch.bincount(data.labels * len(classes) + predicted, minlength=len(classes) ** 2)
        matrix = pairs.view(len(classes), -1).tolist()
        drawn.append(figures.confusion_figure(f"confusion-{number}", name, matrix, classes))
        wrong = torch.where(predicted != data.labels, confidence, -1.0).argsort(descending=True)
        rows = tuple(
            Row((Cell(classes[data.labels[k]], image=_thumbnail(data.images[k])), Cell(classes[predicted[k]]),
                 Cell(f"{100 * confidence[k]:.1f}"), Cell(f"{k}")))
            for k in wrong[:_MISTAKES].tolist() if predicted[k] != data.labels[k]
        )  # fmt: skip
        columns = ("true class", "predicted class", "probability, %", "number of the test image")
        tables.append(Table(f"mistakes-{number}", f"Most confident mistakes: {name}", columns, rows))
    text = ("Test images of one run of each method, that with the lowest seed.",)
    return Section("mistakes", "Mistakes", text, tuple(table for table in tables if table.rows), tuple(drawn))


def _thumbnail(image: Tensor) -> str:
    """A uint8 image (channels, height, width) as a PNG inside the page."""
    buffer = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).squeeze(-1).contiguous().numpy()).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
