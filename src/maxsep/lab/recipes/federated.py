"""Not in the paper: do fixed class vectors help federated averaging, when clients see different classes?

Clients that have a few classes each pull a trained classifier in different directions: each learns that the others'
classes do not occur. Class vectors that are fixed beforehand and the same for all cannot drift. Twenty clients share
the digits by a Dirichlet distribution of concentration 0.1; all take part in every round.

- `maxsep` has a trained layer before its matrix; its control is `scaled` at the same radius.
- `etf` has the simplex in fixed directions of the features (`rotation`), with dot products and with cosines; nothing
  behind the features is trained.
- `orthonormal` is its control: fixed too, but at right angles.
"""

from __future__ import annotations

from maxsep.lab.recipes.recipe import Arm, Block, Recipe
from maxsep.lab.spec import RunSpec, options

_COSINES = options(normalise=True, temperature=0.1)

RECIPE = Recipe(
    name="federated",
    title="Clients that see different classes",
    source="not in the paper",
    question="Do fixed class vectors help federated averaging, when clients see different classes?",
    blocks=(
        Block(
            settings=(
                RunSpec(
                    dataset="digits",
                    network="mlp",
                    head="plain",
                    clients=20,
                    concentration=0.1,
                    local_epochs=5,
                    epochs=40,
                    batch_size=32,
                    learning_rate=0.05,
                    momentum=0.9,
                    weight_decay=5e-4,
                    schedule="constant",
                    evaluate_every=1,
                ),
            ),
            arms=(
                Arm(head="plain"),
                Arm(head="scaled", radius=0.3),
                Arm(head="maxsep", radius=0.3),
                Arm(head="maxsep"),
                Arm(head="orthonormal"),
                Arm(head="orthonormal", head_options=_COSINES),
                Arm(head="etf", head_options=options(rotation=0)),
                Arm(head="etf", head_options=(*_COSINES, *options(rotation=0))),
            ),
        ),
    ),
    seeds=tuple(range(5)),
)
