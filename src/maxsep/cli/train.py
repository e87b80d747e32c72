"""`maxsep train`: one run, from a dataset to a folder with its weights and its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maxsep.cli.options import Data, Device, Download, Fast, Json, Runs, execution
from maxsep.cli.options import precision as default_precision
from maxsep.lab.spec import RATES, RunSpec

if TYPE_CHECKING:
    from maxsep.lab.engine import RunResult

EPILOG = "Example: maxsep train --dataset digits --imbalance 0.02 --head maxsep --radius 1"
_DEFAULT = RunSpec()


def command(
    dataset: Annotated[
        str, typer.Option(help="digits, cifar10, cifar100, svhn, or folder:PATH?size=64 with a folder a class.")
    ] = _DEFAULT.dataset,
    imbalance: Annotated[float, typer.Option(help="Smallest over largest class; 1 leaves the data as it is.")] = 1.0,
    network: Annotated[
        str, typer.Option(help="mlp, convnet, resnet34, resnet32, wrn40_2, vgg32, torchvision/NAME, timm/NAME.")
    ] = "mlp",
    head: Annotated[str, typer.Option(help="maxsep, plain, scaled, centred, twin, etf, ...")] = _DEFAULT.head,
    radius: Annotated[float, typer.Option(help="Scale of the logits; 1 or 0.1 in the paper.")] = 1.0,
    loss: Annotated[
        str,
        typer.Option(
            help="cross_entropy, balanced_softmax, logit_adjusted, ldam (for heads with cosine logits), "
            "label_aware_smoothing or squared_cosine (for the head hpn)."
        ),
    ] = _DEFAULT.loss,
    augmentation: Annotated[
        str, typer.Option(help="none, crop_flip, crop_flip_rotate, crop_flip_auto_cutout, ...")
    ] = _DEFAULT.augmentation,
    epochs: Annotated[int, typer.Option(min=1)] = _DEFAULT.epochs,
    batch_size: Annotated[int, typer.Option(min=1)] = _DEFAULT.batch_size,
    optimiser: Annotated[str, typer.Option(help="sgd or adamw.")] = _DEFAULT.optimiser,
    learning_rate: Annotated[
        float | None, typer.Option(help=f"By default {RATES['sgd']:g} for sgd, {RATES['adamw']:g} for adamw.")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help=f"Of sgd; by default {_DEFAULT.momentum:g}.")] = None,
    nesterov: Annotated[bool | None, typer.Option("--nesterov/--no-nesterov", help="Of sgd.")] = None,
    weight_decay: Annotated[float, typer.Option()] = _DEFAULT.weight_decay,
    schedule: Annotated[str, typer.Option(help="cosine, step or constant.")] = _DEFAULT.schedule,
    mixup: Annotated[float, typer.Option(help="Strength of mixup, 0 for none; 1 is usual.")] = _DEFAULT.mixup,
    precision: Annotated[
        str | None,
        typer.Option(help="32-true, bf16-mixed, 16-mixed (GPU), ...; by default bf16-mixed on a GPU."),
    ] = None,
    validation: Annotated[float, typer.Option(help="Part of the training data to hold out and evaluate on.")] = 0.0,
    calibration: Annotated[
        float, typer.Option(help="Part of the training data that sets the threshold of maxsep predict.")
    ] = 0.0,
    seed: Annotated[int, typer.Option()] = 0,
    data: Data = None,
    download: Download = False,
    runs: Runs = Path("runs"),
    device: Device = "auto",
    fast: Fast = None,
    as_json: Json = False,
) -> None:
    """Train one network with one head; a finished run is not trained again, a broken one goes on."""
    spec = RunSpec(
        dataset=dataset, imbalance=imbalance, network=network, head=head, radius=radius, loss=loss,
        augmentation=augmentation, epochs=epochs, batch_size=batch_size, optimiser=optimiser,
        weight_decay=weight_decay, schedule=schedule, mixup=mixup, validation=validation, calibration=calibration,
        seed=seed, precision=precision or default_precision(device),
        **_of_optimiser(optimiser, learning_rate, momentum, nesterov),
    )  # fmt: skip
    more = {"download": True} if download else {}
    _train(spec, runs, as_json, data_root=data, execution=execution(device, fast, [network]), **more)


def _of_optimiser(name: str, rate: float | None, momentum: float | None, nesterov: bool | None) -> dict[str, Any]:
    """Fill in what was not given; momentum is none of AdamW's numbers, and to want no Nesterov is what it does."""
    if name == "adamw" and (momentum is not None or nesterov):
        raise ValueError("adamw has no --momentum and no --nesterov. Leave them out, or use --optimiser sgd.")
    usual = RATES.get(name, _DEFAULT.learning_rate)
    given = {"momentum": momentum, "nesterov": nesterov}
    return {"learning_rate": usual if rate is None else rate} | {k: v for k, v in given.items() if v is not None}


def _train(spec: RunSpec, runs: Path, as_json: bool, **settings: Any) -> None:
    """Train a run unless it is there, and tell what came of it."""
    from maxsep.lab import grid
    from maxsep.lab.engine import load_run, train

    there = grid.is_finished(runs / spec.name)
    folder = grid.attempt(train, spec, runs=runs, progress=not as_json, **settings)
    _tell(load_run(folder), there, as_json)


def _tell(run: RunResult, there: bool, as_json: bool) -> None:
    """Print how good the run is, on what, and where it lies."""
    metrics, unknown = run.metrics, run.unknown
    if as_json:
        typer.echo(json.dumps({"run": str(run.folder), "metrics": metrics, "unknown": unknown}))
        return
    if there:
        typer.echo("this run was finished before; nothing was trained")
    where = "held-out data" if run.spec.validation else "the test set"
    _, height, width = run.preprocessing["shape"]
    size = f"{metrics['num_train']:,} training and {metrics['num_test']:,} test images of {width} x {height}"
    typer.echo(f"{metrics['top1']:.2%} on {where} (mean over classes {metrics['balanced']:.2%}; {size}): {run.folder}")
    if unknown is not None:
        score = unknown["score"]
        limit = f"{unknown['thresholds'][score]:.4f}, set on {unknown['images']} held-out images"
        typer.echo(f"unknown: {score} below {limit}")
