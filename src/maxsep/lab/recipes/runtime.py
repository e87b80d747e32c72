"""Training and inference time with and without the matrix: short runs, made to be timed and not to be accurate."""

from maxsep.lab.recipes.after import TimeInference
from maxsep.lab.recipes.protocol import CONVNET, RESNET, RESNET_ARMS, cifar, seeds
from maxsep.lab.recipes.recipe import Block, Recipe

_TIMED = tuple(
    setting.replace(epochs=5, evaluate_every=5, schedule="constant", schedule_options=())
    for network in (RESNET, CONVNET)
    for setting in cifar(network, imbalances=(1.0,))
)

RECIPE = Recipe(
    name="runtime",
    title="The cost of the matrix",
    source="Remark on run time",
    question="Does the matrix cost measurable time in training or inference?",
    blocks=(Block(settings=_TIMED, arms=RESNET_ARMS),),
    seeds=seeds(3),
    after=TimeInference(),
)
