"""Table on out-of-distribution detection: CIFAR-100 against SVHN, Places and, nearer, CIFAR-10.

The classifier is that of the released script behind the energy benchmark. Its seed is 1. The paper gives neither its
radius nor its optimiser's settings with the matrix: radius 1 is the default elsewhere, and the pair at 0.1 shows what
the radius does. "Plain, centred" is no run of its own: the mean logit is taken off a trained plain head.
"""

from __future__ import annotations

from maxsep.lab.ood import OODProtocol
from maxsep.lab.recipes.after import Detect
from maxsep.lab.recipes.recipe import Arm, Block, Recipe
from maxsep.lab.spec import RunSpec

OUTLIERS = ("svhn", "places", "cifar10")
_PAIR = 0.1
ARMS = (
    Arm(head="plain"),
    Arm(head="maxsep"),
    # at radius 1 the control is the plain head itself: a pair at another radius is added
    Arm(head="scaled", radius=_PAIR),
    Arm(head="maxsep", radius=_PAIR),
)

_SGD = RunSpec(
    dataset="cifar100",
    augmentation="crop_flip",
    normalisation="cifar10_255",
    network="wrn40_2",
    head="plain",
    epochs=100,
    batch_size=128,
    optimiser="sgd",
    learning_rate=0.1,
    momentum=0.9,
    nesterov=True,
    weight_decay=5e-4,
    schedule="cosine_steps",
    evaluate_every=10,
)
_ADAMW = _SGD.replace(optimiser="adamw", learning_rate=1e-3, nesterov=False, weight_decay=0.05)
"""Not in the paper: under AdamW the matrix is no longer a plain head with another step size."""

RECIPE = Recipe(
    name="ood",
    title="Out-of-distribution detection",
    source="Table on out-of-distribution detection",
    question="Does a network trained with the matrix tell images from outside its classes better?",
    blocks=(Block(settings=(_SGD,), arms=ARMS), Block(settings=(_ADAMW,), arms=ARMS)),
    seeds=(1, 2, 3),
    after=Detect(OODProtocol(outliers=OUTLIERS)),
)
