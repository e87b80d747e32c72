"""The recipe beyond the paper: its cells, its choices, and a run of every kind on a handful of images."""

import json
from pathlib import Path

import pytest

from maxsep.lab import grid, recipes
from maxsep.lab.recipes import beyond, paper
from maxsep.lab.recipes.recipe import validation_metric
from maxsep.lab.report import write_report
from maxsep.lab.spec import RunSpec

RECORDS = Path(__file__).parents[3] / "results" / "runs"


def test_the_eight_long_tailed_cells_of_table_1_are_run_with_every_head_and_its_control():
    found = {}
    for spec in recipes.get("beyond").specs(1):
        if spec.network == "resnet34" and spec.loss == "logit_adjusted" and spec.augmentation == beyond.STRONG:
            found.setdefault((spec.dataset, spec.imbalance), set()).add((spec.head, spec.radius))
    assert len(found) == 8
    assert set(map(frozenset, found.values())) == {frozenset({("plain", 1.0), ("scaled", 0.1), ("maxsep", 0.1)})}
    assert all(paper.best_of_table1(RunSpec(network="resnet34", dataset=d, imbalance=i)).value > 38 for d, i in found)


def test_it_keeps_to_the_papers_network_epochs_and_batch():
    for spec in recipes.get("beyond").specs():
        assert (spec.epochs, spec.subset_seed, spec.validation) == (200, 0, 0.0)
        assert spec.batch_size == (512 if spec.network == "resnet34" else 128)
    assert len({spec.seed for spec in recipes.get("beyond").specs()}) == 3


def test_weak_augmentation_without_the_loss_is_table_1_itself():
    ours = {spec.name for spec in recipes.get("beyond").specs(1)}
    theirs = {s.name for s in recipes.get("table1").specs(1, only="network=resnet34,imbalance=0.01,head=plain|maxsep")}
    assert len(theirs) == 4
    assert theirs <= ours


def test_every_ablation_changes_one_part_of_the_chosen_recipe():
    for (dataset, augmentation), changes in beyond.CHOSEN.items():
        chosen = beyond.PLAIN.on(beyond.small(dataset, augmentation, **changes))
        rows = [
            spec
            for spec in recipes.get("beyond").specs(1)
            if (spec.network, spec.dataset, spec.augmentation) == ("resnet32", dataset, augmentation)
        ]
        assert chosen.replace(seed=123) in rows
        assert {spec.head for spec in rows} == {"plain", "scaled", "maxsep", "cosine"}
        for spec in rows:
            parts = [
                (spec.head, spec.radius) != (chosen.head, chosen.radius),
                spec.loss != chosen.loss,
                (spec.weight_decay, spec.mixup) != (chosen.weight_decay, chosen.mixup),
            ]
            assert sum(parts) <= 1, spec


def test_the_search_never_reads_the_test_set():
    assert {spec.validation for spec in recipes.get("beyond_search").specs()} == {beyond.HELD_OUT}


def committed_scores(dataset, augmentation):
    """The held-out score of each candidate of a cell that has a committed record."""
    found = []
    for changes in beyond.candidates(augmentation):
        spec = beyond.PLAIN.on(beyond.small(dataset, augmentation, validation=beyond.HELD_OUT, **changes))
        path = RECORDS / spec.replace(seed=123, precision="bf16-mixed").name / "result.json"
        if path.exists():
            found.append((json.loads(path.read_text())["metrics"][validation_metric(0.01)], changes))
    return found


@pytest.mark.parametrize("cell", beyond.CHOSEN, ids=str)
def test_what_is_chosen_follows_from_the_committed_search(cell):
    found, candidates = committed_scores(*cell), beyond.candidates(cell[1])
    if len(found) == len(candidates):
        assert beyond.CHOSEN[cell] == max(found, key=lambda pair: pair[0])[1]
    else:
        assert beyond.CHOSEN[cell] == candidates[0]


@pytest.fixture(scope="module")
def data(tmp_path_factory, tiny_cifar):
    return tiny_cifar(tmp_path_factory.mktemp("data"), images=400)


def test_a_run_of_every_kind_and_the_report(data, tmp_path):
    limits = {"seeds": 1, "epochs": 1, "max_train": 40, "max_test": 20, "runs": tmp_path, "data_root": data}
    kinds = {
        "beyond_search": f"dataset=cifar10,augmentation={beyond.STRONG}",
        "beyond": f"dataset=cifar10,network=resnet32,augmentation={beyond.STRONG},loss=logit_adjusted",
    }
    for name, only in kinds.items():
        summary = grid.reproduce(recipes.get(name), only=only, **limits)
        assert (summary.failed, summary.status) == ([], 0)
    write_report(tmp_path, tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text()
    assert "Beyond the paper" in text
