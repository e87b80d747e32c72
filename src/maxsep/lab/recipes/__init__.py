"""Every experiment by name: the tables and figures of the paper, and the measurements of docs/plan.md, as data."""

from __future__ import annotations

from maxsep.lab.recipes.adam import ADAM
from maxsep.lab.recipes.baseline import ARITHMETIC, BASELINE
from maxsep.lab.recipes.cifar import FIXED, PROTOTYPES, TABLE1
from maxsep.lab.recipes.compare import DEMO
from maxsep.lab.recipes.imagenet import IMAGENET
from maxsep.lab.recipes.long_tail import BEYOND, BEYOND_SEARCH, LONG_TAIL
from maxsep.lab.recipes.ood import FEATURES2D, OOD, OPEN_SET
from maxsep.lab.recipes.recipe import After, Arm, Block, Recipe, select

__all__ = ["ALIASES", "After", "Arm", "Block", "Recipe", "get", "names", "select"]

_PAPER = (TABLE1, FIXED, PROTOTYPES, LONG_TAIL, IMAGENET, OOD, OPEN_SET, FEATURES2D)
_RECIPES = {recipe.name: recipe for recipe in (*_PAPER, BEYOND_SEARCH, BEYOND, BASELINE, ARITHMETIC, ADAM, DEMO)}
ALIASES = {"errorbars": "table1", "frequency": "table1", "fisher": "table1"}
"""Tables and figures of the paper that show the runs of another recipe."""


def names() -> tuple[str, ...]:
    """List the recipes, without the aliases that `get` also knows."""
    return tuple(_RECIPES)


def get(name: str) -> Recipe:
    """Return a recipe by name."""
    name = ALIASES.get(name, name)
    if name not in _RECIPES:
        raise ValueError(f"unknown recipe {name!r}. Known: {', '.join((*_RECIPES, *ALIASES))}.")
    return _RECIPES[name]
