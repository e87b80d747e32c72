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
from maxsep.cli.reproduce import show_search
from maxsep.lab.data import Dataset, fingerprints_differ, list_once, with_order
from maxsep.lab.engine import loss_names, train
from maxsep.lab.engine.losses import loss_defaults
from maxsep.lab.engine.processes import is_helper
from maxsep.lab.engine.train import check_names, dry_run
from maxsep.lab.environment import default_precision
from maxsep.lab.grid import num_train
from maxsep.lab.recipes.compare import usual_batch
from maxsep.lab.recipes.fine_tuning import RATES as FINE_TUNING_RATES
from maxsep.lab.recipes.fine_tuning import fine_tuning
from maxsep.lab.reference import ADVICE, Reference, load_reference, shortfall, why_untrained
from maxsep.lab.report.statistics import plural
from maxsep.lab.run import Run
from maxsep.lab.search import RADII, Choice, choose_epoch, choose_radius
from maxsep.lab.spec import RATES, Execution, RunSpec, options

_DEFAULT = RunSpec()
EXECUTION = ("device", "devices", "sharded", "accumulate", "weights", "tensorboard")
OWN_DATA: dict[str, Any] = {"optimiser": "adamw", "epochs": 40, "evaluate_every": 0}
"""Defaults on own data: some hundred images need many epochs, and the test images are evaluated once, at the end."""
FEW_HELD = 20
"""Of fewer held-out images, 95 % is no whole number."""
DatasetName = Annotated[
    str,
    typer.Option(
        help="digits, cifar10, cifar100, svhn, imagenet, imagenet_lt, or your own: folder:PATH?size=64, "
        "table:PATH (CSV or Parquet with the columns path and label), hf:PATH_OR_NAME (a Hugging Face dataset)."
    ),
]
Network = Annotated[
    str | None,
    typer.Option(
        help="mlp, convnet, resnet32, resnet34, resnet50, resnet152, wrn40_2, vgg32, vit, torchvision/NAME or "
        "timm/NAME (?pretrained=1); by default mlp, for a folder resnet32, for ImageNet resnet50."
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
    weights: app.Weights = None,
    image_size: app.ImageSize = None,
    head: Annotated[str, typer.Option(help=f"{', '.join(heads.names())}.")] = _DEFAULT.head,
    radius: Annotated[str, typer.Option(help="Factor on the logits, 1 or 0.1 in the paper; or auto.")] = "1",
    loss: Annotated[str, typer.Option(help=f"{', '.join(loss_names())}.")] = _DEFAULT.loss,
    augmentation: Augmentation = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="By default 20; a folder 40; pretrained 10.")] = None,
    batch_size: BatchSize = None,
    optimiser: app.Optimiser = None,
    learning_rate: app.LearningRate = None,
    early_stopping: Annotated[
        bool, typer.Option("--early-stopping", help="Stop at the epoch that is best on held-out training images.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of weights, data order and augmentation.")] = 0,
    settings: Settings = None,
    skip_broken: app.SkipBroken = False,
    data: app.Data = None,
    download: app.Download = False,
    runs: app.Runs = Path("runs"),
    device: app.Device = "auto",
    devices: Annotated[int, typer.Option(min=1, help="Processes of this machine; more than one trains with DDP.")] = 1,
    sharded: Annotated[bool, typer.Option("--sharded", help="Shard the weights (FSDP2), under torchrun.")] = False,
    accumulate: Annotated[int, typer.Option(min=1, help="Parts of a batch, one after the other, to save memory.")] = 1,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write RUN/tensorboard for TensorBoard.")] = False,
    as_json: app.Json = False,
) -> None:
    """Train one run. A finished run is not trained again; an interrupted one resumes."""
    fields = {name: value for name, value in context.params.items() if name in OPTIONS}
    execution = Execution(**{name: context.params[name] for name in EXECUTION})
    with list_once():
        data_source = Dataset.find(dataset, data, skip_broken=skip_broken, download=download)
        fields["dataset"] = data_source.name
        fields["radius"] = None if radius == "auto" else app.split("--radius", [radius], "0.1", float)[0]
        spec = build_spec(fields | {"precision": default_precision(device)}, settings or (), data)
        [spec] = with_order([spec], data, download=download)
        how: dict[str, Any] = {"data_root": data, "runs": runs, "execution": execution, "download": download}
        searching = how | {"on_event": None if as_json else show_search}
        spec, choice = choose(spec, radius == "auto", learning_rate, early_stopping, **searching)
        run = Run(runs / spec.name)
        was_finished = run.state == "finished"
        if was_finished:
            _verify(run, data)
        else:
            dry_run(spec, execution, data, download=download)  # bad settings raise here, before anything is written
            runs.mkdir(parents=True, exist_ok=True)
        images = count_images(spec, data)
        if not as_json and not is_helper():
            typer.echo(_describe(spec, images, data_source.listing(data).skipped if data_source.skip_broken else 0))
        _warn_of_one_step(batch_size, images)
        _train(spec, run, progress=not as_json, **how)
        if is_helper():
            return
        reference = load_reference(spec, runs, data, execution=execution) if data_source.is_own else None
    _show(Run(run.folder), reference, choice, was_finished, as_json)


def _verify(run: Run, data: Path | None) -> None:
    """Raise if a finished run is damaged, or if its images have changed since."""
    run.verify()
    if fingerprints_differ(run.metrics.get("files"), Dataset.parse(run.spec.dataset).fingerprint(data)):
        raise ValueError(f"the images have changed since {run.folder} was trained: remove it, or use --runs.")


def _warn_of_one_step(batch_size: int | None, images: int | None) -> None:
    if images is not None and batch_size is not None and batch_size >= images:
        warnings.warn(f"--batch-size {batch_size} holds all {images:,} images: one step per epoch.", stacklevel=1)


def _train(spec: RunSpec, run: Run, **how: Any) -> None:
    """Train a run, and leave the reason in its folder if that fails."""
    try:
        train(spec, **how)
    except BlockingIOError:  # another process trains this run
        raise
    except Exception as error:
        if run.folder.is_dir():
            run.record_failure(spec, error)
        raise


def choose(
    spec: RunSpec, any_radius: bool, learning_rate: float | None, early_stopping: bool = False, **how: Any
) -> tuple[RunSpec, Choice | None]:
    """Choose the learning rate of a run on a folder, unless it is given or usual; radius and last epoch if asked to."""
    is_open = learning_rate is None and Dataset.parse(spec.dataset).is_own and not (spec.validation or spec.weights)
    choice: Choice | None = None
    if is_open or any_radius or early_stopping:
        dry_run(spec, how["execution"], how["data_root"], download=how["download"])
    if is_open or any_radius:
        spec, choice = _choose_rate(spec, any_radius, is_open, **how)
    if not early_stopping:
        return spec, choice
    stopped, summary = choose_epoch(spec, **how)
    if stopped is None:
        if summary.elsewhere:
            raise BlockingIOError("another process chooses the last epoch of this run.")
        raise ArithmeticError(summary.failed[0][1]) if summary.failed else SystemExit(summary.interrupted)
    return stopped, choice


def _choose_rate(spec: RunSpec, any_radius: bool, is_open: bool, **how: Any) -> tuple[RunSpec, Choice]:
    radius, result = choose_radius(
        spec, RADII if any_radius else (spec.radius,), rates=() if is_open else (spec.learning_rate,), **how
    )
    if radius is None:
        if result.summary.elsewhere:
            raise BlockingIOError("another process searches learning rates for these runs.")
        raise SystemExit(result.summary.interrupted)
    best = next(choice for choice in result.choices if choice.spec.radius == radius)
    return best.spec.replace(seed=spec.seed), best


def build_spec(fields: Mapping[str, Any], settings: Sequence[str] = (), data: Path | None = None) -> RunSpec:
    """Build a spec from option values (None: not given) and settings NAME=VALUE.

    A folder, the digits and ImageNet get the network, augmentation and batch size of `maxsep compare`, pretrained
    weights (`weights` is a file here) the settings of `fine_tuning`.
    """
    dataset = Dataset.find(fields.get("dataset", _DEFAULT.dataset), data)
    is_small = dataset.is_own or dataset.source == "digits"
    fields = {name: value for name, value in fields.items() if value is not None}
    defaults = dict(OWN_DATA) if dataset.is_own else {}
    usual = _DEFAULT.network
    if is_small or dataset.is_imagenet:
        usual, defaults["augmentation"] = dataset.default_network, dataset.default_augmentation
    start = (fields.pop("network", usual), fields.pop("weights", None), fields.pop("image_size", None))
    defaults |= fine_tuning(dataset, *start)
    rates = FINE_TUNING_RATES if defaults.get("weights") else RATES
    defaults["learning_rate"] = rates.get((defaults | fields).get("optimiser", "sgd"), RATES["sgd"])
    spec = RunSpec(**defaults | fields | {"dataset": defaults["dataset"]})
    check_names(spec)
    spec = spec.replace(**parse_settings(settings, spec))
    check_spec(spec, settings)
    if "batch_size" not in fields and (is_small or spec.weights):
        return spec.replace(batch_size=usual_batch(count_images(spec, data)))
    return spec


OPTIONS = (
    *("dataset", "imbalance", "network", "weights", "image_size", "head", "radius", "loss", "augmentation"),
    *("epochs", "batch_size", "optimiser", "learning_rate", "seed"),
)
"""Fields of a spec that have an option."""
GROUPS = ("loss", "head", "network", "weights", "schedule")
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
        if group == "weights":  # the key map
            return (str,)
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


def _describe(spec: RunSpec, images: int | None, skipped: int) -> str:
    """Say in one line what is trained, on how many images, for how many epochs."""
    more = f", {plural(skipped, 'file')} or {'folder' if skipped == 1 else 'folders'} skipped" if skipped else ""
    count = "" if images is None else f" ({images:,} training images{more})"
    epochs = f"epochs {spec.epochs}" if spec.stop_after is None else f"{spec.stop_after} of {spec.epochs} epochs"
    batches = f"{spec.optimiser} at {spec.learning_rate:g}, batch size {spec.batch_size}, {epochs}"
    return f"{spec.dataset}{count}: {describe_network(spec)}, augmentation {spec.augmentation}, {batches}"


def describe_network(spec: RunSpec) -> str:
    """Name the network, whether it is pretrained, and the size of its images where it scales them."""
    start = " with pretrained weights" if spec.weights else ""
    return f"{spec.network}{start}{f' at {spec.image_size} pixels' if spec.image_size else ''}"


def count_images(spec: RunSpec, data: Path | None = None) -> int | None:
    """Count a run's training images without reading one; None for a folder that cannot be listed."""
    counts = Dataset.parse(spec.dataset).train_counts(data)
    return None if counts is None else num_train(spec, counts)


def _show(run: Run, reference: Reference | None, choice: Choice | None, was_finished: bool, as_json: bool) -> None:
    metrics, unknown = run.metrics, run.unknown
    doubts = why_untrained([run], reference)
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
        held = plural(unknown["images"], "held-out image")
        typer.echo(f"unknown: {unknown['score']} below {threshold:.4f}, set on {held}")
        if unknown["images"] < FEW_HELD:
            typer.echo(f"maxsep: warning: {held} are too few for 95 %: the threshold is coarse.", err=True)
    if doubts:
        typer.echo(" ".join([f"maxsep: warning: This run {shortfall([run])}.", *doubts, ADVICE]), err=True)
    typer.echo(str(run.folder))
