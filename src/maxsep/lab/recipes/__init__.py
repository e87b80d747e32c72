"""Every experiment by name: one file per table or figure of the paper, as data."""

from __future__ import annotations

from maxsep.lab.recipes import (
    beyond,
    demo,
    features2d,
    fixed,
    imagenet,
    longtail,
    ood,
    openset,
    prototypes,
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
        *(module.RECIPE for module in (table1, fixed, prototypes, longtail)),
        beyond.SEARCH,
        beyond.RECIPE,
        *(module.RECIPE for module in (imagenet, ood, openset, features2d, demo)),
    )
}
_ALIASES = {
    "errorbars": "table1",
    "frequency": "table1",
    "fisher": "table1",
}
"""Tables and figures of the paper that show the runs of another recipe."""


def names() -> tuple[str, ...]:
    """List the recipes, without the aliases that `get` also knows.

    >>> names()[:3]
    ('table1', 'fixed', 'prototypes')
    """
    return tuple(_RECIPES)


def get(name: str) -> Recipe:
    """Find a recipe by name.

    >>> get("table1").source, get("fisher").name
    ('Table 1', 'table1')
    """
    name = _ALIASES.get(name, name)
    if name not in _RECIPES:
        raise ValueError(f"unknown recipe {name!r}. Known recipes: {', '.join((*_RECIPES, *_ALIASES))}.")
    return _RECIPES[name]
