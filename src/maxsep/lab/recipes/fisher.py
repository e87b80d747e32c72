"""Supplementary table of the angular Fisher score of the ResNet's pooled features on the test set."""

from maxsep.lab.recipes.protocol import RESNET, RESNET_ARMS, cifar, seeds
from maxsep.lab.recipes.recipe import Block, Recipe

RECIPE = Recipe(
    name="fisher",
    title="Angular Fisher score",
    source="Supplementary material, angular Fisher score",
    question="Are the features of a class closer together, and the classes further apart, with the matrix?",
    blocks=(Block(settings=cifar(RESNET, imbalances=(1.0, 0.1, 0.01)), arms=RESNET_ARMS),),
    seeds=seeds(3),
    runs_of="table1",
)
