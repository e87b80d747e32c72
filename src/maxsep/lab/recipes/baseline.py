"""Question 2 of docs/plan.md: what brings the gain on CIFAR-10, the matrix or a plain baseline that starts unstable?

The matrix at radius r is, under SGD, a plain head with its rate times k, its decay over k and its start times sqrt(k),
where k = r^2 C / (C - 1): each change is made alone, beside remedies against an unstable start.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from maxsep.lab.recipes.cifar import CONTROL, PLAIN, RADIUS, RESNET, RESNET_ARMS, cifar, seeds, subset_seed
from maxsep.lab.recipes.recipe import Arm, Block, Recipe
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec, options

K = RADIUS**2 * 10 / 9
_WARMUP = options(schedule_options=options(warmup=5))
CHANGES = {
    "warm-up": Arm(head="plain", changes=_WARMUP),
    "clipping": Arm(head="plain", changes=options(clip_norm=1.0)),
    "rate 0.03": Arm(head="plain", changes=options(learning_rate=0.03)),
    "rotation": Arm(head="plain", changes=options(augmentation="crop_flip_rotate")),
    "head's rate": Arm(head="plain", changes=options(head_rate=K)),
    "head's decay": Arm(head="plain", changes=options(head_decay=1 / K)),
    "head's start": Arm(head="plain", changes=options(head_start=K**0.5)),
}
"""Plain heads with one change each."""
WARM_MATRIX = Arm(head="maxsep", radius=RADIUS, changes=_WARMUP)
_STEEP, _CONFIRMATION = cifar(RESNET, ("cifar10",), (0.01, 0.1))


def confirm(runs: Sequence[Run], seeds: Sequence[int]) -> list[RunSpec]:
    """List the runs at imbalance 0.1 of the change with the highest mean accuracy at 0.01.

    Nothing is chosen until every change is finished with every seed.
    """
    steep = [run for run in runs if run.spec.imbalance == _STEEP.imbalance and run.spec.seed in seeds]
    scores: dict[str, list[float]] = {
        name: [run.metrics["top1"] for run in steep if arm.matches(run.spec)] for name, arm in CHANGES.items()
    }
    if any(len(values) < len(seeds) for values in scores.values()):
        return []
    best = CHANGES[max(scores, key=lambda name: statistics.mean(scores[name]))]
    setting = next(run.spec for run in steep if best.matches(run.spec))
    confirmed = [setting.replace(imbalance=_CONFIRMATION.imbalance, seed=seed) for seed in seeds]
    return [spec.replace(subset_seed=subset_seed(spec)) for spec in confirmed]


BASELINE = Recipe(
    name="baseline",
    about="Question 2 of docs/plan.md: "
    "what brings the gain on CIFAR-10: the matrix, its radius, or a plain baseline that starts unstable?",
    blocks=(
        Block(settings=(_STEEP,), arms=(*RESNET_ARMS, *CHANGES.values(), CONTROL, WARM_MATRIX)),
        Block(settings=(_CONFIRMATION,), arms=(PLAIN, CHANGES["warm-up"])),
    ),
    seeds=seeds(3),
    subset_seed=subset_seed,
    follow_up=confirm,
)

ARITHMETIC = Recipe(  # run from Python (docs/reproducing.md): neither compilation nor TF32 is part of a spec
    name="arithmetic",
    about="Question 2 of docs/plan.md: does the plain baseline start as unstably in float32 as in bfloat16?",
    blocks=(Block(settings=(_STEEP,), arms=(Arm(head="plain", changes=options(precision="32-true", stop_after=40)),)),),
    seeds=seeds(3),
)
