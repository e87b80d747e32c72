"""The table of LDAM and MiSLAS: its cells, the protocols' constants, and a run of every kind on a handful of images."""

import pytest

from maxsep.lab import grid, recipes
from maxsep.lab.data import long_tail_counts
from maxsep.lab.engine.losses import build_loss
from maxsep.lab.engine.optim import learning_rate
from maxsep.lab.report import write_report

RECIPE = recipes.get("longtail")


def specs(**wanted):
    return [s for s in RECIPE.specs(1) if all(getattr(s, key) == value for key, value in wanted.items())]


def test_every_head_has_both_margins_with_and_without_deferred_weights():
    ldam = {(s.head, s.loss_options) for s in specs(loss="ldam", imbalance=0.01)}
    assert len(ldam) == 4 * 2 * 2
    assert {dict(options)["max_margin"] for _, options in ldam} == {0.4, 0.5}
    deferred = [dict(options) for _, options in ldam if "reweight" in dict(options)]
    assert len(deferred) == 8
    assert all(options["reweight_from"] == 160 for options in deferred)


def test_the_protocol():
    for spec in RECIPE.specs(1):
        told = (spec.network, spec.batch_size, spec.weight_decay, spec.momentum, spec.learning_rate, spec.augmentation)
        assert told == ("resnet32", 128, 2e-4, 0.9, 0.1, "crop_flip")
        assert (spec.normalisation, spec.evaluate_every, spec.subset_seed) == ("cifar10", 1, 0)
    ldam, stage1 = specs(loss="ldam")[0], specs(mixup=1.0)[0]
    assert [learning_rate(ldam, epoch) for epoch in (0, 5, 160, 180)] == pytest.approx([0.02, 0.1, 1e-3, 1e-5])
    assert [learning_rate(stage1, epoch) for epoch in (0, 5, 160, 180)] == pytest.approx([0.02, 0.1, 1e-2, 1e-3])


@pytest.mark.parametrize(
    ("imbalance", "head_rate", "smoothing"), [(0.1, 0.1, (0.2, 0)), (0.02, 0.1, (0.3, 0)), (0.01, 0.2, (0.4, 0.1))]
)
def test_the_second_stage(imbalance, head_rate, smoothing):
    for spec in specs(imbalance=imbalance, epochs=10):
        assert spec.start_from in specs(imbalance=imbalance, mixup=1.0)
        assert (spec.backbone, spec.sampler, spec.mixup) == ("frozen_shifted_norm", "class_balanced", 0.0)
        assert (spec.logit_scaling, spec.head_rate) == (True, head_rate)
        assert [learning_rate(spec, epoch) for epoch in (0, 5)] == pytest.approx([0.1, 0.05])
        loss = build_loss(spec, long_tail_counts(500, 100, imbalance))
        assert (loss.smoothing[0].item(), loss.smoothing[-1].item()) == pytest.approx(smoothing)


def test_other_epochs_reach_both_stages_and_the_deferred_weights():
    for spec in RECIPE.specs(1, epochs=20):
        if spec.start_from is not None:
            assert (spec.epochs, spec.start_from.epochs) == (10, 20)
        if "reweight" in dict(spec.loss_options):
            assert dict(spec.loss_options)["reweight_from"] == 16
    assert {s.epochs for s in RECIPE.specs(1, epochs=2)} == {2}


@pytest.fixture(scope="module")
def data(tmp_path_factory, tiny_cifar):
    return tiny_cifar(tmp_path_factory.mktemp("data"), "cifar100", images=1000)


def test_it_runs_and_its_report_tells_both_epochs_and_the_shots(data, tmp_path):
    summary = grid.reproduce(
        RECIPE, seeds=1, epochs=1, only="imbalance=0.1,head=maxsep_cosine|maxsep,radius=1",
        max_train=100, max_test=100, runs=tmp_path / "runs", data_root=data,
    )  # fmt: skip
    assert summary.failed == []
    assert len(summary.finished) == 4 + 2
    text = write_report(tmp_path / "runs", tmp_path / "report").read_text()
    assert '<section id="long-tail">' in text
    for part in ("best epoch, %", "few, %", "paper 57.72", "paper 63.52", "second stage"):
        assert part in text, part
