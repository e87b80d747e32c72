"""Figure of the gain per class against the class's frequency, on long-tailed CIFAR-10."""

from maxsep.lab.recipes.protocol import IMBALANCES, RESNET, RESNET_ARMS, cifar, seeds
from maxsep.lab.recipes.recipe import Block, Recipe

RECIPE = Recipe(
    name="frequency",
    title="Gain per class against class frequency",
    source="Figure on accuracy gain against sample frequency",
    question="Do rare classes gain most?",
    blocks=(Block(settings=cifar(RESNET, ("cifar10",), IMBALANCES[1:]), arms=RESNET_ARMS),),
    seeds=seeds(3),
    runs_of="table1",
)
