"""Comparisons on any dataset: `maxsep compare` on one's own pictures, and the demo on long-tailed digits.

The radii are fixed beforehand, so that nothing is chosen on test data. The loss `ldam` subtracts a margin from cosines:
it has the heads that compare directions in place of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from maxsep.lab.data import Dataset
from maxsep.lab.engine.train import check_names
from maxsep.lab.recipes.cifar import SGD
from maxsep.lab.recipes.fine_tuning import RATES as FINE_TUNING_RATES
from maxsep.lab.recipes.long_tail import COSINE_HEADS
from maxsep.lab.recipes.recipe import Arm, Block, Recipe
from maxsep.lab.spec import RATES, Options, RunSpec

RADII = (1.0, 0.1)
"""The paper's: 1 leaves the scale of the logits as it is, 0.1 is that of its long-tailed ResNets."""
LOSSES = ("cross_entropy", "logit_adjusted", "balanced_softmax", "label_aware_smoothing", "ldam")
"""All but the last are for logits of any size."""


def usual_batch(num_train: int | None) -> int:
    """Choose the largest of 128, 64 and 32 images that leaves an epoch at least 32 steps, else 16, also for None."""
    return next((size for size in (128, 64, 32) if (num_train or 1) >= 32 * size), 16)


def compare(
    dataset: str,
    *,
    network: str | None = None,
    start: Mapping[str, Any] | None = None,
    epochs: int | None = None,
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
    """Build the comparison of the plain head, the control and the matrix on a dataset such as `folder:PATH`.

    Each of the `losses` has a plain head, and at every radius the matrix and its control. With `ldam`, which has a
    scale of its own and alone takes `loss_options`, these are both ways to put the matrix on cosines, each after its
    control. Seeds count from 0; an `imbalance` below 1 cuts a long tail into the training data. Defaults that depend on
    the data are those of `Dataset`, the default learning rate is that of `RATES`. `start` are the fields of
    `fine_tuning`, with pretrained weights.

    >>> [f"{spec.head} {spec.radius:g}" for spec in compare("digits", seeds=1, radii=[0.1]).specs()]
    ['plain 1', 'control 0.1', 'maxsep 0.1']
    >>> [spec.head for spec in compare("digits", seeds=1, losses=["ldam"]).specs()]
    ['cosine', 'cosine_maxsep', 'centred_cosine', 'maxsep_cosine']
    """
    _check(radii, losses, loss_options)
    start = start or {}
    rates = FINE_TUNING_RATES if start.get("weights") else RATES
    rate = rates.get(optimiser, RATES["sgd"]) if learning_rate is None else learning_rate
    if not 0 < rate < math.inf:
        raise ValueError(f"the learning rate must be a positive finite number, got {rate:g}.")
    known = Dataset.parse(dataset)
    fields = {"dataset": dataset, "network": network or known.default_network, "epochs": 30, **start}
    fields |= {"evaluate_every": 0} if known.is_own else {}
    fields |= {} if epochs is None else {"epochs": epochs}
    fields |= {"imbalance": imbalance, "batch_size": batch_size, "optimiser": optimiser, "learning_rate": rate}
    setting = RunSpec(**fields | {"head": "plain", "augmentation": augmentation or known.default_augmentation})
    check_names(setting)
    return Recipe(
        name="compare",
        about="Not in the paper: does the matrix help on these data, and by more than its control does?",
        blocks=(Block(settings=(setting,), arms=_arms(losses, radii or RADII, loss_options)),),
        seeds=tuple(range(seeds)),
    )


def _check(radii: Sequence[float] | None, losses: Sequence[str], loss_options: Options) -> None:
    if unknown := [loss for loss in losses if loss not in LOSSES]:
        raise ValueError(f"unknown loss {unknown[0]!r} for a comparison. Known: {', '.join(LOSSES)}.")
    if {"balanced_softmax", "logit_adjusted"} <= set(losses):
        raise ValueError("balanced_softmax and logit_adjusted are the same function at tau 1, got both.")
    if loss_options and "ldam" not in losses:
        names = ", ".join(name for name, _ in loss_options)
        raise ValueError(f"only ldam takes loss options in a comparison, got {names} with {', '.join(losses)}.")
    if radii is not None and not radii:
        raise ValueError("radii must have at least one radius, got none.")
    if radii is not None and set(losses) == {"ldam"} and set(radii) != {1.0}:
        raise ValueError(f"the heads of ldam have radius 1, got {', '.join(f'{radius:g}' for radius in radii)}.")


def _arms(losses: Sequence[str], radii: Sequence[float], loss_options: Options = ()) -> tuple[Arm, ...]:
    arms = []
    for loss in dict.fromkeys(losses):
        if loss == "ldam":
            arms += [Arm(head=head, loss=loss, loss_options=loss_options) for head in COSINE_HEADS]
        else:
            pairs = [(head, radius) for radius in dict.fromkeys(radii) for head in ("control", "maxsep")]
            arms += [Arm(head=head, radius=radius, loss=loss) for head, radius in [("plain", 1.0), *pairs]]
    return tuple(arms)


_TAILED_DIGITS = SGD.replace(
    dataset="digits", imbalance=0.02, network="mlp", epochs=40, batch_size=32, evaluate_every=5
)
DEMO = Recipe(
    name="demo",
    about="Not in the paper: what do the matrix and its radius do on a small long-tailed problem?",
    blocks=(Block(settings=(_TAILED_DIGITS,), arms=_arms(["cross_entropy"], RADII)),),
    seeds=(0, 1, 2),
)
