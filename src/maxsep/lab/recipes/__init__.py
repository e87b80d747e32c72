"""Every experiment by name: one file per table or figure of the paper, as data."""

from __future__ import annotations

from maxsep.lab.recipes import (
    beyond,
    demo,
    errorbars,
    features2d,
    fisher,
    fixed,
    frequency,
    imagenet,
    longtail,
    ood,
    openset,
    prototypes,
    runtime,
    table1,
)
from maxsep.lab.recipes.recipe import Arm, Block, Recipe, Sweep, canonical, choose_radii, validation_metric
from maxsep.lab.recipes.selection import Selection

__all__ = [
    "Arm",
    "Block",
    "Recipe",
    "Selection",
    "Sweep",
    "canonical",
    "choose_radii",
    "get",
    "names",
    "validation_metric",
]

_RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        *(module.RECIPE for module in (table1, errorbars, fixed, frequency, fisher, prototypes, longtail)),
        beyond.SEARCH,
        beyond.RECIPE,
        *(module.RECIPE for module in (imagenet, ood, openset, features2d, runtime, demo)),
    )
}


def names() -> tuple[str, ...]:
    """List the recipes.

    >>> names()[:3]
    ('table1', 'errorbars', 'fixed')
    """
    return tuple(_RECIPES)


def get(name: str) -> Recipe:
    """Find a recipe by name.

    >>> get("table1").source
    'Table 1'
    """
    if name not in _RECIPES:
        raise ValueError(f"unknown recipe {name!r}. Known recipes: {', '.join(_RECIPES)}.")
    return _RECIPES[name]
