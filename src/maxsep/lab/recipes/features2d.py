"""Supplementary figure of two-dimensional features: where known and unknown classes lie, early and late in training.

The paper names neither the split nor the schedule: the first split of CIFAR10, and one cosine without restarts.
"""

from __future__ import annotations

from maxsep.lab.recipes.openset import SETTING
from maxsep.lab.recipes.recipe import Arm, Block, Recipe
from maxsep.lab.spec import options

RECIPE = Recipe(
    name="features2d",
    title="Features in the plane",
    source="Supplementary material, two-dimensional features",
    question="Do features of unknown classes become shorter than those of known ones?",
    blocks=(
        Block(
            settings=(
                SETTING.replace(
                    network_options=options(feature_size=2),
                    epochs=200,
                    schedule_options=options(cycles=1),
                    features_at=(15, 200),
                ),
            ),
            arms=(Arm(head="plain"), Arm(head="maxsep")),
        ),
    ),
    seeds=(0,),
)
