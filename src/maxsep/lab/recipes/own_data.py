"""One's own data: the matrix, its control and the plain head on whatever somebody wants to know about.

No table of the paper. The radii are fixed beforehand, so that nothing is chosen on test data. The loss `ldam` takes a
margin off cosines: it has the heads that compare directions, in place of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from maxsep.lab.data import Dataset
from maxsep.lab.engine.train import check_names
from maxsep.lab.recipes.longtail import HEADS as COSINES
from maxsep.lab.recipes.recipe import Arm, Block, Recipe
from maxsep.lab.spec import RATES, Options, RunSpec

RADII = (1.0, 0.1)
"""The paper's: 1 leaves the scale of the logits as it is, 0.1 is that of its long-tailed ResNets."""
LOSSES = ("cross_entropy", "logit_adjusted", "balanced_softmax", "label_aware_smoothing", "ldam")
"""All but the last are for logits of any size."""
_SAME = ("balanced_softmax", "logit_adjusted")
"""Losses that are one function, log-priors added to the logits: tau is 1 here."""

_STEPS = 32
"""Steps that an epoch should have at least, where the images suffice for it."""


def usual_batch(num_train: int) -> int:
    """Choose a power of two from 16 to 128 that leaves an epoch of few images more than a step or two.

    >>> [usual_batch(images) for images in (100, 1198, 3000, 50000)]
    [16, 32, 64, 128]
    """
    return next((size for size in (128, 64, 32) if num_train >= size * _STEPS), 16)


def own_data(
    dataset: str,
    *,
    network: str | None = None,
    epochs: int = 30,
    seeds: int = 3,
    radii: Sequence[float] | None = None,
    losses: Sequence[str] = LOSSES[:1],
    loss_options: Options = (),
    optimiser: str = "sgd",
    learning_rate: float | None = None,
    augmentation: str | None = None,
    batch_size: int = 128,
    imbalance: float = 1.0,
) -> Recipe:
    """Build the comparison of plain, scaled and maxsep on a dataset.

    Each loss has a plain head, and at every radius the matrix and its control, the plain head times that radius. With
    `ldam`, which has a scale of its own, these are both ways to put the matrix on cosines, each behind its control.

    Args:
        dataset: As `Dataset.parse` reads it, such as `digits` or `folder:PATH`.
        network: By default `Dataset.default_network`.
        epochs: Of every run.
        seeds: How many, from 0.
        radii: Of the matrix and its controls, by default `RADII`; a radius that is named twice is run once.
        losses: Of `LOSSES`; of balanced_softmax and logit_adjusted, which are the same function at tau 1, only one.
        loss_options: Of `ldam`, such as `reweight_from`: the epoch, counted from 0, from which rare classes weigh more.
        optimiser: `sgd` or `adamw`.
        learning_rate: By default that of `RATES`.
        augmentation: By default `Dataset.default_augmentation`.
        batch_size: Images of a training step.
        imbalance: Cuts a long tail into the training data; 1 leaves them as they are.

    >>> [f"{spec.head} {spec.radius:g}" for spec in own_data("digits", seeds=1).specs()]
    ['plain 1', 'maxsep 1', 'scaled 0.1', 'maxsep 0.1']
    >>> [spec.head for spec in own_data("digits", seeds=1, losses=["ldam"]).specs()]
    ['cosine', 'cosine_maxsep', 'centred_cosine', 'maxsep_cosine']
    """
    _check_losses(losses, loss_options)
    _check_radii(radii, losses)
    known = Dataset.parse(dataset)
    setting = RunSpec(
        dataset=dataset, network=network or known.default_network, head="plain",
        epochs=epochs, batch_size=batch_size, imbalance=imbalance, optimiser=optimiser,
        learning_rate=_rate(optimiser, learning_rate),
        augmentation=augmentation or known.default_augmentation,
    )  # fmt: skip
    check_names(setting)
    arms = _arms(losses, RADII if radii is None else radii, loss_options)
    return Recipe(
        name="own data",
        title="The matrix on data of one's own",
        source="not in the paper",
        question="Does the matrix help on these data, and by more than its control does?",
        blocks=(Block(settings=(setting,), arms=tuple(arms)),),
        seeds=tuple(range(seeds)),
    )


def _rate(optimiser: str, given: float | None) -> float:
    if given is None:
        return RATES.get(optimiser, RATES["sgd"])  # an unknown optimiser is refused with the other names
    if not 0 < given < math.inf:
        raise ValueError(f"the learning rate must be a positive finite number, got {given:g}.")
    return given


def _check_losses(losses: Sequence[str], loss_options: Options) -> None:
    if unknown := [loss for loss in losses if loss not in LOSSES]:
        raise ValueError(f"unknown loss {unknown[0]!r} for a comparison. Known: {', '.join(LOSSES)}.")
    if set(_SAME) <= set(losses):
        raise ValueError(
            f"{' and '.join(_SAME)} (tau 1) are the same function, got both: train one of them, such as --loss "
            f"{','.join(loss for loss in dict.fromkeys(losses) if loss != _SAME[0])}."
        )
    if loss_options and "ldam" not in losses:
        raise ValueError(
            f"in a comparison ldam alone takes options, got {', '.join(name for name, _ in loss_options)} with "
            f"{', '.join(losses)}. Leave --loss-option out, or train with maxsep train and read with maxsep report."
        )


def _check_radii(radii: Sequence[float] | None, losses: Sequence[str]) -> None:
    if radii is None:
        return
    if not radii:
        raise ValueError("a comparison needs a radius, got none. Name one or more, such as 1 and 0.1.")
    if set(losses) == {"ldam"} and set(radii) != {1.0}:
        raise ValueError(
            f"ldam multiplies cosines by a scale of its own, and its heads have radius 1, got radius "
            f"{', '.join(f'{radius:g}' for radius in radii)}. Leave --radius out, or name --loss-option scale=20."
        )


def _arms(losses: Sequence[str], radii: Sequence[float], loss_options: Options) -> list[Arm]:
    arms = []
    for loss in dict.fromkeys(losses):
        if loss == "ldam":
            arms += [Arm(head=head, loss=loss, loss_options=loss_options) for head in COSINES]
            continue
        arms.append(Arm(head="plain", loss=loss))
        for radius in dict.fromkeys(radii):
            arms += [Arm(head=head, radius=radius, loss=loss) for head in ("scaled", "maxsep")]
    return arms
