"""The settings of a run that starts from pretrained weights, unless the user names others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maxsep.files import sha256_of
from maxsep.lab import networks
from maxsep.lab.data import Dataset
from maxsep.lab.spec import options

EPOCHS = 10
RATES = {"adamw": 1e-3, "sgd": 1e-2}
"""Learning rate of the head; that of the first layer is 0.3 times as large."""
USUAL: dict[str, Any] = {
    "optimiser": "adamw",
    "weight_decay": 0.01,
    "epochs": EPOCHS,
    "schedule": "cosine_steps",
    "schedule_options": options(ramp=2),
    "freeze_epochs": 1,
    "stem_rate": 0.3,
}


def fine_tuning(
    dataset: Dataset, network: str, weights: str | Path | None = None, image_size: int | None = None
) -> dict[str, Any]:
    """Return the fields of a spec for a network as a user names it, with its dataset at the size of its images.

    The network may be `timm/NAME?pretrained=1` or `torchvision/NAME?weights=DEFAULT`; `weights` is a file of weights,
    `image_size` by default the side with which the network was pretrained.

    >>> fields = fine_tuning(Dataset.parse("cifar100"), "timm/resnet18?pretrained=1", image_size=128)
    >>> fields["network"], fields["weights"], fields["image_size"], fields["optimiser"]
    ('timm/resnet18', 'pretrained', 128, 'adamw')
    """
    name, start = networks.split_name(network)
    if weights is not None:
        if start:
            raise ValueError(f"weights are named twice, by {network!r} and by --weights {weights}.")
        if not Path(weights).is_file():
            raise FileNotFoundError(f"--weights {weights} is not a file.")
        start = sha256_of(Path(weights))
    if not start:
        return {"network": name, "dataset": dataset.name, "image_size": image_size or 0}
    inputs = networks.expected_inputs(name, start)
    size = image_size or (0 if inputs is None else inputs.size)
    data = dataset.with_default_size(size) if size else dataset
    augmentation = {"augmentation": dataset.default_augmentation}
    return {"network": name, "dataset": data.name, "weights": start, "image_size": size, **augmentation, **USUAL}
