"""Not in the paper: can embeddings of models that were trained apart be compared, if classes have fixed coordinates?

Whoever searches by embeddings has to embed a whole gallery again when the model changes, because another training gives
other features. Class vectors that are fixed beforehand and the same for all could end that. Pairs of runs that differ
in their seed retrieve test images from each other, of the classes that were trained on and of others.

- `etf` has the simplex in fixed directions of the features (`rotation`), with dot products and with cosines.
- `orthonormal` is its control: fixed too, but at right angles.
- The logits of a plain head have coordinates as well, one for each class; and whoever has both models can turn the
  features of one onto those of the other. These are the controls of everything fixed.
"""

from __future__ import annotations

from maxsep.lab.recipes.after import Retrieve
from maxsep.lab.recipes.recipe import Arm, Block, Recipe
from maxsep.lab.spec import RunSpec, options

_COSINES = options(normalise=True, temperature=0.1)
_ARMS = (
    Arm(head="plain"),
    Arm(head="maxsep"),
    Arm(head="orthonormal"),
    Arm(head="orthonormal", head_options=_COSINES),
    Arm(head="etf", head_options=options(rotation=0)),
    Arm(head="etf", head_options=(*_COSINES, *options(rotation=0))),
)
_SHARED = RunSpec(head="plain", optimiser="sgd", learning_rate=0.1, momentum=0.9, weight_decay=5e-4, schedule="cosine")

RECIPE = Recipe(
    name="compatible",
    title="Embeddings of models that were trained apart",
    source="not in the paper",
    question="Can a new model search in the gallery of an old one, if classes have fixed coordinates?",
    blocks=(
        Block(
            settings=tuple(
                _SHARED.replace(dataset=f"osr_digits_{split}", network="mlp", epochs=40, batch_size=32)
                for split in range(2)
            ),
            arms=_ARMS,
        ),
        Block(
            settings=(
                _SHARED.replace(
                    dataset="osr_cifar10_0",
                    network="resnet32",
                    augmentation="crop_flip",
                    normalisation="cifar10",
                    epochs=100,
                    batch_size=128,
                ),
            ),
            arms=_ARMS,
        ),
    ),
    seeds=tuple(range(10)),
    after=Retrieve(),
)
