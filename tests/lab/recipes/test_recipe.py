"""What every recipe shares: its runs, seeds and epochs, and the selection of some of them."""

import hashlib

import pytest

from maxsep import heads
from maxsep.lab import networks, recipes
from maxsep.lab.engine.losses import loss_names
from maxsep.lab.engine.optim import learning_rate
from maxsep.lab.recipes import Arm, Block, Recipe, select
from maxsep.lab.spec import RunSpec, options

NAMES = {
    "table1": (132, "f6c6f2b5"),
    "fixed": (150, "c7100009"),
    "prototypes": (72, "46d792a5"),
    "longtail": (180, "b7f440b1"),
    "imagenet": (24, "8daf04e1"),
    "ood": (10, "e4f0a8b6"),
    "openset": (30, "03f5f35d"),
    "features2d": (2, "e142962c"),
    "beyond_search": (14, "46e7e963"),
    "beyond": (228, "d2919a7b"),
    "baseline": (39, "e3e83643"),
    "arithmetic": (3, "d56177c5"),
    "adam": (75, "c3caa6c1"),
    "demo": (15, "71387a7d"),
}


@pytest.mark.parametrize("name", recipes.names())
def test_every_run_can_be_built(name):
    recipe = recipes.get(name)
    assert recipe.about.endswith("?")
    for spec in recipe.specs(1):
        assert spec.head in heads.names()
        networks.check_name(spec.network)
        assert spec.loss in loss_names()
        assert learning_rate(spec, spec.epochs - 1) <= spec.learning_rate
        if spec.head in ("plain", "extra_layer"):
            assert spec.radius == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_runs_of_a_recipe_keep_their_names(name):
    names = sorted(spec.name for spec in recipes.get(name).specs())
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
    assert (len(names), digest) == NAMES[name]


@pytest.mark.parametrize("name", ["errorbars", "frequency", "fisher"])
def test_views_of_table1_are_its_aliases(name):
    assert recipes.get(name) is recipes.get("table1")


def test_a_method_keeps_the_setting_and_may_change_any_field():
    setting = RunSpec(dataset="cifar10", epochs=7, seed=3)
    run = Arm(head="hpn", loss="squared_cosine", changes=options(clip_norm=1.0)).on(setting)
    assert (run.dataset, run.epochs, run.seed, run.clip_norm) == ("cifar10", 7, 3, 1.0)
    assert (run.head, run.loss) == ("hpn", "squared_cosine")


def make(*blocks, **facts):
    return Recipe(name="x", about="x?", blocks=blocks, seeds=(5, 6, 7), **facts)


PLAIN, MATRIX = Arm(head="plain"), Arm(head="maxsep")
SETTING = RunSpec()


def test_the_seed_is_the_slowest_index_and_the_method_the_fastest():
    specs = make(Block(settings=(SETTING, SETTING.replace(imbalance=0.1)), arms=(PLAIN, MATRIX))).specs(2)
    expected = [(s, i, h) for s in (5, 6) for i in (1.0, 0.1) for h in ("plain", "maxsep")]
    assert [(spec.seed, spec.imbalance, spec.head) for spec in specs] == expected


def test_seeds_are_counted_or_named_and_a_block_may_have_its_own():
    block, own = Block(settings=(SETTING,), arms=(PLAIN,)), Block(settings=(SETTING,), arms=(MATRIX,), seeds=(1,))
    assert [spec.seed for spec in make(block).specs(4)] == [5, 6, 7, 8]
    assert [spec.seed for spec in make(block).specs([9, 2])] == [9, 2]
    assert [(spec.head, spec.seed) for spec in make(block, own).specs(2)] == [("plain", 5), ("maxsep", 1), ("plain", 6)]
    for nothing in (0, []):
        with pytest.raises(ValueError, match="seeds"):
            make(block).specs(nothing)


def test_equal_runs_are_listed_once_and_limits_reach_all():
    recipe = make(Block(settings=(SETTING,), arms=(PLAIN, PLAIN)))
    (spec,) = recipe.specs(1, precision="bf16-mixed", max_train=50, max_test=20)
    assert (spec.head, spec.precision, spec.max_train, spec.max_test) == ("plain", "bf16-mixed", 50, 20)


def test_other_epochs_stretch_the_protocol_and_only_cut_a_second_stage():
    for epochs, every in ((9, 3), (1, 1)):
        spec = recipes.get("table1").specs(1, epochs, "network=convnet")[0]
        assert (spec.epochs, dict(spec.schedule_options)) == (epochs, {"every": every, "factor": 0.1})
    for epochs, features_at in ((40, (3, 40)), (1, (1,))):
        assert recipes.get("features2d").specs(1, epochs)[0].features_at == features_at
    ldam = recipes.get("longtail").specs(1, 20, "loss=ldam")
    assert {dict(spec.loss_options).get("reweight_from") for spec in ldam} == {None, 16}
    assert recipes.get("arithmetic").specs(1, 10)[0].stop_after == 2
    stages = [s for s in recipes.get("longtail").specs(1, epochs=20) if s.start_from is not None]
    assert {(spec.epochs, spec.start_from.epochs) for spec in stages} == {(10, 20)}
    assert {spec.epochs for spec in recipes.get("longtail").specs(1, epochs=2)} == {2}


SPECS = [
    RunSpec(head=h, imbalance=i, seed=s, radius=0.1)
    for h in ("plain", "scaled", "maxsep")
    for i in (1.0, 0.1, 0.01)
    for s in (0, 1)
]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (None, 18),
        (" , ", 18),
        ("head=plain|maxsep", 12),
        ("head=plain,head=maxsep,imbalance=0.1", 4),
        ("imbalance=1e-2, seed = 1", 3),
        ("-maxsep-r0.1-s0-", 3),
    ],
)
def test_terms_select_by_field_or_by_a_part_of_the_name(text, count):
    assert len(select(SPECS, text)) == count


def test_an_unknown_field_and_a_selection_of_nothing_are_errors():
    with pytest.raises(ValueError, match="hed"):
        select(SPECS, "hed=plain")
    for text in ("head=etf", "imbalance=small", "nonsense"):
        assert select(SPECS, text) == []
        with pytest.raises(ValueError, match=text):
            recipes.get("demo").specs(only=text)
