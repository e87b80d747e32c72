"""Table on LDAM and MiSLAS: two methods for long tails, each with and without the matrix, on the true ResNet-32.

The settings are those of the two methods' own scripts. Three things are decided here:

- The paper does not say where the matrix meets LDAM's cosine layer: both readings are run (`cosine_maxsep`, the
  smaller edit, and `maxsep_cosine`). The second is, under SGD, a plain head with centred and normalised logits, so
  `centred_cosine` is its control.
- The paper changed the largest margin from 0.5 to 0.4 for the matrix alone: here every head has both.
- The second stage of MiSLAS starts from the last epoch of the first; the scripts take the epoch that is best on test
  data. Linear heads start as nn.Linear does, where the scripts draw Kaiming-normal weights.
"""

from __future__ import annotations

from maxsep.lab.recipes.protocol import seeds
from maxsep.lab.recipes.recipe import Arm, Block, Recipe
from maxsep.lab.spec import Options, RunSpec, options

IMBALANCES = (0.1, 0.02, 0.01)
MARGINS = (0.5, 0.4)
HEADS = ("cosine", "cosine_maxsep", "centred_cosine", "maxsep_cosine")
DEFERRED = {"reweight": "effective", "reweight_from": 160}
_PAIR = 0.1
"""At radius 1 the control of the matrix is the plain head itself: a pair at another radius is added."""

_SHARED = RunSpec(
    dataset="cifar100",
    augmentation="crop_flip",
    normalisation="cifar10",
    network="resnet32",
    head="plain",
    epochs=200,
    batch_size=128,
    optimiser="sgd",
    learning_rate=0.1,
    momentum=0.9,
    weight_decay=2e-4,
    evaluate_every=1,  # the scripts report the best epoch: both it and the last are recorded
)
_LDAM = _SHARED.replace(schedule="ldam")
_STAGE1 = _SHARED.replace(schedule="mislas", mixup=1.0)

_STAGE2: dict[float, tuple[float, Options]] = {
    0.1: (0.1, options(smooth_head=0.2, smooth_tail=0.0)),
    0.02: (0.1, options(smooth_head=0.3, smooth_tail=0.0)),
    0.01: (0.2, options(smooth_head=0.4, smooth_tail=0.1)),
}
"""By imbalance: the head's rate over that of the logit factors, and the smoothing of labels."""


def _ldam_arms() -> tuple[Arm, ...]:
    return tuple(
        Arm(head=head, loss="ldam", loss_options=options(max_margin=margin, **weights))
        for weights in ({}, DEFERRED)
        for margin in MARGINS
        for head in HEADS
    )


def _mislas_arms(loss: str = "cross_entropy", loss_options: Options = ()) -> tuple[Arm, ...]:
    heads = (("plain", 1.0), ("maxsep", 1.0), ("scaled", _PAIR), ("maxsep", _PAIR))
    return tuple(Arm(head=head, radius=radius, loss=loss, loss_options=loss_options) for head, radius in heads)


def _second_stage(imbalance: float) -> Block:
    head_rate, smoothing = _STAGE2[imbalance]
    first = _STAGE1.replace(imbalance=imbalance)
    setting = first.replace(
        start_from=first,
        mixup=0.0,
        sampler="class_balanced",
        epochs=10,
        schedule="cosine",
        backbone="frozen_shifted_norm",
        logit_scaling=True,
        head_rate=head_rate,
    )
    return Block(settings=(setting,), arms=_mislas_arms("label_aware_smoothing", smoothing))


def _spread(setting: RunSpec) -> tuple[RunSpec, ...]:
    return tuple(setting.replace(imbalance=imbalance) for imbalance in IMBALANCES)


RECIPE = Recipe(
    name="longtail",
    title="Methods for long tails, with and without the matrix",
    source="Table on long-tailed methods (LDAM and MiSLAS)",
    question="Does the matrix still help where a method for long tails is at work?",
    blocks=(
        Block(settings=_spread(_LDAM), arms=_ldam_arms()),
        Block(settings=_spread(_STAGE1), arms=_mislas_arms()),
        *map(_second_stage, IMBALANCES),
    ),
    seeds=seeds(3),
)
