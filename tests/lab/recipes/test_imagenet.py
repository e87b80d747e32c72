"""The table of ImageNet: its cells, and a run of every head on a handful of pictures in the official layout."""

from maxsep.lab import grid, recipes
from maxsep.lab.report import write_report

RECIPE = recipes.get("imagenet")


def test_every_setting_has_a_control():
    pairs = [(s.head, s.radius) for s in RECIPE.specs(1, only="dataset=imagenet,network=resnet50")]
    assert pairs == [("plain", 1.0), ("maxsep", 1.0), ("scaled", 0.1), ("maxsep", 0.1)]


def test_the_settings_that_the_paper_tells():
    for spec in RECIPE.specs():
        assert (spec.optimiser, spec.schedule, spec.learning_rate, spec.momentum) == ("sgd", "cosine", 0.1, 0.9)
        assert spec.weight_decay == 5e-4
        assert ("jitter" in spec.augmentation) == (spec.dataset == "imagenet_lt")


def test_trained_and_told(tmp_path, tiny_imagenet):
    root, runs = tiny_imagenet(tmp_path / "data"), tmp_path / "runs"
    limits = {"seeds": 1, "epochs": 1, "max_train": 6, "max_test": 4}
    summary = grid.reproduce(RECIPE, only="network=resnet50,dataset=imagenet_lt", runs=runs, data_root=root, **limits)
    assert summary.failed == []
    assert len(summary.finished) == 4
    page = write_report(runs, tmp_path / "report").read_text()
    for told in ("ImageNet-LT", "ResNet-50", "top-5, %", "47.30", "73.60", "= linear"):
        assert told in page, told
