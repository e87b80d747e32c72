"""What others published for long-tailed CIFAR on the true ResNet-32, at imbalance 0.01: the bar for `beyond`.

Numbers are percent, CIFAR-10 and CIFAR-100, as their papers (or the papers that compare with them) print them; all are
trained for 200 epochs. They stand on other draws of the long-tailed subset than ours, and mostly on one seed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A method's accuracies, with where they are from."""

    method: str
    source: str
    augmentation: str
    cifar10: float
    cifar100: float


RESNET32 = (
    Published("cross-entropy", "Cao et al. 2019", "crop_flip", 70.4, 38.3),
    Published("LDAM-DRW", "Cao et al. 2019", "crop_flip", 77.0, 42.0),
    Published("logit adjustment", "Menon et al. 2021", "crop_flip", 77.7, 43.9),
    Published("BCL", "Zhu et al. 2022", "crop_flip_auto_cutout", 84.3, 51.9),
)
