"""Table 1: CIFAR-10 and CIFAR-100, balanced and long-tailed, two networks."""

from maxsep.lab.recipes.protocol import CONVNET, CONVNET_PAIR, RESNET, RESNET_PAIR, cifar, seeds, subset_seed
from maxsep.lab.recipes.recipe import Block, Recipe

RECIPE = Recipe(
    name="table1",
    title="Balanced and long-tailed recognition",
    source="Table 1",
    question="Does the matrix raise accuracy on balanced and long-tailed CIFAR?",
    blocks=(
        Block(settings=cifar(RESNET), arms=RESNET_PAIR),
        Block(settings=cifar(CONVNET), arms=CONVNET_PAIR),
    ),
    seeds=seeds(3),
    subset_seed=subset_seed,
)
