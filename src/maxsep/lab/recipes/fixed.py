"""Figure "should the matrix be fixed?": fixed, learnable, an extra layer, and the simplex on the features.

The paper does not name the network of this figure; it compares with Table 1, so the ResNet is taken.
"""

from maxsep.lab.recipes.protocol import RESNET, RESNET_PAIR, RESNET_RADIUS, cifar, seeds, subset_seed
from maxsep.lab.recipes.recipe import Arm, Block, Recipe

RECIPE = Recipe(
    name="fixed",
    title="Should the matrix be fixed?",
    source="Figure on fixed against learnable separation",
    question="Is a fixed matrix better than the same matrix trained on, or than one more trained layer?",
    blocks=(
        Block(
            settings=cifar(RESNET),
            arms=(
                *RESNET_PAIR,
                Arm(head="learnable_matrix", radius=RESNET_RADIUS),
                Arm(head="extra_layer"),
                Arm(head="etf"),
            ),
        ),
    ),
    seeds=seeds(3),
    subset_seed=subset_seed,
)
