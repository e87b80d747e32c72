"""Name data, networks, heads and settings, in the same words on every page."""

from __future__ import annotations

from collections.abc import Sequence

from maxsep.lab.data import Dataset
from maxsep.lab.report.controls import HEADS, Method
from maxsep.lab.report.statistics import plural
from maxsep.lab.spec import RunSpec
from maxsep.packages import printable

NETWORKS = {
    **{"resnet34": "ResNet", "convnet": "ConvNet", "resnet32": "ResNet-32", "mlp": "MLP"},
    **{"wrn40_2": "WideResNet-40-2", "vgg32": "VGG32", "resnet50": "ResNet-50", "resnet152": "ResNet-152"},
}
_LOSSES = {"ldam": "LDAM", "cross_entropy": "cross-entropy", "logit_adjusted": "logit adjustment"}
_OPTIONS = {
    **{"max_margin": "margin {}", "reweight_from": "DRW from epoch {}", "rotation": "rotation {}"},
    **{"smooth_head": "{} for frequent", "smooth_tail": "{} for rare classes"},
}
_ORDERS = {"frequency": "rare last", "reversed_frequency": "rare first"}
SCORES = {
    "max_softmax": "maximum softmax probability (MSP)",
    "energy": "energy",
    "max_logit": "maximum logit (MLS)",
    "mahalanobis": "Mahalanobis distance",
    "odin": "ODIN",
}
_QUIET = (
    *("dataset", "network", "imbalance", "validation", "normalisation"),
    *("schedule", "schedule_options", "evaluate_every", "features_at", "subset_seed"),
)
"""Fields that a label says in its own words, or that follow from the others in every protocol."""
_OF_OPTIMISER = ("learning_rate", "momentum", "nesterov", "weight_decay")
_OF_STAGE = ("sampler", "epochs", "start_from", "backbone", "logit_scaling", "head_rate", "learning_rate")
_AUGMENTATIONS = {
    "none": "no augmentation",
    "crop_flip": "crop and flip",
    "crop_flip_rotate": "crop, flip and rotation",
    "crop_flip_auto_cutout": "crop, flip, AutoAugment and cutout",
    "resized_crop_flip": "resized crop and flip",
    "resized_crop_flip_jitter": "resized crop, flip and colour jitter",
}


def dataset_label(name: str) -> str:
    """Write a dataset's name as people do, an open-set benchmark without its split.

    >>> dataset_label("cifar10"), dataset_label("osr_cifar+_0")
    ('CIFAR-10', 'CIFAR+')
    """
    dataset = Dataset.parse(name)
    return printable(dataset.open_set.label if dataset.open_set else dataset.label)


def open_set(dataset: str) -> tuple[str, int] | None:
    """Return the benchmark and split of an open-set dataset; None for all others."""
    split = Dataset.parse(dataset).open_set
    return None if split is None else (split.benchmark, split.split)


def network_label(name: str) -> str:
    """Return a network's name as the paper's tables have it."""
    return NETWORKS.get(name, name)


def method_label(method: Method, with_loss: bool = False) -> str:
    """Write a method's head and radius, its options, and its loss unless that is cross-entropy.

    >>> method_label(Method("scaled", 0.1)), method_label(Method("plain"), with_loss=True)
    ('linear × 0.1, not centred', 'linear (cross-entropy)')
    """
    pattern = HEADS.get(method.head, (method.head.replace("_", " "),))[0]
    if method.radius != 1 and "{radius}" not in pattern:
        pattern += " \N{MULTIPLICATION SIGN} {radius}"
    extra = [_LOSSES.get(method.loss, method.loss.replace("_", " "))]
    extra = extra if with_loss or method.loss != "cross_entropy" else []
    for key, value in (*method.head_options, *method.loss_options):
        if key == "class_order":
            extra.append(_ORDERS.get(str(value), "classes in an order of their own"))
        elif (key, value) != ("reweight", "effective"):
            extra.append(_OPTIONS.get(key, f"{key}={{}}").format(value))
    return pattern.format(radius=f"{method.radius:g}") + (f" ({', '.join(extra)})" if extra else "")


def differences(specs: Sequence[RunSpec]) -> list[str]:
    """Say for each setting in which other fields (epochs, precision, ...) it differs from the others."""
    labels = []
    settings = {(spec.optimiser, *(getattr(spec, name) for name in _OF_OPTIMISER)) for spec in specs}
    follow = len(settings) == len({spec.optimiser for spec in specs}) > 1  # the optimiser's name says its settings
    for spec in specs:
        alike = [peer for peer in specs if peer.stage == spec.stage]
        words = ["second stage"] if spec.start_from is not None else []
        for name in RunSpec.__dataclass_fields__:
            peers = alike if name in _OF_STAGE else specs
            varies = len({getattr(peer, name) for peer in peers}) > 1
            if varies and name not in _QUIET and not (follow and name in _OF_OPTIMISER):
                words.append(_field(name, getattr(spec, name)))
        warmup = dict(spec.schedule_options).get("warmup")
        if warmup and any(dict(peer.schedule_options).get("warmup") != warmup for peer in alike):
            words.append(f"warm-up of {plural(warmup, 'epoch')}")
        labels.append(", ".join(filter(None, words)))
    return labels


def augmentation_label(name: str) -> str:
    """Say an augmentation in words."""
    return _AUGMENTATIONS.get(name, f"augmentation {name}")


def _field(name: str, value: object) -> str:
    """Say a field and its value: 200 epochs."""
    word = name.replace("_", " ").replace("nesterov", "Nesterov")
    if name == "augmentation":
        return augmentation_label(str(value))
    if name == "data_order":
        return "" if value else "earlier draw of the subset"
    if name == "epochs":
        return f"{value} epoch{'' if value == 1 else 's'}"
    if isinstance(value, tuple):
        return ", ".join(f"{key.replace('_', ' ')} {item}" for key, item in value)
    if isinstance(value, RunSpec):
        return f"starts from a run of {value.epochs} epochs"
    if isinstance(value, bool) or (name == "mixup" and not value):
        return word if value else f"no {word}"
    return f"{word} {value:g}" if isinstance(value, float) else f"{word} {value}"
