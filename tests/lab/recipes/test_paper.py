import pytest

from maxsep.lab import recipes
from maxsep.lab.recipes import paper
from maxsep.lab.spec import RunSpec, options

RESNET = RunSpec(dataset="cifar100", network="resnet34", head="maxsep", radius=0.1)
CONVNET = RunSpec(dataset="cifar10", network="convnet", head="maxsep")


def test_cells_against_the_printed_tables():
    assert paper.table1(RESNET).value == 76.54
    assert paper.table1(RESNET.replace(head="plain", radius=1.0, imbalance=0.01)).value == 35.02
    assert paper.table1(CONVNET.replace(imbalance=0.02)).value == 55.25
    bar = paper.error_bar(RESNET.replace(imbalance=0.1))
    assert (bar.value, bar.std) == (60.23, 0.54)
    assert paper.fisher(RESNET).value == 0.1521
    assert paper.prototypes(RESNET).value == 76.23
    hpn = RESNET.replace(head="hpn", loss="squared_cosine", radius=1.0)
    assert paper.prototypes(hpn).value == 71.58
    assert "Table 1" in paper.table1(RESNET).source


@pytest.mark.parametrize(
    "change",
    [
        {"head": "scaled"},
        {"radius": 1.0},
        {"dataset": "digits"},
        {"network": "mlp"},
        {"imbalance": 0.3},
        {"validation": 0.1},
        {"calibration": 0.1},
        {"loss": "squared_cosine"},
        {"head": "hpn"},
    ],
)
def test_what_the_paper_did_not_run_has_no_number(change):
    assert paper.table1(RESNET.replace(**change)) is None
    assert paper.error_bar(RESNET.replace(**change)) is None


def test_every_cell_of_table1_is_found():
    rows = [spec for spec in recipes.get("table1").specs(1) if paper.table1(spec) is not None]
    assert len(rows) == 40
    assert all(paper.error_bar(spec) is not None for spec in rows)


def test_scores_of_other_networks_are_not_given():
    assert paper.fisher(CONVNET) is None
    assert paper.prototypes(CONVNET) is None


def test_contradictions_are_attached_to_their_cells():
    told = {}
    for spec in recipes.get("table1").specs(1):
        for note in paper.inconsistencies(spec):
            told[(spec.dataset, spec.network, spec.imbalance)] = note
    assert set(told) == {
        ("cifar100", "resnet34", 1.0),
        ("cifar10", "resnet34", 1.0),
        ("cifar10", "convnet", 0.02),
        ("cifar100", "resnet34", 0.01),
    }
    assert all(number in told[("cifar100", "resnet34", 1.0)] for number in ("76.54", "76.23", "76.41"))


def test_table1_lies_mostly_above_the_mean_of_five_runs():
    specs = [spec for spec in recipes.get("table1").specs(1) if paper.table1(spec)]
    above = sum(paper.table1(spec).value >= paper.error_bar(spec).value for spec in specs)
    assert above > len(specs) * 0.8, paper.PATTERN


@pytest.mark.parametrize("asked", [{"reweight": "effective"}, {"reweight_from": 160}])
def test_deferred_weights_are_a_row_of_their_own_however_they_are_asked_for(asked):
    setting = {"dataset": "cifar100", "imbalance": 0.01, "network": "resnet32", "head": "cosine", "loss": "ldam"}
    at_once = paper.long_tailed(RunSpec(**setting))
    deferred = paper.long_tailed(RunSpec(**setting, loss_options=options(**asked)))
    table = paper.tables()["long_tailed_methods"]
    assert (at_once.value, deferred.value) == tuple(table[row]["plain"]["0.01"] for row in ("ldam_sgd", "ldam_drw"))
