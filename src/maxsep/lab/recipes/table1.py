"""Table 1: CIFAR-10 and CIFAR-100, balanced and long-tailed, two networks."""

from maxsep.lab.recipes.protocol import CONVNET, CONVNET_ARMS, RESNET, RESNET_ARMS, cifar, seeds
from maxsep.lab.recipes.recipe import Block, Recipe

RECIPE = Recipe(
    name="table1",
    title="Balanced and long-tailed recognition",
    source="Table 1",
    question="Does the matrix raise accuracy on balanced and long-tailed CIFAR, and by more than its radius does?",
    blocks=(
        Block(settings=cifar(RESNET), arms=RESNET_ARMS),
        Block(settings=cifar(CONVNET), arms=CONVNET_ARMS),
    ),
    seeds=seeds(3),
)
