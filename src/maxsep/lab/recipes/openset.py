"""Table on open-set recognition: SVHN, CIFAR10, CIFAR+10 and CIFAR+50, five splits of classes each.

The settings are those of the released script of Vaze et al. (2022). A split is a repetition, so there is one seed.
CIFAR+10 and CIFAR+50 differ in the unknown classes alone and share their trained models.
"""

from __future__ import annotations

from maxsep.lab.data.open_set import SPLITS, OpenSetSplit
from maxsep.lab.ood import OODProtocol
from maxsep.lab.recipes.after import Detect
from maxsep.lab.recipes.ood import ARMS
from maxsep.lab.recipes.recipe import Block, Recipe
from maxsep.lab.spec import RunSpec, options

_AUGMENTATION = {"cifar10": "rand_augment_m6", "cifar+": "rand_augment_m6", "svhn": "rand_augment_digits_m18"}

SETTING = RunSpec(
    dataset="osr_cifar10_0",
    augmentation="rand_augment_m6",
    normalisation="cifar10",
    network="vgg32",
    head="plain",
    epochs=600,
    batch_size=128,
    optimiser="sgd",
    learning_rate=0.1,
    momentum=0.9,
    weight_decay=1e-4,
    schedule="restarts",
    schedule_options=options(cycles=3),
    evaluate_every=50,
)


def _settings() -> tuple[RunSpec, ...]:
    """Every benchmark of the first split, then of the next: work that is cut short can be compared."""
    return tuple(
        SETTING.replace(dataset=OpenSetSplit(benchmark, split).name, augmentation=_AUGMENTATION[benchmark])
        for split in range(SPLITS)
        for benchmark in _AUGMENTATION
    )


RECIPE = Recipe(
    name="openset",
    title="Open-set recognition",
    source="Table on open-set recognition",
    question="Does the matrix help to tell classes that were never trained on?",
    blocks=(Block(settings=_settings(), arms=ARMS),),
    seeds=(0,),
    after=Detect(OODProtocol(mahalanobis=False, repeats=0)),
)
