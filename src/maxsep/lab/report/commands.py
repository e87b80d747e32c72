"""Which commands train the runs of a report: calls of recipes whose lists of runs hold every one of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from maxsep.lab import recipes
from maxsep.lab.report.collect import Record
from maxsep.lab.report.labels import dataset_label
from maxsep.lab.spec import ORDERED, RunSpec

_MOST_SEEDS = 100
"""A run with a seed further from a recipe's first was not made by that recipe: a command counts seeds from there."""
_NAMED = 5
"""Runs of no recipe that are named."""
_SELECTED = ("dataset", "imbalance", "network", "optimiser")


def commands(records: Sequence[Record], folders: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """The commands that lead here: those given, or else calls of recipes that train every run, and this report.

    A call may train more than is there, and says how many. What it trains follows from the order of the data in DIR,
    too, and it says where that is not the official one. Runs that no call of a recipe trains are named in comments.
    """
    if given:
        return tuple(given)
    lines = []
    left = {record.spec.name: record.spec for record in records}
    there = set(left)
    for recipe in map(recipes.get, recipes.names()):
        for call in _calls(recipe, tuple(left.values())):
            if found := call.among(tuple(left.values())):
                seeds, only = call.range(found)
                trained = {spec.name for spec in call.specs(seeds, only)}
                left = {name: spec for name, spec in left.items() if name not in trained}
                lines.append(call.command(seeds, only) + call.remarks(found, trained & there, trained))
    return (*lines, *_without_recipe(tuple(left)), f"maxsep report {' '.join(folders)}")


@dataclass(frozen=True)
class _Call:
    """A recipe with options that change every run of it."""

    recipe: recipes.Recipe
    precision: str
    max_train: int | None
    max_test: int | None
    data_order: str
    epochs: int | None
    """None for the recipe's own."""

    def specs(self, seeds: int, only: str | None = None) -> list[RunSpec]:
        """What the call trains; after a search for the radius, what it trains for any choice."""
        found = [
            spec.replace(data_order=self.data_order if spec.dataset in ORDERED else "")
            for spec in self.recipe.specs(seeds, self.epochs, only, self.precision, self.max_train, self.max_test)
        ]
        if self.recipe.sweep is None:
            return found
        any_choice = {str(radius): radius for radius in self.recipe.sweep.radii}
        return [*found, *self.recipe.final_specs(any_choice, found)]

    def among(self, specs: Sequence[RunSpec]) -> list[RunSpec]:
        """The runs that the call trains, if it is given enough seeds."""
        near = [spec for spec in specs if 0 <= spec.seed - self.recipe.seeds[0] < _MOST_SEEDS]
        trained = {spec.name for spec in self.specs(_enough(self.recipe, near))} if near else set()
        return [spec for spec in near if spec.name in trained]

    def range(self, specs: Sequence[RunSpec]) -> tuple[int, str | None]:
        """How many seeds the call must have, and what it may select, to train these runs."""
        protocol, terms = self.specs(1), []
        for field in _SELECTED:
            choices = list(dict.fromkeys(getattr(spec, field) for spec in protocol))
            there = [choice for choice in choices if any(getattr(spec, field) == choice for spec in specs)]
            if len(there) < len(choices):
                values = "|".join(f"{value:g}" if isinstance(value, float) else value for value in there)
                terms.append(f"{field}={values}")
        return _enough(self.recipe, specs), ",".join(terms) or None

    def remarks(self, found: Sequence[RunSpec], there: Collection[str], trained: Collection[str]) -> str:
        """A comment where the call trains more than is there, or needs other files than the official ones."""
        told = []
        if self.recipe.sweep is None and len(there) < len(trained):  # what a search will choose cannot be counted
            told.append(f"{len(there)} of its {len(trained)} runs are here")
        ordered = dict.fromkeys(spec.dataset for spec in found if spec.dataset in ORDERED)
        if ordered and not self.data_order:
            told.append(f"{', '.join(map(dataset_label, ordered))} in another order than the official one")
        return f"  # {'; '.join(told)}" if told else ""

    def command(self, seeds: int, only: str | None) -> str:
        """The call as it is typed. The precision is named, because its default depends on the machine."""
        limits = {"--max-train": self.max_train, "--max-test": self.max_test}
        options = {"--only": None if only is None else f"'{only}'"}
        options |= {"--seeds": None if seeds == len(self.recipe.seeds) else str(seeds)}
        options |= {"--epochs": None if self.epochs is None else str(self.epochs)}
        parts = ["maxsep demo"]
        if self.recipe.name != "demo" or self.precision != "32-true" or any(limits.values()):
            parts = [f"maxsep reproduce {self.recipe.name} --data DIR"]
            options |= {"--precision": self.precision}
            options |= {name: None if most is None else str(most) for name, most in limits.items()}
        return " ".join([*parts, *(f"{name} {value}" for name, value in options.items() if value is not None)])


def _without_recipe(names: Sequence[str]) -> Iterator[str]:
    for name in names[:_NAMED]:
        yield f"# of no recipe, its spec.json says what was trained: {name}"
    if len(names) > _NAMED:
        yield f"# and {len(names) - _NAMED} more"


def _enough(recipe: recipes.Recipe, specs: Sequence[RunSpec]) -> int:
    return max(spec.seed for spec in specs) - recipe.seeds[0] + 1


def _calls(recipe: recipes.Recipe, specs: Sequence[RunSpec]) -> Iterator[_Call]:
    """The calls of a recipe that may have made some of these runs: with its own epochs first, then with theirs."""
    firsts = [spec if spec.start_from is None else spec.start_from for spec in specs]
    options = dict.fromkeys((spec.precision, spec.max_train, spec.max_test) for spec in specs)
    orders = sorted({spec.data_order for spec in specs}, reverse=True)  # the official one first
    for epochs in (None, *sorted({spec.epochs for spec in firsts})):
        for order in orders:
            for option in options:
                yield _Call(recipe, *option, order, epochs)
