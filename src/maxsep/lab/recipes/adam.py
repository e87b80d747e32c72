"""Question 4 of docs/plan.md: does the matrix, or the order of its columns, change anything under AdamW?

The theorem that makes the matrix a plain layer holds for SGD alone. `control` has no matrix; *rare last* and *rare
first* assign its columns to the classes by falling and by rising count; *rotated* multiplies a fixed random orthogonal
matrix in. Every method takes the best of three rates on held-out data of its cell, and is then trained on all data.

Fine-tuning starts from a file of ImageNet weights (docs/guide/command_line.md) and runs all of its rates: images scaled
to 128 pixels, and what the plan leaves open as in `fine_tuning`.
"""

from __future__ import annotations

from collections.abc import Sequence

from maxsep.lab.recipes.cifar import CONVNET, SGD, cifar, seeds, subset_seed
from maxsep.lab.recipes.fine_tuning import USUAL
from maxsep.lab.recipes.recipe import Arm, Block, Recipe
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec, options

RATES = (3e-4, 1e-3, 3e-3)
HELD_OUT = 0.2
CONTROL = Arm(head="control")
RARE_LAST = Arm(head="maxsep", changes=options(class_order="frequency"))
RARE_FIRST = Arm(head="maxsep", changes=options(class_order="reversed_frequency"))
ROTATED = Arm(head="maxsep_rotated", head_options=options(rotation=0))

_ADAMW = {"optimiser": "adamw", "weight_decay": 0.05, "schedule": "cosine"}
_CONVNET = CONVNET.replace(schedule_options=(), **_ADAMW)
_VIT = SGD.replace(network="vit", epochs=100, schedule_options=options(warmup=5), **_ADAMW)
LITE0 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""SHA-256 of the ImageNet weights of EfficientNet-Lite0, efficientnet-lite0-57934424.pth."""
_START = {"network": "timm/tf_efficientnet_lite0", "weights": LITE0, "image_size": 128}
TUNED = RunSpec(dataset="cifar100", imbalance=0.01, augmentation="crop_flip", batch_size=128).replace(
    **_START, **USUAL | {"weight_decay": 0.05}
)
TUNED_RATES = (1e-4, 3e-4, 1e-3)
CELLS = tuple(cell for network in (_CONVNET, _VIT) for cell in cifar(network, ("cifar10",), (0.01, 0.1)))


def choose_rates(runs: Sequence[Run]) -> dict[RunSpec, float]:
    """Return the rate with the best balanced accuracy on held-out data for every spec (its rate set to 1)."""
    scores: dict[RunSpec, dict[float, float]] = {}
    for run in runs:
        if run.spec.validation > 0:
            same = scores.setdefault(run.spec.replace(learning_rate=1.0), {})
            same[run.spec.learning_rate] = run.metrics["balanced"]
    return {spec: max(same, key=lambda rate: same[rate]) for spec, same in scores.items() if set(same) >= set(RATES)}


def train_chosen(runs: Sequence[Run], seeds: Sequence[int]) -> list[RunSpec]:
    """List the runs at the rates that held-out data chose, and `control` and rare last with logit adjustment."""
    specs = []
    for seed in seeds:
        for held_out, rate in choose_rates(runs).items():
            spec = held_out.replace(learning_rate=rate, validation=0.0, seed=seed)
            spec = spec.replace(subset_seed=subset_seed(spec))
            specs.append(spec)
            if CONTROL.matches(spec) or RARE_LAST.matches(spec):
                specs.append(spec.replace(loss="logit_adjusted"))
    return specs


ADAM = Recipe(
    name="adam",
    about="Question 4 of docs/plan.md: "
    "does the matrix itself change anything under AdamW, and does the order of the classes decide it?",
    blocks=(
        Block(
            settings=tuple(cell.replace(validation=HELD_OUT, learning_rate=rate) for cell in CELLS for rate in RATES),
            arms=(CONTROL, RARE_LAST, RARE_FIRST, ROTATED),
            seeds=seeds(1),
        ),
        Block(
            settings=tuple(TUNED.replace(learning_rate=rate) for rate in TUNED_RATES),
            arms=(CONTROL, RARE_LAST, RARE_FIRST),
            seeds=seeds(3),
        ),
    ),
    seeds=seeds(5),
    subset_seed=subset_seed,
    follow_up=train_chosen,
)
