from pathlib import Path

import pytest

from maxsep import heads
from maxsep.lab import networks, recipes
from maxsep.lab.engine.losses import loss_names
from maxsep.lab.engine.optim import learning_rate
from maxsep.lab.recipes import Arm, choose_radii
from maxsep.lab.spec import RunSpec

RUNS = Path(__file__).parents[3] / "results" / "runs"


def found(name, **wanted):
    return [s for s in recipes.get(name).specs(1) if all(getattr(s, key) == value for key, value in wanted.items())]


def test_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match=r"unknown recipe 'table9'. Known recipes: table1, fixed, .*demo, errorbars"):
        recipes.get("table9")


@pytest.mark.parametrize("name", recipes.names())
def test_every_run_can_be_built(name):
    recipe = recipes.get(name)
    assert recipe.title
    assert recipe.question.endswith("?")
    for spec in recipe.specs(1):
        assert spec.head in heads.names()
        assert spec.network in networks.names()
        assert spec.loss in loss_names()
        assert learning_rate(spec, spec.epochs - 1) <= spec.learning_rate
        if spec.head in ("plain", "extra_layer"):
            assert spec.radius == 1


def test_table1_is_the_papers_grid():
    specs = recipes.get("table1").specs(1)
    cells = {(s.dataset, s.imbalance, s.network) for s in specs}
    assert len(cells) == 2 * 5 * 2
    controls = [s for s in specs if s.head == "control"]
    assert {(s.dataset, s.imbalance, s.network, s.radius) for s in controls} == {
        (dataset, imbalance, "resnet34", 0.1) for dataset in ("cifar10", "cifar100") for imbalance in (0.02, 0.01)
    }
    arms = {s: (s.head, s.radius) for s in specs if s.head != "control"}
    assert {arm for s, arm in arms.items() if s.network == "resnet34"} == {("plain", 1.0), ("maxsep", 0.1)}
    assert {arm for s, arm in arms.items() if s.network == "convnet"} == {("plain", 1.0), ("maxsep", 1.0)}
    assert (len(arms), len(controls)) == (2 * len(cells), 4)


def test_every_seed_of_table1_has_its_own_subset_where_no_recorded_one_counts():
    for spec in recipes.get("table1").specs():
        recorded = (spec.dataset, spec.imbalance, spec.network) == ("cifar10", 0.01, "resnet34")
        assert spec.subset_seed == (0 if recorded or spec.imbalance == 1 else spec.seed - 123)


def test_recorded_runs_of_cifar10_count_in_table1():
    specs = recipes.get("table1").specs(precision="bf16-mixed", only="dataset=cifar10,imbalance=0.01,network=resnet34")
    specs = [spec for spec in specs if spec.head != "control"]
    assert len(specs) == 6
    assert all((RUNS / spec.name / "result.json").is_file() for spec in specs)


def test_the_protocol():
    for spec in recipes.get("table1").specs(1):
        told = (spec.optimiser, spec.learning_rate, spec.momentum, spec.nesterov, spec.weight_decay, spec.batch_size)
        assert told == ("sgd", 0.1, 0.9, False, 5e-4, 512)
        assert (spec.subset_seed, spec.evaluate_every, spec.precision) == (0, 10, "32-true")
        assert spec.augmentation == ("crop_flip_rotate" if spec.imbalance == 1 else "crop_flip")
        assert spec.normalisation == (spec.dataset if spec.imbalance == 1 else "cifar10")
    resnet, convnet = (found("table1", network=network)[0] for network in ("resnet34", "convnet"))
    assert (resnet.epochs, convnet.epochs) == (200, 90)
    assert learning_rate(resnet, 100) == pytest.approx(0.05)
    assert [round(learning_rate(convnet, epoch), 6) for epoch in (29, 30, 60, 89)] == [0.1, 0.01, 0.001, 0.001]


def test_seeds_start_where_the_released_scripts_do():
    assert recipes.get("table1").seeds == (123, 124, 125)
    assert {s.seed for s in recipes.get("table1").specs(2)} == {123, 124}
    assert {s.seed for s in recipes.get("table1").specs([5])} == {5}
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        recipes.get("table1").specs(0)
    with pytest.raises(ValueError, match="seeds must name at least one seed"):
        recipes.get("table1").specs([])


@pytest.mark.parametrize("name", ["errorbars", "frequency", "fisher"])
def test_views_of_table1_are_its_aliases(name):
    assert recipes.get(name) is recipes.get("table1")


def test_fixed_and_prototypes_share_the_runs_of_table1():
    known = {spec.name for spec in recipes.get("table1").specs()}
    extra = {s.head for s in recipes.get("fixed").specs() if s.name not in known}
    assert extra == {"learnable_matrix", "extra_layer", "etf"}
    hpn = [s for s in recipes.get("prototypes").specs(1) if s.name not in known]
    assert {(s.loss, s.radius, s.head_options) for s in hpn} == {
        ("squared_cosine", 1.0, ()),
        ("cross_entropy", 0.1, (("normalise", False),)),
    }


def test_arms_of_one_seed_stay_together():
    specs = recipes.get("table1").specs()
    assert [s.seed for s in specs] == sorted(s.seed for s in specs)
    assert [s.head for s in specs[:2]] == ["plain", "maxsep"]


def test_other_epochs_stretch_the_steps():
    (convnet, *_) = recipes.get("table1").specs(1, epochs=9, only="network=convnet")
    assert (convnet.epochs, dict(convnet.schedule_options)) == (9, {"every": 3, "factor": 0.1})
    (short, *_) = recipes.get("table1").specs(1, epochs=1, only="network=convnet")
    assert dict(short.schedule_options)["every"] == 1


def test_precision_and_limits_reach_every_run():
    for spec in recipes.get("demo").specs(1, precision="bf16-mixed", max_train=50, max_test=20):
        assert (spec.precision, spec.max_train, spec.max_test) == ("bf16-mixed", 50, 20)
    first, second = (recipes.get("demo").specs(1, precision=p)[0] for p in (None, "bf16-mixed"))
    assert first.name != second.name


def test_the_demo_searches_on_held_out_data_first():
    recipe = recipes.get("demo")
    specs = recipe.specs()
    searched = [s for s in specs if s.validation > 0]
    assert specs[: len(searched)] == searched
    assert {s.radius for s in searched if s.head == "maxsep"} == {0.03, 0.1, 0.3, 1.0, 3.0, 10.0}
    assert {(s.dataset, s.imbalance) for s in specs} == {("digits", 0.02)}
    assert {s.head for s in specs if s.validation == 0} == {"plain", "scaled", "maxsep", "control"}
    assert {s.seed for s in specs} == {0, 1, 2}


def test_the_runs_after_the_search_compare_at_equal_radius():
    recipe = recipes.get("demo")
    specs = recipe.specs(2, epochs=3)
    final = recipe.final_specs({"scaled": 1.0, "maxsep": 3.0}, specs)
    assert {(s.head, s.radius) for s in final} == {
        ("plain", 1.0),
        ("maxsep", 1.0),
        ("scaled", 3.0),
        ("maxsep", 3.0),
    }
    assert all(s.validation == 0 and s.epochs == 3 for s in final)
    assert {s.seed for s in final} == {0, 1}
    with pytest.raises(ValueError, match="recipe 'table1' has no search for the radius"):
        recipes.get("table1").final_specs({}, [])


def test_choosing_a_radius():
    scores = {("a", 0.1): [0.6, 0.8], ("a", 1.0): [0.7, 0.7], ("a", 3.0): [0.5], ("b", 0.1): [0.9], ("b", 1.0): []}
    assert choose_radii(scores) == {"a": 1.0, "b": 0.1}


def test_an_arm_keeps_the_setting():
    setting = RunSpec(dataset="cifar10", epochs=7, seed=3)
    run = Arm(head="hpn", loss="squared_cosine").on(setting)
    assert (run.dataset, run.epochs, run.seed, run.head, run.loss) == ("cifar10", 7, 3, "hpn", "squared_cosine")
