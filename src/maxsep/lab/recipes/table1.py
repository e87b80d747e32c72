"""Table 1: CIFAR-10 and CIFAR-100, balanced and long-tailed, two networks."""

from maxsep.lab.recipes.protocol import (
    CONVNET,
    CONVNET_PAIR,
    RESNET,
    RESNET_PAIR,
    RESNET_RADIUS,
    cifar,
    seeds,
    subset_seed,
)
from maxsep.lab.recipes.recipe import Arm, Block, Recipe

RECIPE = Recipe(
    name="table1",
    title="Balanced and long-tailed recognition",
    source="Table 1",
    question="Does the matrix raise accuracy on balanced and long-tailed CIFAR?",
    blocks=(
        Block(settings=cifar(RESNET), arms=RESNET_PAIR),
        Block(settings=cifar(CONVNET), arms=CONVNET_PAIR),
        # the matrix as a plain layer: by the theorem the same, so a check of the pipeline
        Block(settings=cifar(RESNET, imbalances=(0.02, 0.01)), arms=(Arm(head="control", radius=RESNET_RADIUS),)),
    ),
    seeds=seeds(3),
    subset_seed=subset_seed,
)
