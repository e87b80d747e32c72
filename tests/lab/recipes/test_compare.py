"""The comparison on one's own data: which runs follow from the options."""

import pytest

from maxsep.lab.recipes.compare import compare, usual_batch
from maxsep.lab.spec import options


def methods(recipe):
    return [(spec.head, spec.radius, spec.loss) for spec in recipe.specs(1)]


def test_by_default_a_pair_at_each_of_two_radii():
    specs = compare("digits").specs()
    heads = [("plain", 1.0), ("control", 1.0), ("maxsep", 1.0), ("control", 0.1), ("maxsep", 0.1)]
    assert [(spec.head, spec.radius, spec.seed) for spec in specs] == [(*h, seed) for seed in range(3) for h in heads]
    same = {spec.replace(head="plain", radius=1.0, seed=0) for spec in specs}
    assert len(same) == 1, "nothing but head, radius and seed differs"


def test_every_loss_has_a_plain_head_and_controls_of_its_own():
    heads = [("plain", 1.0), ("control", 0.5), ("maxsep", 0.5)]
    losses = ["cross_entropy", "logit_adjusted"]
    assert methods(compare("digits", losses=losses, radii=[0.5, 0.5])) == [(*h, loss) for loss in losses for h in heads]


def test_radii_and_options_are_for_the_losses_that_have_them():
    cosines = ["cosine", "cosine_maxsep", "centred_cosine", "maxsep_cosine"]
    both = compare("digits", losses=["cross_entropy", "ldam"], radii=[0.5], loss_options=options(scale=20.0))
    ldam = [spec for spec in both.specs(1) if spec.loss == "ldam"]
    assert [(s.head, s.radius, s.loss_options) for s in ldam] == [(head, 1.0, options(scale=20.0)) for head in cosines]
    assert {spec.loss_options for spec in both.specs(1) if spec.loss != "ldam"} == {()}
    assert len(compare("digits", losses=["ldam"], radii=[1.0], seeds=1).specs()) == 4


@pytest.mark.parametrize(
    ("dataset", "network", "augmentation"),
    [("digits", "mlp", "none"), ("svhn", "resnet32", "none"), ("folder:here", "resnet32", "crop_flip")],
)
def test_defaults_follow_the_data(dataset, network, augmentation):
    spec = compare(dataset).specs(1)[0]
    assert (spec.network, spec.augmentation) == (network, augmentation)
    spec = compare(dataset, network="convnet", augmentation="crop_flip_rotate").specs(1)[0]
    assert (spec.network, spec.augmentation) == ("convnet", "crop_flip_rotate")


def test_batch_and_learning_rate_follow_the_data_and_the_optimiser():
    sizes = {count: usual_batch(count) for count in (1, 1023, 1024, 2048, 4095, 4096, 10**6)}
    assert list(sizes.values()) == [16, 16, 32, 64, 64, 128, 128]
    rates = [compare("digits", optimiser=name).specs(1)[0].learning_rate for name in ("sgd", "adamw")]
    assert rates == [0.1, 1e-3]
    assert compare("digits", optimiser="adamw", learning_rate=0.5).specs(1)[0].learning_rate == 0.5


@pytest.mark.parametrize(
    ("arguments", "noun"),
    [
        ({"radii": []}, "radii"),
        ({"radii": [0.0]}, "radius"),
        ({"losses": ["hinge"]}, "hinge"),
        ({"losses": ["ldam"], "radii": [1.0, 0.1]}, "radius 1"),
        ({"losses": ["logit_adjusted"], "loss_options": options(tau=2.0)}, "tau"),
        ({"losses": ["balanced_softmax", "logit_adjusted"]}, "balanced_softmax"),
        ({"learning_rate": float("nan")}, "learning rate"),
        ({"optimiser": "adam"}, "adam"),
        ({"network": "nope"}, "nope"),
        ({"augmentation": "nope"}, "nope"),
        ({"imbalance": 0.0}, "imbalance"),
    ],
)
def test_what_is_refused(arguments, noun):
    with pytest.raises(ValueError, match=noun):
        compare("digits", **arguments).specs()
