"""Comparison with class vectors found by optimisation (Mettes et al.).

The paper does not say how its row was trained. First the original squared cosine loss in Table 1's setting; then
cross-entropy on dot products at the ResNet's radius, which differs from `maxsep` in the vectors alone.
"""

from maxsep.lab.recipes.protocol import RESNET, RESNET_PAIR, RESNET_RADIUS, cifar, seeds, subset_seed
from maxsep.lab.recipes.recipe import Arm, Block, Recipe
from maxsep.lab.spec import options

RECIPE = Recipe(
    name="prototypes",
    title="Closed form against optimised class vectors",
    source="Table on optimised prototypes (Mettes et al.)",
    question="Is the closed form better than class vectors that were pushed apart by gradient descent?",
    blocks=(
        Block(
            settings=cifar(RESNET, imbalances=(1.0, 0.1, 0.01)),
            arms=(
                *RESNET_PAIR,
                Arm(head="hpn", loss="squared_cosine"),
                Arm(head="hpn", radius=RESNET_RADIUS, head_options=options(normalise=False)),
            ),
        ),
    ),
    seeds=seeds(3),
    subset_seed=subset_seed,
)
