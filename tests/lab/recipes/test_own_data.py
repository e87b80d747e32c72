"""The comparison on one's own data: which runs follow from the options."""

import pytest

from maxsep.lab.recipes.own_data import own_data, usual_batch
from maxsep.lab.report.controls import Method
from maxsep.lab.spec import options


def arms(recipe):
    return [(spec.head, spec.radius, spec.loss) for spec in recipe.specs(1)]


def test_by_default_a_pair_at_each_of_two_radii():
    specs = own_data("digits").specs()
    assert len(specs) == 12
    assert [spec.seed for spec in specs] == [0] * 4 + [1] * 4 + [2] * 4, "whatever is cut short can be compared"
    heads = [("plain", 1.0), ("maxsep", 1.0), ("scaled", 0.1), ("maxsep", 0.1)]
    assert [(spec.head, spec.radius) for spec in specs[:4]] == heads
    same = {spec.replace(head="plain", radius=1.0, seed=0) for spec in specs}
    assert len(same) == 1, "nothing but head, radius and seed differs"


def test_every_loss_has_a_plain_head_and_controls_of_its_own():
    found = arms(own_data("digits", losses=["cross_entropy", "logit_adjusted"], radii=[0.5, 0.5]))
    heads = [("plain", 1.0), ("scaled", 0.5), ("maxsep", 0.5)]
    assert found == [(*head, loss) for loss in ("cross_entropy", "logit_adjusted") for head in heads]


def test_ldam_has_cosine_heads_each_matrix_behind_its_control():
    given = options(reweight_from=24)
    specs = own_data("digits", losses=["ldam"], loss_options=given, seeds=1).specs()
    methods = [Method.of(spec) for spec in specs]
    assert [method.head for method in methods] == ["cosine", "cosine_maxsep", "centred_cosine", "maxsep_cosine"]
    assert {(spec.loss, spec.loss_options, spec.radius) for spec in specs} == {("ldam", given, 1.0)}
    for control, matrix in ((0, 1), (2, 3)):
        assert methods[matrix].controls == (methods[control],)
    assert own_data("digits", losses=["ldam"], radii=[1.0], seeds=1).specs() == [
        spec.replace(loss_options=()) for spec in specs
    ]


def test_radii_and_options_are_for_the_losses_that_have_them():
    both = own_data("digits", losses=["cross_entropy", "ldam"], radii=[0.5], loss_options=options(scale=20.0))
    assert arms(both)[:3] == [
        (head, radius, "cross_entropy") for head, radius in (("plain", 1), ("scaled", 0.5), ("maxsep", 0.5))
    ]
    assert {radius for _, radius, loss in arms(both) if loss == "ldam"} == {1.0}
    assert {spec.loss_options for spec in both.specs(1) if spec.loss != "ldam"} == {()}
    named = {spec.name for spec in own_data("digits").specs()}
    assert named <= {spec.name for spec in own_data("digits", losses=["cross_entropy", "ldam"]).specs()}


@pytest.mark.parametrize(
    ("dataset", "network", "augmentation"),
    [
        ("digits", "mlp", "none"),
        ("svhn", "resnet32", "none"),
        ("cifar10", "resnet32", "crop_flip"),
        ("folder:here", "resnet32", "crop_flip"),
    ],
)
def test_defaults_follow_the_data(dataset, network, augmentation):
    spec, *_ = own_data(dataset).specs(1)
    assert (spec.network, spec.augmentation) == (network, augmentation)
    spec, *_ = own_data(dataset, network="convnet", augmentation="crop_flip_rotate").specs(1)
    assert (spec.network, spec.augmentation) == ("convnet", "crop_flip_rotate")


def test_an_epoch_has_steps_enough_where_there_are_images_enough():
    sizes = {count: usual_batch(count) for count in (1, 511, 1023, 1024, 2047, 2048, 4095, 4096, 10**6)}
    assert list(sizes.values()) == [16, 16, 16, 32, 32, 64, 64, 128, 128]
    assert all(count // size >= 32 or size == 16 for count, size in sizes.items())


def test_the_learning_rate_follows_the_optimiser():
    rates = [own_data("digits", optimiser=name).specs(1)[0].learning_rate for name in ("sgd", "adamw")]
    assert rates == [0.1, 1e-3]
    assert own_data("digits", optimiser="adamw", learning_rate=0.5).specs(1)[0].learning_rate == 0.5


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"radii": []}, "a comparison needs a radius, got none"),
        ({"radii": [0.0]}, "radius must be a positive finite number, got 0.0"),
        ({"losses": ["hinge"]}, r"unknown loss 'hinge' for a comparison. Known: cross_entropy, .*, ldam\.$"),
        (
            {"losses": ["ldam"], "radii": [1.0, 0.1]},
            r"its heads have radius 1, got radius 1, 0.1. Leave --radius out, or name --loss-option scale=20\.$",
        ),
        (
            {"losses": ["logit_adjusted"], "loss_options": options(tau=2.0)},
            r"^in a comparison ldam alone takes options, got tau with logit_adjusted. Leave --loss-option out, or",
        ),
        (
            {"losses": ["balanced_softmax", "cross_entropy", "logit_adjusted"]},
            r"^balanced_softmax and logit_adjusted \(tau 1\) are the same function, got both: train one of them, such "
            r"as --loss cross_entropy,logit_adjusted\.$",
        ),
        ({"learning_rate": 0.0}, "the learning rate must be a positive finite number, got 0"),
        ({"learning_rate": float("nan")}, "the learning rate must be a positive finite number, got nan"),
        ({"optimiser": "adam"}, "unknown optimiser 'adam'. Known: adamw, sgd"),
        ({"network": "nope"}, "unknown network 'nope'"),
        ({"augmentation": "nope"}, "unknown augmentation 'nope'"),
        ({"imbalance": 0.0}, "imbalance must be a number in"),
    ],
)
def test_what_is_refused(options, told):
    with pytest.raises(ValueError, match=told):
        own_data("digits", **options).specs()
