"""From what was typed after `maxsep train` to the spec of one run, or of a second stage of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxsep.cli.options import words
from maxsep.lab.spec import RATES, SHARED_BY_STAGES, Options, RunSpec, options

if TYPE_CHECKING:
    from maxsep.lab.run import Run

Given = Mapping[str, Any]
"""Fields of a spec by name, with `loss_options` as NAME=VALUE; None stands for what was not given."""


def first_stage(given: Given, data: Path | None = None) -> RunSpec:
    """Build the spec of a run that starts from nothing.

    A folder for which no network, augmentation or batch size is given gets that of `compare`, and so do the digits.

    Args:
        given: All options.
        data: The data folder, where a relative path may lead.

    >>> first_stage({"dataset": "digits", "loss": "logit_adjusted", "loss_options": ["tau=2"]}).loss_options
    (('tau', 2.0),)
    """
    from maxsep.lab.data import Dataset
    from maxsep.lab.recipes.compare import usual_batch

    fields = dict(given) | _of_optimiser(given.get("optimiser") or "sgd", given)
    fields["loss_options"] = loss_options(fields["loss"], given.get("loss_options"))
    fields["head_options"] = head_options(fields.get("head") or RunSpec.head, given.get("head_options"))
    fields["dataset"] = dataset = _named(fields["dataset"], data)
    known = Dataset.parse(dataset)
    if has_usual_batch(dataset) or known.is_imagenet:
        usual = {"network": known.default_network, "augmentation": known.default_augmentation}
        fields |= {name: value for name, value in usual.items() if fields.get(name) is None}
    spec = checked(RunSpec(**{name: value for name, value in fields.items() if value is not None}))
    if given.get("batch_size") is None and has_usual_batch(dataset):
        return spec.replace(batch_size=usual_batch(count_images(spec, data) or 1))
    return spec


def has_usual_batch(dataset: str) -> bool:
    """Whether a dataset is none of the benchmarks, whose batches are the papers': it may be small.

    >>> has_usual_batch("digits"), has_usual_batch("cifar10")
    (True, False)
    """
    from maxsep.lab.data import Dataset

    return dataset == "digits" or Dataset.parse(dataset).is_own


def second_stage(given: Given, start: Path, data: Path | None = None) -> RunSpec:
    """Build the spec of a run that starts from the weights of another: what is not given is as it was there.

    Args:
        given: The options that were typed, and no default.
        start: The folder of the finished run.
        data: The data folder.
    """
    from maxsep.lab.run import Run

    run = Run(start)
    first = run.spec
    check_unchanged(run, data, "Train the first stage anew, with another --runs.")
    own = {name: value for name, value in given.items() if name not in SHARED_BY_STAGES}
    for name in given.keys() - own.keys():
        value = _named(given[name], data) if name == "dataset" else given[name]
        if value != getattr(first, name):
            raise ValueError(
                f"{start} was trained with {name} {getattr(first, name)!r}, got {value!r}. A run has the data, the "
                f"network, the head, the precision and the seed of the run it starts from: leave --{name} out."
            )
    name = own.get("optimiser", first.optimiser)
    same = name == first.optimiser
    changes = own | _of_optimiser(name, own, first.learning_rate if same else None)
    if not same:  # momentum is that of the optimiser before
        changes = {"momentum": RunSpec.momentum, "nesterov": RunSpec.nesterov} | changes
    if {"loss", "loss_options"} & own.keys():
        loss = own.get("loss", first.loss)
        kept = dict(first.loss_options) if loss == first.loss else {}
        changes["loss_options"] = options(**kept | dict(loss_options(loss, own.get("loss_options"))))
    if "schedule" in own:
        changes["schedule_options"] = ()
    return checked(first.replace(start_from=first, features_at=(), **changes))


def check_unchanged(run: Run, data: Path | None, advice: str) -> None:
    """Raise if the pictures that a run was trained and tested on have other names or sizes now.

    Args:
        run: A finished run; one of no folder, or of before such marks were kept, says nothing of its files.
        data: The data folder.
        advice: What to do, a sentence.
    """
    from maxsep.lab.data import Dataset, fingerprints_differ

    dataset = run.spec.dataset
    if fingerprints_differ(run.metrics.get("files"), Dataset.parse(dataset).fingerprint(data)):
        raise ValueError(
            f"the images of {dataset} have changed since {run.folder} was trained: files of other names or sizes. "
            f"{advice}"
        )


def beside(start: Path, spec: RunSpec, runs: Path | None) -> Path:
    """Give the folder of runs in which a second stage lies: that of the run it starts from.

    Args:
        start: The folder of that run.
        spec: Of the second stage.
        runs: What --runs names, if it was typed.
    """
    name = spec.start_from.name if spec.start_from else spec.name
    if start.resolve().name != name:
        raise ValueError(f"the run in {start} was called {name}, and a second stage looks for that name. Rename it.")
    place = start.parent if start.name == name else start.resolve().parent
    if runs is not None and runs.resolve() != place.resolve():
        raise ValueError(
            f"a second stage lies beside the run it starts from, in {place}, got --runs {runs}. Leave --runs out."
        )
    return place


def loss_options(loss: str, given: Sequence[str] | None) -> Options:
    """Read NAME=VALUE pairs: numbers where the default of the option is one, words elsewhere.

    >>> loss_options("ldam", ["reweight=effective", "reweight_from=24", "scale=20"])
    (('reweight', 'effective'), ('reweight_from', 24), ('scale', 20.0))
    """
    from maxsep.lab.engine.losses import check_loss_options, loss_defaults, loss_names

    if not given or loss not in loss_names():  # an unknown loss is told of with all other names
        return ()
    found = _pairs("--loss-option", given, "reweight=effective")
    check_loss_options(loss, found)
    defaults = loss_defaults(loss)
    return options(**{name: _value(name, text, defaults[name]) for name, text in found.items()})


def head_options(head: str, given: Sequence[str] | None) -> Options:
    """Read NAME=VALUE pairs of a head: true and false, numbers or words, as the default of the option is one.

    >>> head_options("etf", ["normalise=true, reserved=2", "rotation=0"])
    (('normalise', True), ('reserved', 2), ('rotation', 0))
    """
    from maxsep import heads

    if not given or head not in heads.names():  # an unknown head is told of with all other names
        return ()
    found, known = _pairs("--head-option", given, "rotation=0"), heads.option_defaults(head)
    if unknown := sorted(set(found) - set(known)):
        told = ", ".join(sorted(known)) or "none"
        raise ValueError(f"the head {head!r} has no option {', '.join(unknown)}. It has: {told}.")
    return options(**{name: _of_head(name, text, known[name]) for name, text in found.items()})


def _pairs(flag: str, given: Sequence[str], example: str) -> dict[str, str]:
    """Split NAME=VALUE pairs, each name once."""
    found: dict[str, str] = {}
    for text in words(flag, given, example):
        name, _, value = map(str.strip, text.partition("="))
        if not (name and value):
            raise ValueError(f"{flag} must be NAME=VALUE, such as {example}, got {text!r}.")
        if name in found:
            raise ValueError(f"{flag} {name} was given twice, as {found[name]} and {value}. Leave one out.")
        found[name] = value
    return found


def _of_head(name: str, text: str, default: object) -> object:
    """Read the value of a head's option, of the kind that its default is of; none is the default of a whole number.

    >>> _of_head("bias", "False", True), _of_head("rotation", "3", None)
    (False, 3)
    """
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(f"--head-option {name} must be true or false, got {text!r}, such as {name}=true.")
        return text.lower() == "true"
    value = _value(name, text, 0 if default is None else default, "--head-option")
    if isinstance(value, int) and not 0 <= value < _MOST:
        raise ValueError(f"--head-option {name} must be from 0 to {_MOST - 1}, got {text}, such as {name}=0.")
    return value


_MOST = 2**63
"""What seeds and sizes are below."""


def checked(spec: RunSpec) -> RunSpec:
    """Refuse a re-weighting that the run would end before; any other spec comes back as it is."""
    start = dict(spec.loss_options).get("reweight_from", 0)
    if start >= spec.epochs:
        raise ValueError(
            f"reweight_from={start} re-weighs none of {spec.epochs} epochs, which count from 0. Name an earlier one, "
            f"such as --loss-option reweight_from={spec.epochs * 4 // 5}, as 160 of 200, or train longer."
        )
    return spec


def count_images(spec: RunSpec, data: Path | None = None) -> int | None:
    """Count a run's training images without reading one, the files of a folder; None where that cannot be told.

    Images that --validation and --calibration hold out are none of them.

    >>> count_images(RunSpec())
    1198
    """
    from maxsep.lab.data import Dataset
    from maxsep.lab.estimate import num_train

    dataset = Dataset.parse(spec.dataset)
    if dataset.is_own:
        dataset = Dataset.find(spec.dataset, data)
    return None if dataset.open_set else num_train(spec, dataset.train_counts(data))


def _value(name: str, text: str, default: object, flag: str = "--loss-option") -> object:
    if not isinstance(default, int | float):
        return text
    try:
        return type(default)(text)
    except ValueError as error:
        kind = "whole number" if isinstance(default, int) else "number"
        raise ValueError(f"{flag} {name} must be a {kind}, got {text!r}, such as {name}={default}.") from error


def _of_optimiser(name: str, given: Given, usual: float | None = None) -> dict[str, Any]:
    """Fill in what was not given; momentum is none of AdamW's numbers, and to want no Nesterov is what it does."""
    rate, momentum, nesterov = (given.get(key) for key in ("learning_rate", "momentum", "nesterov"))
    if name == "adamw" and (momentum is not None or nesterov):
        raise ValueError("adamw has no --momentum and no --nesterov. Leave them out, or use --optimiser sgd.")
    usual = RATES.get(name, RATES["sgd"]) if usual is None else usual
    chosen = {"momentum": momentum, "nesterov": nesterov}
    return {"learning_rate": usual if rate is None else rate} | {k: v for k, v in chosen.items() if v is not None}


def _named(dataset: str, data: Path | None) -> str:
    """Name a folder as a dataset; what is called one already, or is known by name, stays as it is."""
    from maxsep.lab.data import Dataset

    try:
        return Dataset.parse(dataset).name
    except ValueError:
        return Dataset.find(dataset, data).name
