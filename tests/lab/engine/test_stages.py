"""Two-stage runs: what the second takes over, what stays fixed, and that it resumes across the boundary."""

import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from maxsep.lab.engine import evaluate, load_model, step, train
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec, options

FIRST = RunSpec(
    dataset="digits",
    imbalance=0.1,
    network="resnet32",
    head="maxsep",
    epochs=1,
    batch_size=32,
    max_train=80,
    max_test=60,
    mixup=1.0,
)
SECOND = FIRST.replace(
    start_from=FIRST,
    mixup=0.0,
    epochs=2,
    evaluate_every=1,
    sampler="class_balanced",
    backbone="frozen_shifted_norm",
    logit_scaling=True,
    head_rate=0.2,
    loss="label_aware_smoothing",
    loss_options=options(smooth_head=0.4, smooth_tail=0.1),
)
CPU = Execution(device="cpu")


def run(runs, spec=SECOND):
    return train(spec, runs=runs, execution=CPU, progress=False)


def weights(folder):
    return load_file(folder / "weights.safetensors")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("staged"))


def test_the_first_stage_is_trained_first_and_stays(finished):
    first = Run(finished.parent / FIRST.name)
    second = Run(finished)
    assert (first.spec, second.spec) == (FIRST, SECOND)
    assert second.metrics["parameters"] == first.metrics["parameters"] + 10
    assert [row["learning_rate"] for row in second.history] == pytest.approx([0.1, 0.05])


def test_shifted_norm_moves_statistics_and_the_head_but_no_weight_of_the_backbone(finished):
    before, after = weights(finished.parent / FIRST.name), weights(finished)
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    for name, value in before.items():
        if name.startswith("head."):
            continue
        assert torch.equal(value, after[name]) != name.endswith(statistics), name
    assert not torch.equal(before["head.weight"], after["head.head.weight"])
    assert not torch.equal(after["head.scale"], torch.ones(10))


def test_a_frozen_backbone_rests(finished):
    before = weights(finished.parent / FIRST.name)
    after = weights(run(finished.parent, SECOND.replace(backbone="frozen", epochs=1)))
    assert all(torch.equal(value, after[name]) for name, value in before.items() if not name.startswith("head."))
    assert not torch.equal(before["head.weight"], after["head.head.weight"])


def test_without_a_step_the_second_stage_says_what_the_first_said(finished):
    still = run(finished.parent, SECOND.replace(backbone="frozen", epochs=1, learning_rate=0.0))
    assert Run(still).metrics["per_class"] == Run(finished.parent / FIRST.name).metrics["per_class"]


def test_a_staged_run_is_rebuilt_and_scores_the_same(finished):
    model, _ = load_model(finished)
    assert type(model.head).__name__ == "LogitScaledHead"
    told = Run(finished).metrics
    assert evaluate(finished)["per_class"] == told["per_class"]
    assert evaluate(finished)["loss"] == pytest.approx(told["loss"])


@pytest.mark.parametrize("at", [1, 4])
def test_it_resumes_across_the_boundary(finished, tmp_path, monkeypatch, at):
    call, steps = step.Step.__call__, iter(range(1000))

    def counted(self, indices):
        if next(steps) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return call(self, indices)

    with monkeypatch.context() as patch:
        patch.setattr(step.Step, "__call__", counted)
        with pytest.raises(SystemExit):
            run(tmp_path)
    # three steps are the first stage
    assert (tmp_path / FIRST.name / "result.json").exists() == (at >= 3)
    again = run(tmp_path)
    for folder in (again, tmp_path / FIRST.name):
        reference = finished.parent / folder.name
        assert (folder / "weights.safetensors").read_bytes() == (reference / "weights.safetensors").read_bytes()
