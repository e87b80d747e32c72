"""`maxsep train`: one run, from a dataset to a folder with its weights and its record."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maxsep import heads
from maxsep.cli.jobs import was_typed
from maxsep.cli.options import Data, Device, Download, Fast, Json, Runs, execution
from maxsep.cli.options import precision as default_precision
from maxsep.cli.run_spec import beside, check_unchanged, count_images, first_stage, second_stage
from maxsep.lab.spec import BACKBONES, RATES, SAMPLERS, RunSpec

if TYPE_CHECKING:
    from maxsep.lab.run import Run

EPILOG = (
    "Examples: maxsep train --dataset digits --imbalance 0.02 --head maxsep --radius 1; "
    "maxsep train --dataset folder:photos --head cosine --loss ldam --loss-option reweight_from=16; "
    "maxsep train --from runs/NAME --epochs 10 --sampler class_balanced --backbone frozen_shifted_norm."
)
_DEFAULT = RunSpec()

Dataset = Annotated[
    str, typer.Option(help="digits, cifar10, cifar100, svhn, imagenet, imagenet_lt, or folder:PATH?size=64.")
]
Network = Annotated[
    str | None,
    typer.Option(
        help="mlp, convnet, resnet34, resnet32, resnet50, resnet152, wrn40_2, vgg32, torchvision/NAME, timm/NAME; by "
        f"default {_DEFAULT.network}, for a folder resnet32 and for ImageNet resnet50, as in maxsep compare."
    ),
]
Loss = Annotated[
    str,
    typer.Option(
        help="cross_entropy, balanced_softmax, logit_adjusted, ldam (for heads with cosine logits), "
        "label_aware_smoothing or squared_cosine (for the head hpn)."
    ),
]
LossOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="An option of the loss, such as reweight_from=16 of ldam, tau=1.5 of logit_adjusted, label_smoothing=0.1 "
        "of cross_entropy; with commas or repeated. An unknown name is answered with all that the loss has.",
    ),
]
HeadOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="An option of the head, such as rotation=0 of etf; with commas or repeated. An unknown name is answered "
        "with all that the head has.",
    ),
]
Augmentation = Annotated[
    str | None,
    typer.Option(
        help="none, crop_flip, crop_flip_rotate, crop_flip_auto_cutout, ...; by default "
        f"{_DEFAULT.augmentation}, for a folder crop_flip, as in maxsep compare."
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1, help=f"By default {_DEFAULT.batch_size}; 16 to 128 for a folder and the digits, by their number."
    ),
]
Rate = Annotated[float | None, typer.Option(help=f"By default {RATES['sgd']:g} for sgd, {RATES['adamw']:g} for adamw.")]
Precision = Annotated[
    str | None, typer.Option(help="32-true, bf16-mixed, 16-mixed (GPU), ...; by default bf16-mixed on a GPU.")
]
Calibration = Annotated[
    float, typer.Option(help="Part of the training data that sets the threshold of maxsep predict.")
]
Start = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="RUN",
        help="Folder of a finished run whose weights this one starts from: a second stage. What is not given is as it "
        "was there.",
    ),
]
Backbone = Annotated[
    str, typer.Option(help=f"{', '.join(BACKBONES)} (its batch normalisation follows the batches): of a second stage.")
]
Scaling = Annotated[bool, typer.Option(help="Train a factor for every logit, started at 1.")]
HeadRate = Annotated[float, typer.Option(help="The head's learning rate over that of everything else.")]


def command(
    context: typer.Context,
    dataset: Dataset = _DEFAULT.dataset,
    imbalance: Annotated[float, typer.Option(help="Smallest over largest class; 1 leaves the data as it is.")] = 1.0,
    network: Network = None,
    head: Annotated[str, typer.Option(help=f"{', '.join(heads.names())}.")] = _DEFAULT.head,
    radius: Annotated[float, typer.Option(help="Scale of the logits; 1 or 0.1 in the paper.")] = 1.0,
    head_option: HeadOption = None,
    loss: Loss = _DEFAULT.loss,
    loss_option: LossOption = None,
    augmentation: Augmentation = None,
    epochs: Annotated[int, typer.Option(min=1)] = _DEFAULT.epochs,
    batch_size: BatchSize = None,
    optimiser: Annotated[str, typer.Option(help="sgd or adamw.")] = _DEFAULT.optimiser,
    learning_rate: Rate = None,
    momentum: Annotated[float | None, typer.Option(help=f"Of sgd; by default {_DEFAULT.momentum:g}.")] = None,
    nesterov: Annotated[bool | None, typer.Option("--nesterov/--no-nesterov", help="Of sgd.")] = None,
    weight_decay: Annotated[float, typer.Option()] = _DEFAULT.weight_decay,
    schedule: Annotated[str, typer.Option(help="cosine, step or constant.")] = _DEFAULT.schedule,
    mixup: Annotated[float, typer.Option(help="Strength of mixup, 0 for none; 1 is usual.")] = _DEFAULT.mixup,
    sampler: Annotated[str, typer.Option(help=f"{' or '.join(SAMPLERS)}: every class equally often.")] = SAMPLERS[0],
    precision: Precision = None,
    validation: Annotated[float, typer.Option(help="Part of the training data to hold out and evaluate on.")] = 0.0,
    calibration: Calibration = 0.0,
    seed: Annotated[int, typer.Option()] = 0,
    start: Start = None,
    backbone: Backbone = _DEFAULT.backbone,
    logit_scaling: Scaling = False,
    head_rate: HeadRate = _DEFAULT.head_rate,
    data: Data = None,
    download: Download = False,
    runs: Runs = Path("runs"),
    device: Device = "auto",
    fast: Fast = None,
    as_json: Json = False,
) -> None:
    """Train one network with one head; a finished run is not trained again, a broken one goes on."""
    from maxsep.lab.data import list_once, with_order

    # options have the names of the spec's fields
    given = {name: value for name, value in context.params.items() if name in RunSpec.__dataclass_fields__}
    typed = {name for name in context.params if was_typed(context, name)}
    if loss_option:
        given["loss_options"], typed = loss_option, typed | {"loss_options"}
    if head_option:
        given["head_options"], typed = head_option, typed | {"head_options"}
    with list_once():
        if start is None:
            spec = first_stage(given | {"precision": precision or default_precision(device)}, data)
            [spec] = with_order([spec], data, download=download)
        else:
            spec = second_stage({name: given[name] for name in typed & given.keys()}, start, data)
            runs = beside(start, spec, runs if "runs" in typed else None)
        there = _check_there(runs / spec.name, data)
        _announce(spec, typed, data, as_json)
        more = {"download": True} if download else {}
        _train(spec, runs, there, as_json, data_root=data, execution=execution(device, fast, [spec.network]), **more)


def _announce(spec: RunSpec, typed: set[str], data: Path | None, as_json: bool) -> None:
    """Say what begins, where options alone do not say it, and warn of a batch that leaves an epoch a single step."""
    images = count_images(spec, data)
    if not as_json and (told := _opening(spec, typed, images)):
        typer.echo(told)
    if images is not None and "batch_size" in typed and spec.batch_size >= images:
        told = f"the batch holds all {images:,} training images: one step an epoch. A smaller --batch-size learns more."
        warnings.warn(told, stacklevel=2)


def _opening(spec: RunSpec, typed: set[str], images: int | None) -> str:
    """Name what was chosen for a folder, and what a second stage takes over; or nothing.

    Args:
        spec: The run.
        typed: The options that were.
        images: How many training images there are, if that is known.
    """
    from maxsep.lab import data as lab_data

    counted = "" if images is None else f"{images:,} training images, "
    first = spec.start_from
    if first is None:
        has_pictures = lab_data.Dataset.parse(spec.dataset).has_pictures
        chosen = _chosen(spec, typed) if images is not None and has_pictures else ""
        return f"{spec.dataset}: {counted}{chosen}" if chosen else ""
    sized = "" if "batch_size" in typed else " (--batch-size names another size)"
    epochs = f"{spec.epochs} epoch{'' if spec.epochs == 1 else 's'} of {spec.optimiser} at {spec.learning_rate:g}"
    return (
        f"stage {spec.stage}, from the weights of {first.name}: {epochs}, {counted}batches of {spec.batch_size}{sized}"
        "; what is not given is as it was there"
    )


def _chosen(spec: RunSpec, typed: set[str]) -> str:
    """Name what a folder was given because nobody did, and the options that change it; or nothing.

    >>> _chosen(RunSpec(batch_size=16, network="resnet32"), {"augmentation"})
    'batches of 16, network resnet32 (--batch-size, --network choose others)'
    """
    told = {
        "batch_size": f"batches of {spec.batch_size}",
        "network": f"network {spec.network}",
        "augmentation": f"augmentation {spec.augmentation}",
    }
    left = [name for name in told if name not in typed]
    options = ", ".join(f"--{name.replace('_', '-')}" for name in left)
    choose = "chooses another" if len(left) == 1 else "choose others"
    return f"{', '.join(told[name] for name in left)} ({options} {choose})" if left else ""


def _check_there(folder: Path, data: Path | None) -> bool:
    """Whether a run is finished; raise if it is, and is one of other pictures than those that lie there now."""
    from maxsep.lab.run import Run

    if there := Run(folder).state == "finished":
        check_unchanged(Run(folder), data, f"Train anew with another --runs, or remove {folder}.")
    return there


def _train(spec: RunSpec, runs: Path, there: bool, as_json: bool, **settings: Any) -> None:
    """Train a run unless it is there, and tell what came of it."""
    from maxsep.lab.engine import train
    from maxsep.lab.run import Run

    folder = train(spec, runs=runs, progress=not as_json, **settings)
    _tell(Run(folder), there, as_json)


def _tell(run: Run, there: bool, as_json: bool) -> None:
    """Print how good the run is, on what, and where it lies."""
    metrics, unknown = run.metrics, run.unknown
    if as_json:
        typer.echo(json.dumps({"run": str(run.folder), "metrics": metrics, "unknown": unknown}))
        return
    if there:
        typer.echo("this run was finished before; nothing was trained")
    loss = run.spec.title.removeprefix(run.spec.name).strip(" ()")  # what is not cross-entropy is named
    where = "held-out data" if run.spec.validation else "the test set"
    _, height, width = run.preprocessing["shape"]
    size = f"{metrics['num_train']:,} training and {metrics['num_test']:,} test images of {width} x {height}"
    told = f"{loss + '; ' if loss else ''}mean over classes {metrics['balanced']:.2%}; {size}"
    typer.echo(f"{metrics['top1']:.2%} on {where} ({told}): {run.folder}")  # a path ends the line, to be copied
    if unknown is not None:
        score = unknown["score"]
        limit = f"{unknown['thresholds'][score]:.4f}, set on {unknown['images']} held-out images"
        typer.echo(f"unknown: {score} below {limit}")
