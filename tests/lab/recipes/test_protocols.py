"""The constants of every experiment, as the paper and the released scripts have them."""

from pathlib import Path

import pytest

from maxsep.lab import recipes
from maxsep.lab.data import long_tail_counts
from maxsep.lab.engine.losses import build_loss
from maxsep.lab.engine.optim import learning_rate
from maxsep.lab.grid import num_train
from maxsep.lab.recipes import long_tail
from maxsep.lab.run import Run

PAIR = [("plain", 1.0), ("maxsep", 1.0)]
RUNS = Path(__file__).parents[3] / "results" / "runs"


def specs_of(name, **wanted):
    return [s for s in recipes.get(name).specs(1) if all(getattr(s, key) == value for key, value in wanted.items())]


def values(spec, names):
    return tuple(getattr(spec, name) for name in names.split())


def test_table1_is_the_papers_grid_with_four_control_cells():
    specs = specs_of("table1")
    assert len({(s.dataset, s.imbalance, s.network) for s in specs}) == 2 * 5 * 2
    control = {(s.dataset, s.imbalance, s.network, s.radius) for s in specs if s.head == "control"}
    assert control == {(d, i, "resnet34", 0.1) for d in ("cifar10", "cifar100") for i in (0.02, 0.01)}
    for network, radius in (("resnet34", 0.1), ("convnet", 1.0)):
        methods = {(s.head, s.radius) for s in specs if s.network == network and s.head != "control"}
        assert methods == {("plain", 1.0), ("maxsep", radius)}


def test_the_protocol_of_table1():
    for spec in recipes.get("table1").specs():
        assert values(spec, "optimiser learning_rate momentum nesterov weight_decay batch_size") == (
            *("sgd", 0.1, 0.9, False, 5e-4, 512),
        )
        assert spec.augmentation == ("crop_flip_rotate" if spec.imbalance == 1 else "crop_flip")
        assert spec.normalisation == (spec.dataset if spec.imbalance == 1 else "cifar10")
        recorded = values(spec, "dataset imbalance network") == ("cifar10", 0.01, "resnet34")
        assert spec.subset_seed == (0 if recorded or spec.imbalance == 1 else spec.seed - 123)
    resnet, convnet = (specs_of("table1", network=network)[0] for network in ("resnet34", "convnet"))
    assert (resnet.epochs, convnet.epochs) == (200, 90)
    assert learning_rate(resnet, 100) == pytest.approx(0.05)
    assert [round(learning_rate(convnet, epoch), 6) for epoch in (29, 30, 60, 89)] == [0.1, 0.01, 0.001, 0.001]


def test_fixed_prototypes_and_beyond_share_the_runs_of_table1():
    known = {spec.name for spec in recipes.get("table1").specs()}
    assert {s.head for s in recipes.get("fixed").specs() if s.name not in known} == {
        *("learnable_matrix", "extra_layer", "etf"),
    }
    hpn = {(s.loss, s.radius, s.head_options) for s in recipes.get("prototypes").specs() if s.name not in known}
    assert hpn == {("squared_cosine", 1.0, ()), ("cross_entropy", 0.1, (("normalise", False),))}
    shared = recipes.get("table1").specs(1, only="network=resnet34,imbalance=0.01")
    assert {s.name for s in shared} <= {s.name for s in specs_of("beyond")}


def test_the_protocol_of_ldam():
    for spec in specs_of("longtail"):
        assert values(spec, "network batch_size weight_decay momentum learning_rate augmentation normalisation") == (
            *("resnet32", 128, 2e-4, 0.9, 0.1, "crop_flip", "cifar10"),
        )
        assert values(spec, "evaluate_every subset_seed") == (1, 0)
    ldam = specs_of("longtail", loss="ldam", imbalance=0.01)
    assert len({(s.head, s.loss_options) for s in ldam}) == 4 * 2 * 2
    assert {dict(s.loss_options)["max_margin"] for s in ldam} == {0.4, 0.5}
    assert [dict(s.loss_options).get("reweight_from") for s in ldam].count(160) == 8
    rates = [learning_rate(ldam[0], epoch) for epoch in (0, 5, 160, 180)]
    assert rates == pytest.approx([0.02, 0.1, 1e-3, 1e-5])


@pytest.mark.parametrize(
    ("imbalance", "head_rate", "smoothing"), [(0.1, 0.1, (0.2, 0)), (0.02, 0.1, (0.3, 0)), (0.01, 0.2, (0.4, 0.1))]
)
def test_the_protocol_of_mislas(imbalance, head_rate, smoothing):
    first = specs_of("longtail", imbalance=imbalance, mixup=1.0)
    assert [learning_rate(first[0], epoch) for epoch in (0, 5, 160, 180)] == pytest.approx([0.02, 0.1, 1e-2, 1e-3])
    second = specs_of("longtail", imbalance=imbalance, epochs=10)
    assert [spec.start_from for spec in second] == first
    assert [(s.head, s.radius) for s in first] == PAIR
    for spec in second:
        expected = ("frozen_shifted_norm", "class_balanced", 0.0, True, head_rate)
        assert values(spec, "backbone sampler mixup logit_scaling head_rate") == expected
        assert [learning_rate(spec, epoch) for epoch in (0, 5)] == pytest.approx([0.1, 0.05])
        loss = build_loss(spec, long_tail_counts(500, 100, imbalance))
        assert (loss.smoothing[0].item(), loss.smoothing[-1].item()) == pytest.approx(smoothing)


def test_every_ablation_of_beyond_changes_one_part_of_the_chosen_recipe():
    for (dataset, augmentation), changes in long_tail.CHOSEN.items():
        chosen = long_tail.ADJUSTED_PLAIN.on(long_tail.small(dataset, augmentation, **changes)).replace(seed=123)
        rows = specs_of("beyond", network="resnet32", dataset=dataset, augmentation=augmentation)
        assert chosen in rows
        assert {spec.head for spec in rows} == {"plain", "control", "maxsep", "cosine"}
        for spec in rows:
            groups = ("head radius", "loss", "weight_decay mixup")
            assert sum(values(spec, group) != values(chosen, group) for group in groups) <= 1, spec
    for spec in recipes.get("beyond").specs():
        expected = (200, 0, 0.0, 512 if spec.network == "resnet34" else 128)
        assert values(spec, "epochs subset_seed validation batch_size") == expected


@pytest.mark.parametrize("cell", long_tail.CHOSEN, ids=str)
def test_the_choice_of_beyond_follows_from_the_recorded_search(cell):
    scores = []
    for changes in long_tail.candidates(cell[1]):
        spec = long_tail.ADJUSTED_PLAIN.on(long_tail.small(*cell, validation=long_tail.HELD_OUT, **changes))
        run = Run(RUNS / spec.replace(seed=123, precision="bf16-mixed").name)
        assert spec.replace(seed=123) in recipes.get("beyond_search").specs()
        if run.state == "finished":
            scores.append((run.metrics["balanced"], changes))
    complete = len(scores) == len(long_tail.candidates(cell[1]))
    assert long_tail.CHOSEN[cell] == (max(scores, key=lambda pair: pair[0])[1] if complete else {})


def test_the_protocol_of_ood():
    recipe = recipes.get("ood")
    assert recipe.seeds == (1, 2, 3, 4, 5)
    assert [(s.head, s.radius) for s in specs_of("ood")] == PAIR
    for spec in specs_of("ood"):
        assert values(spec, "dataset network epochs batch_size augmentation normalisation") == (
            *("cifar100", "wrn40_2", 100, 128, "crop_flip", "cifar10_255"),
        )
        assert values(spec, "learning_rate momentum nesterov weight_decay") == (0.1, 0.9, True, 5e-4)
        assert learning_rate(spec, 99, 390, 391) == pytest.approx(1e-6)
    protocol = recipe.after.protocol
    assert (protocol.outliers, protocol.draw, protocol.repeats) == (("svhn", "places", "cifar10"), 2000, 10)
    assert protocol.magnitudes == (0, 0.01, 0.005, 0.002, 0.0014, 0.001, 0.0005)


def test_the_protocol_of_openset_and_features2d():
    specs = specs_of("openset")
    first = [f"osr_{name}_0" for name in ("cifar10", "cifar+", "svhn")]
    assert [s.dataset for s in specs[:6]] == [name for name in first for _ in PAIR], "the first split comes first"
    assert len(specs) == 15 * 2, "CIFAR+10 and CIFAR+50 share their models"
    for spec in specs:
        assert values(spec, "network epochs batch_size learning_rate momentum weight_decay") == (
            *("vgg32", 600, 128, 0.1, 0.9, 1e-4),
        )
        assert spec.augmentation == f"rand_augment{'_digits_m18' if 'svhn' in spec.dataset else '_m6'}"
        rates = [learning_rate(spec, epoch) for epoch in (0, 10, 201, 401, 599)]
        assert rates == pytest.approx([1e-4, 0.099385, 0.1, 0.1, 0.000125], abs=1e-6)
    assert {num_train(s) for s in specs if "svhn" in s.dataset} == {42331, 47203, 41684, 47106}
    plane = specs_of("features2d")
    assert [(s.head, s.radius) for s in plane] == PAIR
    assert {(s.dataset, s.epochs, s.features_at) for s in plane} == {("osr_cifar10_0", 200, (15, 200))}
    assert learning_rate(plane[0], 100) == pytest.approx(0.05, abs=1e-3), "one cosine, no restarts"


def test_the_protocol_of_imagenet():
    assert [(s.head, s.radius) for s in specs_of("imagenet", dataset="imagenet", network="resnet50")] == PAIR
    for spec in specs_of("imagenet"):
        expected = ("sgd", "cosine", 0.1, 0.9, 5e-4)
        assert values(spec, "optimiser schedule learning_rate momentum weight_decay") == expected
        assert ("jitter" in spec.augmentation) == (spec.dataset == "imagenet_lt")
