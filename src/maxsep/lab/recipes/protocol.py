"""The paper's training settings for CIFAR: what every recipe on CIFAR shares.

Taken from the authors' released scripts where the paper is silent: batch size, epochs, rotation for balanced data
only, and the CIFAR-10 statistics for both long-tailed sets.
"""

from __future__ import annotations

from maxsep.lab.recipes.recipe import Arm
from maxsep.lab.spec import RunSpec, options

DATASETS = ("cifar100", "cifar10")
IMBALANCES = (1.0, 0.2, 0.1, 0.02, 0.01)
FIRST_SEED = 123

_SHARED = RunSpec(
    head="plain",
    batch_size=512,
    optimiser="sgd",
    learning_rate=0.1,
    momentum=0.9,
    nesterov=False,
    weight_decay=5e-4,
    evaluate_every=10,
)

RESNET = _SHARED.replace(network="resnet34", epochs=200, schedule="cosine")
"""The paper's "ResNet-32", which in the released code is a 34-layer network; trained with radius 0.1."""

CONVNET = _SHARED.replace(network="convnet", epochs=90, schedule="step", schedule_options=options(every=30, factor=0.1))
"""The paper's ConvNet, an AlexNet for 32 x 32 images; trained with radius 1."""

RESNET_RADIUS = 0.1
RESNET_PAIR = (Arm(head="plain"), Arm(head="maxsep", radius=RESNET_RADIUS))
CONVNET_PAIR = (Arm(head="plain"), Arm(head="maxsep"))
"""What the paper compares: each network at the paper's radius."""
RESNET_ARMS = (
    Arm(head="plain"),
    Arm(head="scaled", radius=RESNET_RADIUS),
    Arm(head="maxsep", radius=RESNET_RADIUS),
)


def cifar(
    network: RunSpec, datasets: tuple[str, ...] = DATASETS, imbalances: tuple[float, ...] = IMBALANCES
) -> tuple[RunSpec, ...]:
    """Spread a network's settings over datasets and imbalances, with the protocol's data treatment.

    >>> balanced, tail = cifar(RESNET, ("cifar100",), (1.0, 0.01))
    >>> balanced.augmentation, balanced.normalisation, tail.augmentation, tail.normalisation
    ('crop_flip_rotate', 'cifar100', 'crop_flip', 'cifar10')
    """
    return tuple(
        network.replace(
            dataset=dataset,
            imbalance=imbalance,
            augmentation="crop_flip_rotate" if imbalance == 1 else "crop_flip",
            normalisation=dataset if imbalance == 1 else "cifar10",
        )
        for dataset in datasets
        for imbalance in imbalances
    )


def subset_seed(spec: RunSpec) -> int:
    """Give every seed its own long-tailed subset: seed - 123, so that the first one is the protocol's.

    CIFAR-10 at imbalance 0.01 with the ResNet keeps subset 0, which its recorded runs have.

    >>> [subset_seed(cell.replace(seed=125)) for cell in cifar(RESNET, ("cifar10",), (1.0, 0.02, 0.01))]
    [0, 2, 0]
    """
    recorded = (spec.dataset, spec.imbalance, spec.network) == ("cifar10", 0.01, RESNET.network)
    return 0 if spec.imbalance == 1 or recorded else max(0, spec.seed - FIRST_SEED)


def seeds(count: int) -> tuple[int, ...]:
    """The first seeds from 123, the released scripts' default.

    >>> seeds(3)
    (123, 124, 125)
    """
    return tuple(range(FIRST_SEED, FIRST_SEED + count))
