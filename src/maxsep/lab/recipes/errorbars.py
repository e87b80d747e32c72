"""Supplementary error bars: Table 1 over five runs."""

from maxsep.lab.recipes.protocol import seeds
from maxsep.lab.recipes.recipe import Recipe
from maxsep.lab.recipes.table1 import RECIPE as TABLE1

RECIPE = Recipe(
    name="errorbars",
    title="Error bars over five seeds",
    source="Supplementary material, error bars",
    question="How much of Table 1 is seed noise?",
    blocks=TABLE1.blocks,
    seeds=seeds(5),
    runs_of="table1",
)
