"""`maxsep evaluate RUN`: a trained run's numbers, computed again from its weights, and what it makes of outliers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from maxsep.cli.options import Data, Device, Download, Json

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
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Data = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(help="Outliers: a folder of images, or svhn, places, cifar10, ...; may be given several times."),
    ] = None,
    mahalanobis: Annotated[
        bool, typer.Option(help="Score with Mahalanobis too, which reads all training images once.")
    ] = True,
    download: Download = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the histograms of --ood; by default the run's.")] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Evaluate a run's weights: accuracy, top-5, loss, calibration error, accuracy of every class; and outliers."""
    from maxsep.lab.detection import pick_device, read_outliers
    from maxsep.lab.engine import evaluate, load_run
    from maxsep.lab.engine.evaluation import known_ece
    from maxsep.lab.report.comparison import Method

    result = load_run(run)
    outliers = _named(ood or [], result.spec.dataset, data)
    if download:
        _fetch([result.spec.dataset, *outliers], data)
    for name in outliers:  # an empty folder is an error before anything is computed
        read_outliers(name, data, result.spec.dataset, result.preprocessing["shape"])
    if (run / "weights.safetensors").is_file():
        metrics = evaluate(run, data, device=str(pick_device(device)))
    else:
        metrics = result.metrics | {"ece": known_ece(result.spec, result.metrics)}
        typer.echo(
            f"{run} was kept without its weights, so nothing is computed again: these are the numbers stored when "
            "it was trained.",
            err=True,
        )
    if not as_json:  # before what may take long
        typer.echo(result.spec.name)
        _show(metrics, result.preprocessing["classes"], result.metrics["class_counts"])
    found = _detect(run, outliers, mahalanobis, data, device, as_json) if outliers else None
    files = [] if found is None else _draw(found, out or run, Method.of(result.spec).full_label)
    if as_json:
        more = {} if found is None else {"detection": found, "histograms": [str(path) for path in files]}
        typer.echo(json.dumps(metrics | more))
    elif found is not None:
        _show_detection(found, files)
    _tell_left_out({} if found is None else found["sets"])


def _show(metrics: dict[str, Any], names: list[str], counts: list[int]) -> None:
    typer.echo(
        f"  top-1 {metrics['top1']:.2%}   top-5 {metrics['top5']:.2%}   mean over classes {metrics['balanced']:.2%}"
    )
    ece = "unknown: this record has that of unscaled logits" if metrics["ece"] is None else f"{metrics['ece']:.2%}"
    typer.echo(f"  loss {metrics['loss']:.4f}   calibration error {ece}")
    for name, count, accuracy in zip(names, counts, metrics["per_class"], strict=True):
        told = "no test images" if accuracy is None else f"{accuracy:7.2%}"
        typer.echo(f"  {name!s:>16}  {told}  ({count} training images)")


def _fetch(names: list[str], data: Path | None) -> None:
    """Download the datasets among these names that are not there yet."""
    from maxsep.lab.data import NAMES, load, parse_open_set

    for name in names:
        if name in NAMES or parse_open_set(name):
            load(name, data, download=True)


def _named(ood: list[str], dataset: str, data: Path | None) -> tuple[str, ...]:
    """Name the outliers that are asked for; what is no name of a set is a folder."""
    from maxsep.lab.data import check_outliers, name_outliers

    names = tuple(name_outliers(given, data) for given in ood)
    for name in names:
        check_outliers(name, dataset)
    return names


def _detect(
    run: Path, outliers: tuple[str, ...], mahalanobis: bool, data: Path | None, device: str, quiet: bool
) -> dict[str, Any]:
    """Score outliers. Every image counts, and inputs are left as they are."""
    from maxsep.lab.detection import Wish, detect

    def tell(stage: str) -> None:
        if not quiet:
            typer.echo(f"maxsep: {stage}", err=True)

    wish = Wish(outliers=outliers, mahalanobis=mahalanobis, magnitudes=(0.0,), repeats=0)
    return detect(run, wish, data_root=data, device=device, tell=tell)


def _draw(found: dict[str, Any], folder: Path, head: str) -> list[Path]:
    """Write a histogram of the negative energy for each set of outliers."""
    from maxsep.lab.data import FOLDER
    from maxsep.lab.report.outliers_figures import energy_figure

    files: list[Path] = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, told in found["sets"].items():
        last = name.removeprefix(FOLDER).rstrip("/").split("/")[-1]
        label = "".join(c if c.isalnum() or c in "+-_" else "-" for c in last)
        if folder / f"energy-{label}.svg" in files:  # folders of one name
            label = f"{label}-{len(files) + 1}"
        figure = energy_figure("energy", f"Outliers: {told['origin']}", {head: told["histograms"]["energy"]})
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
