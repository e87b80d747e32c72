"""`maxsep train`: one run, from a dataset to a folder with its weights and its record."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from maxsep import heads
from maxsep.cli import app
from maxsep.lab.data import Dataset, fingerprints_differ, list_once, with_order
from maxsep.lab.engine import loss_names, train
from maxsep.lab.engine.losses import loss_defaults
from maxsep.lab.engine.train import check_names, dry_run
from maxsep.lab.environment import default_precision
from maxsep.lab.grid import num_train
from maxsep.lab.recipes.compare import usual_batch
from maxsep.lab.reference import ADVICE, Reference, load_reference, why_untrained
from maxsep.lab.run import Run
from maxsep.lab.search import RADII, Choice, choose_radius
from maxsep.lab.spec import RATES, Execution, RunSpec, options

_DEFAULT = RunSpec()
OWN_EPOCHS = 40
"""Epochs on a folder: some hundred images need more than the default of the spec."""
DatasetName = Annotated[
    str, typer.Option(help="digits, cifar10, cifar100, svhn, imagenet, imagenet_lt, or folder:PATH?size=64.")
]
Network = Annotated[
    str | None,
    typer.Option(
        help="mlp, convnet, resnet32, resnet34, resnet50, resnet152, wrn40_2, vgg32, vit, torchvision/NAME or "
        "timm/NAME; by default mlp, for a folder resnet32, for ImageNet resnet50."
    ),
]
Augmentation = Annotated[
    str | None, typer.Option(help="crop_flip, crop_flip_auto_cutout, ...; by default none, for a folder crop_flip.")
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="By default 512; for a folder and digits 16 to 128.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other field of the spec, such as weight_decay=1e-3, mixup=1, calibration=0.1 (images held out for "
        "the threshold of predict), or an option, such as loss.tau=2, head.rotation=1, schedule.warmup=5; repeatable.",
    ),
]


def train_command(
    context: typer.Context,
    dataset: DatasetName = _DEFAULT.dataset,
    imbalance: app.Imbalance = 1.0,
    network: Network = None,
    head: Annotated[str, typer.Option(help=f"{', '.join(heads.names())}.")] = _DEFAULT.head,
    radius: Annotated[str, typer.Option(help="Factor on the logits, 1 or 0.1 in the paper; or auto.")] = "1",
    loss: Annotated[str, typer.Option(help=f"{', '.join(loss_names())}.")] = _DEFAULT.loss,
    augmentation: Augmentation = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="By default 20; for a folder 40.")] = None,
    batch_size: BatchSize = None,
    optimiser: app.Optimiser = None,
    learning_rate: app.LearningRate = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, data order and augmentation.")] = 0,
    settings: Settings = None,
    data: app.Data = None,
    download: app.Download = False,
    runs: app.Runs = Path("runs"),
    device: app.Device = "auto",
    devices: Annotated[int, typer.Option(min=1, help="Number of processes; more than one trains with DDP.")] = 1,
    as_json: app.Json = False,
) -> None:
    """Train one run. A finished run is not trained again; an interrupted one resumes."""
    fields = {name: value for name, value in context.params.items() if name in OPTIONS}
    execution = Execution(device=device, devices=devices)
    with list_once():
        fields["radius"] = None if radius == "auto" else app.split("--radius", [radius], "0.1", float)[0]
        spec = build_spec(fields | {"precision": default_precision(device)}, settings or (), data)
        [spec] = with_order([spec], data, download=download)
        how: dict[str, Any] = {"data_root": data, "runs": runs, "execution": execution, "download": download}
        spec, choice = choose(spec, radius == "auto", learning_rate, **how)
        run = Run(runs / spec.name)
        was_finished = run.state == "finished"
        if was_finished:
            if fingerprints_differ(run.metrics.get("files"), Dataset.parse(spec.dataset).fingerprint(data)):
                raise ValueError(f"the images have changed since {run.folder} was trained: remove it, or use --runs.")
        else:
            dry_run(spec, execution, data, download=download)  # bad settings raise here, before anything is written
            runs.mkdir(parents=True, exist_ok=True)
        images = count_images(spec, data)
        if not as_json:
            count = "" if images is None else f" ({images:,} training images)"
            batches = f"{spec.optimiser} at {spec.learning_rate:g}, batch size {spec.batch_size}, epochs {spec.epochs}"
            typer.echo(f"{spec.dataset}{count}: {spec.network}, augmentation {spec.augmentation}, {batches}")
        if images is not None and batch_size is not None and batch_size >= images:
            warnings.warn(f"--batch-size {batch_size} holds all {images:,} images: one step per epoch.", stacklevel=2)
        try:
            train(spec, progress=not as_json, **how)
        except BlockingIOError:  # another process trains this run
            raise
        except Exception as error:
            if run.folder.is_dir():
                run.record_failure(spec, error)
            raise
        reference = load_reference(spec, runs, data) if Dataset.parse(spec.dataset).is_own else None
    _show(Run(run.folder), reference, choice, was_finished, as_json)


def choose(spec: RunSpec, any_radius: bool, learning_rate: float | None, **how: Any) -> tuple[RunSpec, Choice | None]:
    """Choose the learning rate of a run on a folder, unless it is given, and the radius if asked to."""
    is_open = learning_rate is None and Dataset.parse(spec.dataset).is_own and not spec.validation
    if not (is_open or any_radius):
        return spec, None
    dry_run(spec, how["execution"], how["data_root"], download=how["download"])
    radius, found = choose_radius(
        spec, RADII if any_radius else (spec.radius,), rates=() if is_open else (spec.learning_rate,), **how
    )
    if radius is None:
        if found.summary.elsewhere:
            raise BlockingIOError("another process searches learning rates for these runs.")
        raise SystemExit(found.summary.interrupted)
    best = next(choice for choice in found.choices if choice.spec.radius == radius)
    return best.spec.replace(seed=spec.seed), best


def build_spec(fields: Mapping[str, Any], settings: Sequence[str] = (), data: Path | None = None) -> RunSpec:
    """Build a spec from option values (None: not given) and settings NAME=VALUE.

    A folder, the digits and ImageNet get the network, augmentation and batch size of `maxsep compare`.
    """
    dataset = Dataset.find(fields.get("dataset", _DEFAULT.dataset), data)
    is_small = dataset.is_own or dataset.source == "digits"
    fields = {name: value for name, value in fields.items() if value is not None}
    defaults: dict[str, Any] = {"optimiser": "adamw", "epochs": OWN_EPOCHS} if dataset.is_own else {}
    rate = RATES.get((defaults | fields).get("optimiser", "sgd"), RATES["sgd"])
    defaults["learning_rate"] = rate
    if is_small or dataset.is_imagenet:
        defaults |= {"network": dataset.default_network, "augmentation": dataset.default_augmentation}
    spec = RunSpec(**defaults | fields | {"dataset": dataset.name})
    check_names(spec)
    spec = spec.replace(**parse_settings(settings, spec))
    check_spec(spec, settings)
    if "batch_size" not in fields and is_small:
        return spec.replace(batch_size=usual_batch(count_images(spec, data) or 1))
    return spec


OPTIONS = (
    *("dataset", "imbalance", "network", "head", "radius", "loss", "augmentation", "epochs", "batch_size"),
    *("optimiser", "learning_rate", "seed"),
)
"""Fields of a spec that have an option."""
GROUPS = ("loss", "head", "network", "schedule")
_OTHERS = (*OPTIONS, *(f"{group}_options" for group in GROUPS), "start_from", "backbone", "data_order")
FIELDS = [name for name in RunSpec.__dataclass_fields__ if name not in _OTHERS]
"""Fields of a spec that `--set` takes."""


def parse_settings(settings: Sequence[str], spec: RunSpec) -> dict[str, Any]:
    """Parse NAME=VALUE: fields of the spec, and options of its loss, head, network and schedule.

    >>> parse_settings(["mixup=1", "nesterov=true", "head.rotation=1"], RunSpec(head="etf"))
    {'mixup': 1.0, 'nesterov': True, 'head_options': (('rotation', 1),)}
    """
    fields: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        group, dot, option = name.partition(".")
        if not (equals and text):
            raise ValueError(f"--set takes NAME=VALUE, such as loss.tau=2, got {setting!r}.")
        value = _parse(name, text, *_kinds(name, spec))
        if dot:
            fields[f"{group}_options"] = options(**dict(fields.get(f"{group}_options", ())) | {option: value})
        else:
            fields[name] = value
    return fields


def _kinds(name: str, spec: RunSpec) -> tuple[Any, ...]:
    """Return the types that a setting may have; none if any type will do."""
    group, dot, option = name.partition(".")
    if dot and group in ("loss", "head"):
        known = loss_defaults(spec.loss) if group == "loss" else heads.option_defaults(spec.head)
        if option not in known:
            raise ValueError(f"--set {name}: {getattr(spec, group)!r} takes {', '.join(known) or 'no options'}.")
        return () if known[option] is None else (type(known[option]),)
    if dot and group in GROUPS:  # models of other packages take words too
        return () if group == "network" and "/" in spec.network else (bool, int, float, tuple)
    if name not in FIELDS:
        raise ValueError(f"--set {name}: not one of {', '.join(FIELDS)}, {'.X, '.join(GROUPS)}.X.")
    hint = get_type_hints(RunSpec)[name]
    kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    return tuple(get_origin(kind) or kind for kind in kinds)


def _parse(name: str, text: str, *kinds: Any) -> Any:
    """Read a Python literal or a word, of one of some types if they are known."""
    words = {"true": True, "false": False, "none": None}
    try:
        value = words[text.lower()] if text.lower() in words else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if type(value) is int and int not in kinds:
        value = float(value) if float in kinds else (value,) if tuple in kinds else value
    if kinds and type(value) not in kinds:
        raise ValueError(f"--set {name} must be {' or '.join(kind.__name__ for kind in kinds)}, got {text!r}.")
    return value


def check_spec(spec: RunSpec, settings: Sequence[str] = ()) -> None:
    """Refuse settings that would have no effect: re-weighting after the last epoch, momentum of AdamW."""
    start = dict(spec.loss_options).get("reweight_from", 0)
    if start >= spec.epochs:
        raise ValueError(f"loss.reweight_from must be below the {spec.epochs} epochs, got {start}.")
    if spec.optimiser == "adamw" and (spec.nesterov or any(text.startswith("momentum") for text in settings)):
        raise ValueError("adamw takes no momentum and no nesterov.")


def count_images(spec: RunSpec, data: Path | None = None) -> int | None:
    """Count a run's training images without reading one; None for a folder that cannot be listed."""
    counts = Dataset.parse(spec.dataset).train_counts(data)
    return None if counts is None else num_train(spec, counts)


def _show(run: Run, reference: Reference | None, choice: Choice | None, was_finished: bool, as_json: bool) -> None:
    metrics, unknown = run.metrics, run.unknown
    doubts = [] if reference is None else why_untrained([run], reference)
    if as_json:
        answer = {"run": str(run.folder), "metrics": metrics, "unknown": unknown, "warnings": doubts}
        answer["reference"] = None if reference is None else asdict(reference)
        typer.echo(json.dumps(answer | {"search": None if choice is None else choice.to_dict()}))
        return
    if was_finished:
        typer.echo("this run was finished before; nothing was trained")
    test = f"{metrics['num_test']:,} {'held-out' if run.spec.validation else 'test'} images"
    typer.echo(f"top-1 {metrics['top1']:.2%}, mean over classes {metrics['balanced']:.2%} on {test}")
    if unknown is not None:
        threshold = unknown["thresholds"][unknown["score"]]
        typer.echo(f"unknown: {unknown['score']} below {threshold:.4f}, set on {unknown['images']} held-out images")
    if doubts:
        typer.echo(" ".join(["maxsep: warning: This run did not train.", *doubts, ADVICE]), err=True)
    typer.echo(str(run.folder))
