"""`maxsep evaluate RUN`: a trained model's numbers, computed again from its weights, and what it makes of outliers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maxsep.cli.options import Data, Device, Download, Json

if TYPE_CHECKING:
    from maxsep.lab.spec import RunSpec

EPILOG = (
    "Examples: maxsep evaluate runs/digits-mlp-maxsep-s0-3f2a90c1bd; "
    "maxsep evaluate RUN --ood my/pictures --ood svhn --data data."
)
_SCORES = {
    "max_softmax": "max softmax",
    "max_logit": "max logit",
    "energy": "energy",
    "max_logit_centred": "max logit, centred",
    "energy_centred": "energy, centred",
    "mahalanobis": "Mahalanobis",
}
_NAMED = 3
"""Files that are named of those that cannot be read; --json names all."""


def command(
    run: Annotated[Path, typer.Argument(help="A run folder, or a folder that maxsep export wrote.")],
    data: Data = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(help="Outliers: a folder of images, or svhn, places, cifar10, ...; may be given several times."),
    ] = None,
    mahalanobis: Annotated[
        bool, typer.Option(help="Score with Mahalanobis too, which reads all training images once.")
    ] = True,
    download: Download = False,
    dataset: Annotated[
        str | None, typer.Option(help="For an export: where the folder of images that it was trained on is now.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the histograms of --ood; by default the run's, for an export the working one."),
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Evaluate weights: accuracy, loss, calibration error, accuracy of every class, known images rejected; outliers."""
    from maxsep.lab.detection import read_outliers
    from maxsep.lab.serving import is_export

    ask = _Export if is_export(run) else _Run
    model = ask(run, data, dataset, device)
    outliers = _named(ood or [], model.spec.dataset, data)
    if download:
        _fetch([model.spec.dataset, *outliers], data)
    for name in outliers:  # an empty folder is an error before anything is computed
        read_outliers(name, data, model.spec.dataset, model.shape)
    metrics, counts = model.evaluate()
    if not as_json:  # before what may take long
        typer.echo(model.spec.name)
        _show(metrics, model.classes, counts)
    found = model.detect(outliers, mahalanobis, _teller(as_json)) if outliers else None
    files = [] if found is None else _draw(found, out or model.place, model.spec)
    if as_json:
        more = {} if found is None else {"detection": found, "histograms": [str(path) for path in files]}
        typer.echo(json.dumps(metrics | more))
    elif found is not None:
        _show_detection(found, files)
    _tell_left_out({} if found is None else found["sets"])


class _Run:
    """A run folder: its weights, or at least its record, and all of its data."""

    def __init__(self, folder: Path, data: Path | None, dataset: str | None, device: str) -> None:
        from maxsep.lab.run import Run

        self.result = Run(folder)
        if dataset is not None:
            raise ValueError(f"--dataset is for exports, got {dataset!r}: {folder} is a run. Leave it out.")
        self.folder = self.place = folder
        self.changed = False
        self.spec, self.data, self.device = self.result.spec, data, device
        self.classes, self.shape = self.result.preprocessing["classes"], self.result.preprocessing["shape"]

    def evaluate(self) -> tuple[dict[str, Any], list[int]]:
        """Its numbers, and how many training images every class has."""
        from maxsep.lab.data import Dataset, fingerprints_differ
        from maxsep.lab.engine import evaluate
        from maxsep.lab.engine.calibration import with_rejected
        from maxsep.lab.engine.evaluation import known_ece
        from maxsep.lab.environment import pick_device

        stored = self.result.metrics
        if self.result.has_weights:
            metrics = evaluate(self.folder, self.data, device=str(pick_device(self.device)))
            self.changed = fingerprints_differ(
                stored.get("files"), Dataset.parse(self.spec.dataset).fingerprint(self.data)
            )
            if self.changed:
                _tell_of_test(self.folder, self.spec, self.spec.dataset, self.data)
            return metrics, stored["class_counts"]
        typer.echo(
            f"{self.folder} was kept without its weights, so nothing is computed again: these are the numbers stored "
            "when it was trained.",
            err=True,
        )
        told = {"ece": known_ece(self.spec, stored), "unknown": with_rejected(self.result.unknown, None)}
        return stored | told, stored["class_counts"]

    def detect(self, outliers: tuple[str, ...], mahalanobis: bool, tell: Callable[[str], None]) -> dict[str, Any]:
        """Score outliers. Every image counts, and inputs are left as they are."""
        from maxsep.lab.detection import Wish, detect

        if mahalanobis and self.changed:
            told = f"the images of {self.spec.dataset} have changed since {self.folder} was trained"
            typer.echo(f"maxsep: {told}: Mahalanobis is fitted on the training images as they are now.", err=True)
        wish = Wish(outliers=outliers, mahalanobis=mahalanobis, magnitudes=(0.0,), repeats=0)
        return detect(self.folder, wish, data_root=self.data, device=self.device, tell=tell)


class _Export:
    """An exported folder: logits of any image, and the name of the data that its run was trained and tested on."""

    place = Path()  # histograms are no part of what is given away

    def __init__(self, folder: Path, data: Path | None, dataset: str | None, device: str) -> None:
        from maxsep.lab.serving import open_classifier

        self.classifier = open_classifier(folder, device)
        self.spec, self.root, self.dataset = self.classifier.spec, data, dataset
        self.classes, self.shape = list(self.classifier.labels), list(self.classifier.shape)

    def evaluate(self) -> tuple[dict[str, Any], list[int]]:
        """Its numbers, and how many training images every class has."""
        from maxsep.lab.data import fingerprints_differ
        from maxsep.lab.serving import evaluate_export, export_data

        self.data = export_data(self.classifier, self.root, self.dataset)
        source, counts = self.classifier.source, list(self.classifier.class_counts)
        metrics = evaluate_export(self.classifier, self.data)
        if fingerprints_differ(self.classifier.files, self.data.fingerprint):
            _tell_of_test(source, self.spec, self.data.name, self.root)
        elif not counts and self.data.fingerprint is not None:
            told = f"{source} does not say how many training images every class had"
            touched = "the loss, if it goes by them, and the groups of classes take those of"
            typer.echo(f"maxsep: {told}: {touched} {self.data.name} as it is now. Export anew.", err=True)
        return metrics, counts or self.data.train.class_counts

    def detect(self, outliers: tuple[str, ...], mahalanobis: bool, tell: Callable[[str], None]) -> dict[str, Any]:
        """Score outliers by their logits."""
        from maxsep.lab.detection import Wish, detect_export

        if mahalanobis:
            tell("Mahalanobis is left out: it needs features, and an export gives logits")
        wish = Wish(outliers=outliers, mahalanobis=False, repeats=0)
        return detect_export(self.classifier, self.data, wish, data_root=self.root, tell=tell)


def _tell_of_test(source: Path, spec: RunSpec, dataset: str, data: Path | None) -> None:
    """Warn that the model may be tested on images it was trained on; a test split of the folder's own is safe.

    Args:
        source: The run, or the export.
        spec: What was trained.
        dataset: The folder as a dataset, which has changed.
        data: The data folder.
    """
    from maxsep.lab.data import Dataset

    if spec.validation or Dataset.parse(dataset).draws_test(data):
        told = f"the images of {dataset} have changed since {source} was trained"
        touched = "which are set aside anew: some may be among those it was trained on, and flatter every number"
        typer.echo(f"maxsep: {told}, and with them the test images, {touched}.", err=True)


def _teller(quiet: bool) -> Callable[[str], None]:
    return lambda stage: None if quiet else typer.echo(f"maxsep: {stage}", err=True)


def _show(metrics: dict[str, Any], names: list[str], counts: list[int]) -> None:
    from maxsep.lab.report.tail import by_group, is_unequal, sizes

    five = f"top-5 {metrics['top5']:.2%}   " if len(names) > 5 else ""
    typer.echo(f"  top-1 {metrics['top1']:.2%}   {five}mean over classes {metrics['balanced']:.2%}")
    if groups := by_group({**metrics, "class_counts": counts}) if is_unequal(counts) else {}:
        shares = "   ".join(f"{group} {accuracy:.2%}" for group, accuracy in groups.items())
        typer.echo(f"  {shares}   ({sizes(counts)})")
    ece = "unknown: this record has that of unscaled logits" if metrics["ece"] is None else f"{metrics['ece']:.2%}"
    typer.echo(f"  loss {metrics['loss']:.4f}   calibration error {ece}")
    if metrics["unknown"] is not None:
        typer.echo(f"  {_unknown(metrics['unknown'])}")
    for name, count, accuracy in zip(names, counts, metrics["per_class"], strict=True):
        told = "no test images" if accuracy is None else f"{accuracy:7.2%}"
        typer.echo(f"  {name!s:>16}  {told}  ({count} training images)")


def _unknown(told: dict[str, Any]) -> str:
    """Say below which score an image is unknown, and how many of the test images, which are known, are called so."""
    score, rejected = told["score"], told["rejected"]
    limit = f"{told['thresholds'][score]:.4f}, which {told['tpr']:.0%} of {told['images']:,} held-out images reach"
    share = "what it rejects is not stored" if rejected is None else f"it rejects {rejected[score]:.2%}"
    return f"unknown: {score} below {limit}; of the test images, which are known, {share}"


def _fetch(names: list[str], data: Path | None) -> None:
    """Download the datasets among these names that are not there yet."""
    from maxsep.lab.data import Dataset

    for name in names:
        try:
            dataset = Dataset.parse(name)
        except ValueError:  # a set of outliers that is no dataset
            continue
        if not dataset.is_own:
            dataset.read(data, download=True)


def _named(ood: list[str], dataset: str, data: Path | None) -> tuple[str, ...]:
    """Name the outliers that are asked for; what is no name of a set is a folder."""
    from maxsep.lab.data import check_outliers, name_outliers

    names = tuple(name_outliers(given, data) for given in ood)
    for name in names:
        check_outliers(name, dataset)
    return names


def _draw(found: dict[str, Any], folder: Path, spec: RunSpec) -> list[Path]:
    """Write a histogram of the negative energy for each set of outliers."""
    from maxsep.lab.data.datasets import FOLDER
    from maxsep.lab.report.comparison import Method
    from maxsep.lab.report.outliers_figures import energy_figure

    files: list[Path] = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, told in found["sets"].items():
        last = name.removeprefix(FOLDER).rstrip("/").split("/")[-1]
        label = "".join(c if c.isalnum() or c in "+-_" else "-" for c in last)
        if folder / f"energy-{label}.svg" in files:  # folders of one name
            label = f"{label}-{len(files) + 1}"
        shapes = {Method.of(spec).full_label: told["histograms"]["energy"]}
        figure = energy_figure("energy", f"Outliers: {told['origin']}", shapes)
        files.append(folder / f"energy-{label}.svg")
        files[-1].write_text(figure.file, encoding="utf-8")
    return files


def _show_detection(found: dict[str, Any], files: list[Path]) -> None:
    for (name, told), path in zip(found["sets"].items(), files, strict=True):
        typer.echo(f"outliers: {told['origin']} ({name}, {told['count']} images)")
        typer.echo(f"  {'':>18}  {'AUROC':>8}  {'AUPR':>8}  {'FPR95':>8}")
        for score, label in _SCORES.items():
            if score not in told["scores"]:
                continue
            full = told["scores"][score]["full"]
            typer.echo(f"  {label:>18}  {full['auroc']:>8.2%}  {full['aupr']:>8.2%}  {full['fpr95']:>8.2%}")
        shape = told["histograms"]["energy"]
        stds = "" if shape["gap_in_stds"] is None else f" ({shape['gap_in_stds']:.2f} standard deviations)"
        typer.echo(f"  mean gap of the negative energy {shape['gap']:.2f}{stds}; histogram: {path}")
    typer.echo(
        "  In-distribution images are positive; FPR95 at the recall closest to 95 %. All outliers count: AUPR falls as "
        "there are more of them, so it is not that of tables made from draws of 2,000."
    )


def _tell_left_out(sets: dict[str, Any]) -> None:
    """Count the files that could not be read, and name the first of them."""
    for name, told in sets.items():
        if missing := told["unreadable"]:
            which = f"the first {_NAMED} are named" if len(missing) > _NAMED else "here they are"
            typer.echo(f"maxsep: left out of {name}: {len(missing)} that cannot be read; {which}:", err=True)
        for item in missing[:_NAMED]:
            typer.echo(f"maxsep: {item['reason']}", err=True)
