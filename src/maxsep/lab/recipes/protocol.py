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
RESNET_ARMS = (
    Arm(head="plain"),
    Arm(head="scaled", radius=RESNET_RADIUS),
    Arm(head="maxsep", radius=RESNET_RADIUS),
)
CONVNET_ARMS = (
    Arm(head="plain"),
    Arm(head="scaled"),  # is `plain`: listed for the table, never trained twice
    Arm(head="maxsep"),
    # At radius 1 the control says nothing, so the pair at the ResNet's radius is added.
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


def seeds(count: int) -> tuple[int, ...]:
    """The first seeds from 123, the released scripts' default.

    >>> seeds(3)
    (123, 124, 125)
    """
    return tuple(range(FIRST_SEED, FIRST_SEED + count))
