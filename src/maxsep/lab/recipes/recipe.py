"""What a recipe is: the settings and heads of one table or figure, from which its runs follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from maxsep.lab.recipes.after import After
from maxsep.lab.recipes.selection import Selection
from maxsep.lab.spec import Options, RunSpec


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One contestant of a comparison: a head, its radius and the loss it is trained with.

    >>> Arm(head="maxsep", radius=0.1).on(RunSpec(network="resnet34")).radius
    0.1
    """

    head: str
    radius: float = 1.0
    head_options: Options = ()
    loss: str = "cross_entropy"
    loss_options: Options = ()

    def on(self, setting: RunSpec) -> RunSpec:
        """The run of this arm in a setting."""
        return setting.replace(
            head=self.head,
            radius=self.radius,
            head_options=self.head_options,
            loss=self.loss,
            loss_options=self.loss_options,
        )


@dataclass(frozen=True, kw_only=True)
class Block:
    """Settings that share their arms: every arm runs in every setting."""

    settings: tuple[RunSpec, ...]
    arms: tuple[Arm, ...]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A search for the radius on held-out training data, before the test set is read.

    Every head runs with every radius on the part `1 - validation` of the training data. Afterwards both heads
    are trained on all of it at each radius that was chosen, so that the comparison is at equal radius too.
    """

    setting: RunSpec
    heads: tuple[str, ...]
    radii: tuple[float, ...]
    validation: float
    num_seeds: int

    def runs(self) -> Iterator[RunSpec]:
        """The runs of the search, without their seeds."""
        setting = self.setting.replace(validation=self.validation)
        for radius in self.radii:
            for head in self.heads:
                yield Arm(head=head, radius=radius).on(setting)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One table or figure: data from which its runs follow.

    Attributes:
        name: What `maxsep reproduce NAME` calls it.
        title: A headline.
        source: Where the paper has it.
        question: What it asks, in one sentence.
        blocks: Settings and the arms that run in them.
        seeds: The seeds of a full run; the first ones are taken when fewer are asked for.
        sweep: A search for the radius that comes first.
        after: What is done with the trained runs, such as detection.
        subset_seed: The seed of a run's long-tailed subset; by default that of its setting.
    """

    name: str
    title: str
    source: str
    question: str
    blocks: tuple[Block, ...]
    seeds: tuple[int, ...]
    sweep: Sweep | None = None
    after: After | None = None
    subset_seed: Callable[[RunSpec], int] = attrgetter("subset_seed")

    def specs(
        self,
        seeds: int | Sequence[int] | None = None,
        epochs: int | None = None,
        only: str | None = None,
        precision: str | None = None,
        max_train: int | None = None,
        max_test: int | None = None,
    ) -> list[RunSpec]:
        """List the runs, the search for the radius (if any) first.

        The seed is the slowest index and the arm the fastest: whenever the work is cut short, the runs that are
        there can be compared in pairs. `scaled` at radius 1 is `plain`, so it is listed once, as `plain`.

        Args:
            seeds: How many seeds, or which; all of the recipe's own by default.
            epochs: Train shorter or longer than the protocol; steps of the schedule and of the loss are stretched
                with it. A second stage, short as it is, is only cut.
            only: Keep the runs that `Selection` finds.
            precision: Numbers to compute with, such as `bf16-mixed`; the protocol's `32-true` by default.
            max_train: Keep at most so many training images (a smoke run, not a result).
            max_test: Keep at most so many test images.
        """
        chosen = self._seeds(seeds)
        found = [] if self.sweep is None else list(self._sweep_specs(chosen))
        seeded = [arm.on(setting).replace(seed=seed) for seed in chosen for setting, arm in self._pairs()]
        found += [spec.replace(subset_seed=self.subset_seed(spec)) for spec in seeded]
        changed = (_override(spec, epochs, precision, max_train, max_test) for spec in found)
        return _once(Selection.parse(only).apply(list(changed)))

    def final_specs(self, radii: Mapping[str, float], like: Sequence[RunSpec]) -> list[RunSpec]:
        """List the runs that follow the search: every searched head at every radius that was chosen.

        Args:
            radii: The radius chosen for each head, as `choose_radii` returns it.
            like: The runs of this call to `specs`; the new ones share their seeds, epochs and precision.
        """
        if self.sweep is None:
            raise ValueError(f"recipe {self.name!r} has no search for the radius; call specs() alone.")
        bases = {spec.replace(head="plain", radius=1.0, validation=0.0): None for spec in like}
        arms = [Arm(head=head, radius=r) for r in sorted(set(radii.values())) for head in self.sweep.heads]
        return _once([arm.on(base) for base in bases for arm in arms])

    def _pairs(self) -> Iterator[tuple[RunSpec, Arm]]:
        for block in self.blocks:
            for setting in block.settings:
                for arm in block.arms:
                    yield setting, arm

    def _sweep_specs(self, seeds: Sequence[int]) -> Iterator[RunSpec]:
        assert self.sweep is not None
        for seed in seeds[: self.sweep.num_seeds]:
            for run in self.sweep.runs():
                yield run.replace(seed=seed)

    def _seeds(self, seeds: int | Sequence[int] | None) -> tuple[int, ...]:
        if seeds is None:
            return self.seeds
        if not isinstance(seeds, int):
            if not seeds:
                raise ValueError("seeds must name at least one seed, got none. Leave it out for the recipe's own.")
            return tuple(seeds)
        if seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {seeds}. Leave it out for the recipe's own.")
        first = self.seeds[0]
        return tuple(range(first, first + seeds))


def canonical(spec: RunSpec) -> RunSpec:
    """Give equal runs one name: `scaled` at radius 1 computes what `plain` computes.

    >>> canonical(RunSpec(head="scaled", radius=1.0)).head
    'plain'
    """
    if spec.head == "scaled" and spec.radius == 1 and not spec.head_options:
        return spec.replace(head="plain")
    return spec


def choose_radii(scores: Mapping[tuple[str, float], Sequence[float]]) -> dict[str, float]:
    """Choose for each head the radius with the best mean validation score.

    Of equal means the one nearest to 1 wins, because it changes least.

    >>> choose_radii({("maxsep", 0.1): [0.5, 0.6], ("maxsep", 1.0): [0.9, 0.8]})
    {'maxsep': 1.0}
    """
    best: dict[str, tuple[float, float]] = {}
    for (head, radius), values in scores.items():
        if not values:
            continue
        mean = sum(values) / len(values)
        distance = max(radius, 1 / radius)
        if head not in best or (mean, -distance) > (best[head][0], -max(best[head][1], 1 / best[head][1])):
            best[head] = (mean, radius)
    return {head: radius for head, (_, radius) in best.items()}


def validation_metric(imbalance: float) -> str:
    """The metric that chooses a radius: accuracy, or the mean over classes where some of them are rare.

    Held-out data are as long-tailed as the training data they come from, while the test set is not: plain accuracy
    would choose for the frequent classes.

    >>> validation_metric(1.0), validation_metric(0.02)
    ('top1', 'balanced')
    """
    return "top1" if imbalance == 1 else "balanced"


def _once(specs: Sequence[RunSpec]) -> list[RunSpec]:
    return list({canonical(spec).name: canonical(spec) for spec in specs}.values())


def _override(
    spec: RunSpec, epochs: int | None, precision: str | None, max_train: int | None, max_test: int | None
) -> RunSpec:
    if epochs is not None:
        spec = _with_epochs(spec, epochs)
    if precision is not None:
        spec = spec.replace(precision=precision)
    if max_train is not None:
        spec = spec.replace(max_train=max_train)
    return spec if max_test is None else spec.replace(max_test=max_test)


def _with_epochs(spec: RunSpec, epochs: int) -> RunSpec:
    if spec.start_from is not None:
        first = _with_epochs(spec.start_from, epochs)
        return spec.replace(start_from=first, epochs=min(spec.epochs, epochs))
    if epochs == spec.epochs:
        return spec
    stretched, loss = dict(spec.schedule_options), dict(spec.loss_options)
    if "every" in stretched:  # a step schedule keeps its number of steps
        stretched["every"] = max(1, round(stretched["every"] * epochs / spec.epochs))
    watched = tuple(dict.fromkeys(max(1, round(e * epochs / spec.epochs)) for e in spec.features_at))
    if "reweight_from" in loss:
        loss["reweight_from"] = round(loss["reweight_from"] * epochs / spec.epochs)
    options = {"schedule_options": tuple(stretched.items()), "loss_options": tuple(loss.items())}
    return spec.replace(epochs=epochs, features_at=watched, **options)
