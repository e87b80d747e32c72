"""Which training curves a report has: those that can be compared."""

from maxsep.lab import recipes
from maxsep.lab.report.collect import collect
from maxsep.lab.report.render import build


def curves(runs):
    sections = [section for section in build(collect(runs)).sections if section.id == "curves"]
    return [figure for section in sections for figure in section.figures]


def test_heads_of_one_loss_are_drawn_together_and_a_lone_one_is_not(tmp_path, run_folders):
    specs = recipes.get("beyond").specs(1, only="network=resnet32,dataset=cifar10,augmentation=crop_flip,mixup=0")
    run_folders(tmp_path, [spec for spec in specs if spec.weight_decay == 1e-3])
    loss, accuracy = curves(tmp_path)
    assert "logit adjusted" in loss.title
    assert accuracy.title == loss.title
    assert "plain ends at" in loss.alt
    assert "maxsep ends at" in loss.alt
    assert "cosine" not in loss.alt  # it has the plain head's colour


def test_a_curve_without_another_is_drawn_where_there_is_none_else(tmp_path, run_folders):
    specs = recipes.get("beyond").specs(1, only="network=resnet32,dataset=cifar10,augmentation=crop_flip")
    run_folders(tmp_path, [spec for spec in specs if spec.head == "plain" and spec.loss == "cross_entropy"])
    assert len(curves(tmp_path)) == 2


def test_heads_that_compare_directions_have_curves(tmp_path, run_folders):
    specs = recipes.get("longtail").specs(1, only="imbalance=0.01,loss=ldam")
    run_folders(tmp_path, [spec for spec in specs if ("max_margin", 0.5) in spec.loss_options and not spec.reweights])
    loss, accuracy = curves(tmp_path)
    assert "LDAM, margin 0.5" in loss.title
    for head in ("cosine", "cosine maxsep", "maxsep cosine", "centred cosine"):
        assert f"{head} ends at" in loss.alt
    assert accuracy.title == loss.title
