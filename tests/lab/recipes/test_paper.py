"""Which numbers of the paper a run answers."""

import pytest

from maxsep.lab import recipes
from maxsep.lab.recipes import paper
from maxsep.lab.spec import options


def run(name, **fields):
    """The run of a recipe that has these fields."""
    specs = recipes.get(name).specs(1)
    return next(spec for spec in specs if all(getattr(spec, key) == value for key, value in fields.items()))


RESNET = run("table1", dataset="cifar100", network="resnet34", imbalance=1.0, head="maxsep")


def values(spec):
    return {(cell.table, cell.metric): cell.value for cell in paper.cell(spec)}


def test_every_number_has_a_run_of_its_recipe():
    answered = {
        cell for name in set(paper.TABLES.values()) for spec in recipes.get(name).specs(1) for cell in paper.cell(spec)
    }
    counted = [cell for cell in paper.cells() if cell.table in (*paper.TABLES, paper.FIVE_RUNS)]
    assert len(counted) == 156 + 40
    assert answered == set(counted)


def test_one_run_answers_several_tables():
    assert values(RESNET) == {
        ("Table 1", "top1"): 76.54,
        (paper.FIVE_RUNS, "top1"): 76.41,
        ("Angular Fisher score", "angular_fisher"): 0.1521,
        ("Optimised prototypes", "top1"): 76.23,
    }
    wide = run("ood", head="maxsep", radius=1.0, optimiser="sgd")
    assert values(wide)["Out-of-distribution detection", "svhn energy auroc"] == 85.42
    plus = run("openset", dataset="osr_cifar+_0", head="plain")
    assert values(plus)["Open-set recognition", "cifar+50 max_logit auroc"] == 96.48
    large = run("imagenet", dataset="imagenet_lt", network="resnet50", head="maxsep", radius=1.0)
    assert values(large) == {("ImageNet", "top1"): 47.3, ("ImageNet", "top5"): 73.6}


@pytest.mark.parametrize(
    "change",
    [
        {"head": "scaled"}, {"head": "control"}, {"radius": 1.0}, {"dataset": "digits"}, {"network": "mlp"},
        {"imbalance": 0.3}, {"validation": 0.1}, {"calibration": 0.1}, {"loss": "squared_cosine"}, {"head": "hpn"},
        {"learning_rate": 0.03}, {"augmentation": "none"}, {"mixup": 0.2}, {"head_rate": 0.1}, {"weight_decay": 1e-3},
        {"head_options": options(rotation=1)}, {"network_options": options(width=8)}, {"optimiser": "adamw"},
    ],
    ids=str,
)  # fmt: skip
def test_what_the_paper_did_not_run_has_no_number(change):
    assert paper.cell(RESNET.replace(**change)) == ()


@pytest.mark.parametrize(
    ("change", "departures"),
    [({"seed": 9, "subset_seed": 3, "data_order": "official", "precision": "bf16-mixed"}, 0), ({"epochs": 5}, 1),
     ({"epochs": 5, "max_train": 10}, 2)],
)  # fmt: skip
def test_repetitions_answer_it_and_other_lengths_are_named(change, departures):
    spec = RESNET.replace(**change)
    assert paper.cell(spec) == paper.cell(RESNET)
    assert len(paper.departures(spec)) == departures


def test_ldam_and_mislas_are_told_apart():
    ldam = [spec for spec in recipes.get("longtail").specs(1) if spec.loss == "ldam" and spec.imbalance == 0.01]
    found = {}
    for spec in ldam:
        for cell in paper.cell(spec):
            found.setdefault((cell.method, cell.head, cell.value), []).append(spec.head)
    assert found == {
        ("LDAM", "plain", 39.87): ["cosine"],
        ("LDAM", "maxsep", 42.02): ["cosine_maxsep", "maxsep_cosine"],
        ("LDAM-DRW", "plain", 42.37): ["cosine"],
        ("LDAM-DRW", "maxsep", 43.19): ["cosine_maxsep", "maxsep_cosine"],
    }
    second = run("longtail", loss="label_aware_smoothing", imbalance=0.01, head="plain")
    assert values(second) == {("LDAM and MiSLAS", "top1"): 48.0}
    assert values(second.start_from) == {("LDAM and MiSLAS", "top1"): 40.29}
    shorter = second.replace(start_from=second.start_from.replace(epochs=3))
    assert len(paper.departures(shorter)) == 1


def test_contradictions_are_notes_of_their_cells():
    noted = [cell for cell in paper.cells() if cell.note and cell.table in paper.TABLES]
    assert [(cell.dataset, cell.network, cell.imbalance) for cell in noted] == [
        ("cifar10", "resnet34", 1.0), ("cifar10", "convnet", 0.02), ("cifar100", "resnet34", 1.0),
        ("cifar100", "resnet34", 0.01), ("cifar100", "resnet32", 0.01),
    ]  # fmt: skip


def test_others_and_the_best_of_the_paper():
    assert [cell.value for cell in paper.published("cifar100", "resnet32", 0.01)] == [38.3, 42.0, 43.9, 51.9]
    assert paper.best_of_table1(RESNET.replace(imbalance=0.2, loss="logit_adjusted")).value == 66.01
