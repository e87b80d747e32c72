"""The table of ImageNet: its cells, and a run of every head on a handful of pictures in the official layout."""

import pytest

from maxsep.lab import grid, recipes
from maxsep.lab.recipes import paper
from maxsep.lab.report import render

RECIPE = recipes.get("imagenet")


def test_all_cells_of_the_paper_are_there_with_a_control_beside_them():
    cells = {}
    for spec in RECIPE.specs(1):
        if number := paper.imagenet(spec):
            cells[spec.dataset, spec.network, spec.head] = number.value, paper.imagenet(spec, "top5").value
    assert len(cells) == 8
    assert cells["imagenet", "resnet152", "maxsep"] == (78.5, 95.1)
    assert cells["imagenet_lt", "resnet50", "plain"] == (43.8, 70.4)
    pairs = [(s.head, s.radius) for s in RECIPE.specs(1, only="dataset=imagenet,network=resnet50")]
    assert pairs == [("plain", 1.0), ("maxsep", 1.0), ("scaled", 0.1), ("maxsep", 0.1)]


def test_the_settings_that_the_paper_tells():
    for spec in RECIPE.specs():
        assert (spec.optimiser, spec.schedule, spec.learning_rate, spec.momentum) == ("sgd", "cosine", 0.1, 0.9)
        assert spec.weight_decay == 5e-4
        assert ("jitter" in spec.augmentation) == (spec.dataset == "imagenet_lt")


@pytest.mark.parametrize("changes", [{"radius": 0.1}, {"mixup": 0.2}, {"loss": "logit_adjusted"}, {"validation": 0.1}])
def test_other_experiments_have_no_number_of_the_paper(changes):
    spec = RECIPE.specs(1)[0].replace(head="maxsep", **changes)
    assert paper.imagenet(spec) is None


def test_trained_and_told(tmp_path, tiny_imagenet):
    root, runs = tiny_imagenet(tmp_path / "data"), tmp_path / "runs"
    limits = {"seeds": 1, "epochs": 1, "max_train": 6, "max_test": 4}
    summary = grid.reproduce(RECIPE, only="network=resnet50,dataset=imagenet_lt", runs=runs, data_root=root, **limits)
    assert summary.failed == []
    assert len(summary.finished) == 4
    page = render(runs, tmp_path / "report").read_text()
    for told in ("ImageNet-LT", "ResNet-50", '<section id="top5">', "47.30", "73.60", "= plain", "does not say epochs"):
        assert told in page, told
    assert "Table 1 are mostly" not in page
