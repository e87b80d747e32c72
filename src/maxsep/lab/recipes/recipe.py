"""Define recipes: the settings and arms of one table or figure, from which its runs follow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from maxsep.lab.run import Run
from maxsep.lab.spec import Options, RunSpec

_METHOD_FIELDS = ("head", "radius", "head_options", "loss", "loss_options")
_FIELDS = tuple(field.name for field in dataclasses.fields(RunSpec))


@dataclass(frozen=True, kw_only=True)
class Arm:
    """An arm of a comparison: a head, its loss, and any other fields of the spec that it changes.

    >>> Arm(head="maxsep", radius=0.1).on(RunSpec(network="resnet34")).radius
    0.1
    """

    head: str
    radius: float = 1.0
    head_options: Options = ()
    loss: str = "cross_entropy"
    loss_options: Options = ()
    changes: Options = ()

    @property
    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _METHOD_FIELDS} | dict(self.changes)

    def on(self, setting: RunSpec) -> RunSpec:
        """Return the run of this arm in a setting."""
        return setting.replace(**self._fields)

    def matches(self, spec: RunSpec) -> bool:
        """Return whether a run has this arm."""
        return all(getattr(spec, name) == value for name, value in self._fields.items())


@dataclass(frozen=True, kw_only=True)
class Block:
    """Settings that share their arms: every arm runs in every setting, with `seeds` or the recipe's own."""

    settings: tuple[RunSpec, ...]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...] = ()


class After(Protocol):
    """A step after the training of every run."""

    def check(self, specs: Sequence[RunSpec], runs: Path, data_root: str | Path | None, download: bool) -> None:
        """Raise if something is missing that the step will need."""

    def is_done(self, run: Run) -> bool:
        """Return whether a finished run has what the step adds."""

    def __call__(self, run: Run, *, data_root: str | Path | None, device: str) -> str:
        """Take the step for a finished run; return a sentence about what could not be done, or nothing."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One table or figure: data from which its runs follow.

    `about` names its source and its question, `seeds` are those of a full run, `after` is a step after training,
    `subset_seed` gives the seed of a run's long-tailed subset, and `follow_up` lists the runs that depend on results,
    from the finished runs and the seeds.
    """

    name: str
    about: str
    blocks: tuple[Block, ...]
    seeds: tuple[int, ...]
    after: After | None = None
    subset_seed: Callable[[RunSpec], int] = attrgetter("subset_seed")
    follow_up: Callable[[Sequence[Run], Sequence[int]], list[RunSpec]] | None = None

    def specs(
        self,
        seeds: int | Sequence[int] | None = None,
        epochs: int | None = None,
        only: str | None = None,
        precision: str | None = None,
        max_train: int | None = None,
        max_test: int | None = None,
    ) -> list[RunSpec]:
        """List the runs, without those of `follow_up`. The seed is the slowest index: work cut short leaves pairs.

        `seeds` says how many, or which; by default the recipe's own. With another number of `epochs`, steps of schedule
        and loss are stretched; a second stage, short as it is, is only cut. `only` is an expression of `select`; no
        match is a ValueError. `precision` is that of all runs whose arm names none. `max_train` and `max_test` keep
        at most so many images: a smoke run, not a result.
        """
        limits = {"max_train": max_train, "max_test": max_test}
        changes = {name: value for name, value in limits.items() if value is not None}
        pinned = {} if precision is None else {"precision": precision}
        specs = []
        for seed, setting, arm in self._cells(self.choose_seeds(seeds)):
            spec = arm.on(setting.replace(seed=seed, **pinned)).replace(**changes)
            spec = spec.replace(subset_seed=self.subset_seed(spec))
            specs.append(spec if epochs is None else _with_epochs(spec, epochs))
        selected = {spec.name: spec for spec in select(specs, only)}
        if not selected:
            cells = sorted({f"{spec.dataset} {spec.imbalance:g} {spec.network} {spec.head}" for spec in specs})
            raise ValueError(f"no run of {self.name} matches {only!r}. There are: {', '.join(cells)}.")
        return list(selected.values())

    def choose_seeds(self, seeds: int | Sequence[int] | None) -> tuple[int, ...]:
        """Return the seeds themselves, that many from the recipe's first one on, or the recipe's own."""
        if seeds is None:
            return self.seeds
        chosen = tuple(range(self.seeds[0], self.seeds[0] + seeds)) if isinstance(seeds, int) else tuple(seeds)
        if not chosen:
            raise ValueError(f"seeds must be at least one, got {seeds!r}.")
        return chosen

    def _cells(self, seeds: Sequence[int]) -> Iterator[tuple[int, RunSpec, Arm]]:
        for number, seed in enumerate(seeds):
            for block in self.blocks:
                if number < len(block.seeds or seeds):
                    own_seed = block.seeds[number] if block.seeds else seed
                    yield from ((own_seed, setting, arm) for setting in block.settings for arm in block.arms)


def select(specs: Sequence[RunSpec], only: str | None) -> list[RunSpec]:
    """Keep the runs that match every term of an expression, in order; terms are joined by commas.

    A term is `field=value` (alternatives with `|`, or by naming the field again) or a part of the run's name. No match
    is an empty list; an unknown field is a ValueError.

    >>> runs = [RunSpec(head=head, seed=seed) for head in ("plain", "maxsep") for seed in (0, 1)]
    >>> [spec.head for spec in select(runs, "head=plain|maxsep,seed=1")]
    ['plain', 'maxsep']
    """
    fields: dict[str, list[str]] = {}
    parts: list[str] = []
    for term in filter(None, (term.strip() for term in (only or "").split(","))):
        key, equals, values = (piece.strip() for piece in term.partition("="))
        if not equals:
            parts.append(term)
        elif key not in _FIELDS:
            raise ValueError(f"cannot select by {key!r}. Fields of a run: {', '.join(_FIELDS)}.")
        else:
            fields.setdefault(key, []).extend(value.strip() for value in values.split("|"))
    return [
        spec
        for spec in specs
        if all(part in spec.name for part in parts)
        and all(any(_equal(getattr(spec, key), value) for value in values) for key, values in fields.items())
    ]


def _equal(actual: object, wanted: str) -> bool:
    if isinstance(actual, int | float) and not isinstance(actual, bool):
        try:
            return float(wanted) == float(actual)
        except ValueError:
            return False
    return str(actual).lower() == wanted.lower()


def _with_epochs(spec: RunSpec, epochs: int) -> RunSpec:
    if spec.start_from is not None:
        first = _with_epochs(spec.start_from, epochs)
        return spec.replace(start_from=first, epochs=min(spec.epochs, epochs))
    share = epochs / spec.epochs
    schedule, loss, changes = dict(spec.schedule_options), dict(spec.loss_options), dict[str, Any]()
    if "every" in schedule:  # a step schedule keeps its number of steps
        schedule["every"] = max(1, round(schedule["every"] * share))
    if "reweight_from" in loss:
        loss["reweight_from"] = round(loss["reweight_from"] * share)
    if spec.stop_after is not None:
        changes["stop_after"] = max(1, round(spec.stop_after * share))
    if spec.features_at:
        changes["features_at"] = tuple(dict.fromkeys(max(1, round(epoch * share)) for epoch in spec.features_at))
    changes |= {"schedule_options": tuple(schedule.items()), "loss_options": tuple(loss.items())}
    return spec.replace(epochs=epochs, **changes)
