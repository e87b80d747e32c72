"""Whether everything that a spec names exists: asked before data are read and a folder is made."""

from __future__ import annotations

import warnings
from collections.abc import Collection

from maxsep import heads
from maxsep.lab import data, networks
from maxsep.lab.data import NORMALISATIONS, Dataset
from maxsep.lab.engine import optimisers, schedules
from maxsep.lab.engine.losses import loss_names
from maxsep.lab.spec import RunSpec

_FOR_PRIORS = ("balanced_softmax", "logit_adjusted")
"""Losses that add log-priors to the logits, which are right where batches have the classes in that frequency."""


def check_names(spec: RunSpec) -> None:
    """Raise if a spec names an unknown dataset, network, head, loss, optimiser, schedule and so on.

    A loss and a sampler that both correct for the frequency of classes are warned of.
    Whether a folder of images is there, or a library has a network of that name, shows when it is read or built.

    >>> check_names(RunSpec(optimiser="adam"))
    Traceback (most recent call last):
        ...
    ValueError: unknown optimiser 'adam'. Known: adamw, sgd.
    """
    dataset = Dataset.parse(spec.dataset)
    data.augmentation(spec.augmentation)
    _check("normalisation", spec.normalisation, NORMALISATIONS)
    networks.check_name(spec.network, **dict(spec.network_options))
    _check("head", spec.head, heads.names())
    _check("loss", spec.loss, loss_names())
    _check("optimiser", spec.optimiser, optimisers.NAMES)
    if spec.features_at and dataset.open_set is None:
        raise ValueError(
            f"features_at keeps features of known and unknown images, and {spec.dataset!r} has no unknown ones. "
            "Train on an open-set split such as osr_cifar10_0, or leave features_at out."
        )
    if spec.loss == "ldam" and "cosine" not in spec.head:
        raise ValueError(
            f"the loss ldam takes a margin off cosines, and the head {spec.head!r} gives logits of any size. Take the "
            f"head {' or '.join(name for name in heads.names() if 'cosine' in name)}, or another loss."
        )
    if spec.loss in _FOR_PRIORS and spec.sampler == "class_balanced":
        warnings.warn(
            f"the loss {spec.loss} corrects the logits for the frequency of classes, and the sampler class_balanced "
            "removes that frequency from the batches: together they correct twice, in favour of rare classes. Take one "
            "of the two, such as the loss cross_entropy or the sampler instance.",
            stacklevel=2,
        )
    schedules.learning_rate(spec, 0)  # its options are checked with its name


def _check(kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}. Known: {', '.join(known)}.")
