"""The words for data, networks and settings that tables and figures use."""

from __future__ import annotations

from collections.abc import Sequence

from maxsep.lab.data import Dataset
from maxsep.lab.spec import RunSpec

NETWORKS = {
    **{"resnet34": "ResNet", "convnet": "ConvNet", "resnet32": "ResNet-32", "mlp": "MLP"},
    **{"wrn40_2": "WideResNet-40-2", "vgg32": "VGG32", "resnet50": "ResNet-50", "resnet152": "ResNet-152"},
}
_QUIET = (
    *("dataset", "network", "imbalance", "validation", "normalisation"),
    *("schedule", "schedule_options", "evaluate_every", "features_at"),
)
"""Fields a label says in its own words, or that follow from the others in every protocol."""
_OF_OPTIMISER = ("learning_rate", "momentum", "nesterov", "weight_decay")
_OF_STAGE = ("sampler", "epochs", "start_from", "backbone", "logit_scaling", "head_rate", "learning_rate")
"""Fields in which a second stage differs from the run it starts from, which its name says."""
_AUGMENTATIONS = {
    "crop_flip": "crop and flip",
    "crop_flip_rotate": "crop, flip and rotation",
    "crop_flip_auto_cutout": "crop, flip, AutoAugment and cutout",
    "resized_crop_flip": "resized crop and flip",
    "resized_crop_flip_jitter": "resized crop, flip and colour jitter",
}
_CAPITALS = {"nesterov": "Nesterov"}


def dataset_label(name: str) -> str:
    """A dataset's name as people write it.

    >>> dataset_label("cifar10"), dataset_label("folder:/data/birds"), dataset_label("imagenet_lt?size=64")
    ('CIFAR-10', 'birds', 'ImageNet-LT, 64 pixels')
    """
    return Dataset.parse(name).label


def benchmark_label(name: str) -> str:
    """An open-set benchmark's name, which is not that of the whole dataset.

    >>> benchmark_label("cifar+"), benchmark_label("digits")
    ('CIFAR+', 'Digits')
    """
    return "Digits" if name == "digits" else name.upper()


def network_label(name: str) -> str:
    """A network's name as the paper's tables have it."""
    return NETWORKS.get(name, name)


def differences(specs: Sequence[RunSpec]) -> dict[RunSpec, str]:
    """Say of each setting in which other fields (epochs, precision, ...) it differs from the others shown.

    Dataset, network and balance are said elsewhere.

    >>> specs = [RunSpec(epochs=20), RunSpec(epochs=40)]
    >>> list(differences(specs).values())
    ['20 epochs', '40 epochs']
    """
    told = {}
    for spec in specs:
        peers = [other for other in specs if (other.dataset, other.network) == (spec.dataset, spec.network)]
        # what a second stage has of its own may follow from the imbalance, which is told already
        second = spec.start_from is not None
        alike = [peer for peer in peers if (peer.start_from is not None) == second]
        alike = [peer for peer in alike if peer.imbalance == spec.imbalance] if second else alike
        varying = [name for name in _loud_fields() if _varies(name, alike if name in _OF_STAGE else peers)]
        if "optimiser" in varying and _follows(peers):
            varying = [name for name in varying if name not in _OF_OPTIMISER]
        words = filter(None, (_field_in_words(name, getattr(spec, name)) for name in varying))
        told[spec] = ", ".join([*(["second stage"] if second else []), *words])
    return told


def _loud_fields() -> list[str]:
    return [name for name in RunSpec.__dataclass_fields__ if name not in _QUIET]


def _follows(specs: Sequence[RunSpec]) -> bool:
    """Whether the optimiser's name says its settings, too."""
    told = {(spec.optimiser, *(getattr(spec, name) for name in _OF_OPTIMISER)) for spec in specs}
    return len(told) == len({spec.optimiser for spec in specs})


def _varies(name: str, peers: Sequence[RunSpec]) -> bool:
    # the paper's protocol rotates balanced data alone: there the imbalance says it already
    given = {(getattr(peer, name), peer.imbalance if name == "augmentation" else 1.0) for peer in peers}
    return len(given) > len({imbalance for _, imbalance in given})


def _field_in_words(name: str, value: object) -> str:
    """Say a field and its value as people do; options that were left alone are not worth a word.

    >>> _field_in_words("epochs", 200), _field_in_words("network_options", (("feature_size", 2),))
    ('200 epochs', 'feature size 2')
    >>> _field_in_words("network_options", ())
    ''
    """
    if name == "augmentation":
        return _AUGMENTATIONS.get(str(value), f"augmentation {value}")
    if name == "data_order":
        return "official order of the images" if value else "earlier draw of the subset"
    if name == "epochs":
        return f"{value} epoch{'' if value == 1 else 's'}"
    if isinstance(value, tuple):
        return ", ".join(f"{key.replace('_', ' ')} {item}" for key, item in value)
    word = _CAPITALS.get(name, name.replace("_", " "))
    if isinstance(value, bool):
        return word if value else f"no {word}"
    if name == "mixup" and not value:
        return "no mixup"
    return f"{word} {_plain_text(value)}"


def _plain_text(value: object) -> str:
    if isinstance(value, RunSpec):
        return f"a run of {value.epochs} epochs"
    return f"{value:g}" if isinstance(value, float) else str(value)
