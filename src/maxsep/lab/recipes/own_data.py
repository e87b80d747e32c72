"""One's own data: the matrix, its control and the plain head on whatever somebody wants to know about.

No table of the paper. The radii are fixed beforehand, so that nothing is chosen on test data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from maxsep.lab.engine.names import check_names
from maxsep.lab.recipes.recipe import Arm, Block, Recipe
from maxsep.lab.spec import RATES, RunSpec

RADII = (1.0, 0.1)
"""The paper's: 1 leaves the scale of the logits as it is, 0.1 is that of its long-tailed ResNets."""
LOSSES = ("cross_entropy", "logit_adjusted", "balanced_softmax", "label_aware_smoothing")
"""Losses for logits of any size, which every head here gives."""
_SAME = ("balanced_softmax", "logit_adjusted")
"""Losses that are one function, log-priors added to the logits: tau is 1 here."""
_UPRIGHT = ("digits", "svhn")
"""Numbers, whose mirror images are none."""

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
    radii: Sequence[float] = RADII,
    losses: Sequence[str] = LOSSES[:1],
    optimiser: str = "sgd",
    learning_rate: float | None = None,
    augmentation: str | None = None,
    batch_size: int = 128,
    imbalance: float = 1.0,
) -> Recipe:
    """Build the comparison of plain, scaled and maxsep on a dataset.

    Each loss has a plain head, and at every radius the matrix and its control, the plain head times that radius.

    Args:
        dataset: As `load` reads it, such as `digits` or `folder:PATH`.
        network: By default `mlp` for the digits, `resnet32` for everything else.
        epochs: Of every run.
        seeds: How many, from 0.
        radii: Of the matrix and its controls; a radius that is named twice is run once.
        losses: Of `LOSSES`; of balanced_softmax and logit_adjusted, which are the same function at tau 1, only one.
        optimiser: `sgd` or `adamw`.
        learning_rate: By default that of `RATES`.
        augmentation: By default `crop_flip`, for digits and house numbers `none`.
        batch_size: Images of a training step.
        imbalance: Cuts a long tail into the training data; 1 leaves them as they are.

    >>> [f"{spec.head} {spec.radius:g}" for spec in own_data("digits", seeds=1).specs()]
    ['plain 1', 'maxsep 1', 'scaled 0.1', 'maxsep 0.1']
    """
    if not radii:
        raise ValueError("a comparison needs a radius, got none. Name one or more, such as 1 and 0.1.")
    _check_losses(losses)
    if learning_rate is not None and not 0 < learning_rate < math.inf:
        raise ValueError(f"the learning rate must be a positive finite number, got {learning_rate:g}.")
    setting = RunSpec(
        dataset=dataset, network=network or ("mlp" if dataset == "digits" else "resnet32"), head="plain",
        epochs=epochs, batch_size=batch_size, imbalance=imbalance, optimiser=optimiser,
        learning_rate=RATES.get(optimiser, RATES["sgd"]) if learning_rate is None else learning_rate,
        augmentation=augmentation or ("none" if dataset in _UPRIGHT else "crop_flip"),
    )  # fmt: skip
    check_names(setting)
    return Recipe(
        name="own data",
        title="The matrix on data of one's own",
        source="not in the paper",
        question="Does the matrix help on these data, and by more than its radius does?",
        blocks=(Block(settings=(setting,), arms=tuple(_arms(losses, radii))),),
        seeds=tuple(range(seeds)),
    )


def _check_losses(losses: Sequence[str]) -> None:
    if unknown := [loss for loss in losses if loss not in LOSSES]:
        cosines = (
            " ldam takes cosines: train the heads cosine, cosine_maxsep, centred_cosine and maxsep_cosine with maxsep "
            "train --loss ldam, and read them beside each other with maxsep report."
        )
        raise ValueError(
            f"unknown loss {unknown[0]!r} for a comparison. Known: {', '.join(LOSSES)}; they take the logits of every "
            f"head that is compared.{cosines if unknown[0] == 'ldam' else ''}"
        )
    if set(_SAME) <= set(losses):
        raise ValueError(
            f"{' and '.join(_SAME)} (tau 1) are the same function, got both: train one of them, such as --loss "
            f"{','.join(loss for loss in dict.fromkeys(losses) if loss != _SAME[0])}."
        )


def _arms(losses: Sequence[str], radii: Sequence[float]) -> list[Arm]:
    arms = []
    for loss in dict.fromkeys(losses):
        arms.append(Arm(head="plain", loss=loss))
        for radius in dict.fromkeys(radii):
            arms += [Arm(head=head, radius=radius, loss=loss) for head in ("scaled", "maxsep")]
    return arms
