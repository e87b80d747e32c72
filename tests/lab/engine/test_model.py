"""Networks with their heads, the pipeline, and runs in two stages."""

import os
import signal
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from maxsep import heads
from maxsep.lab.engine import evaluate, load_model, step, train
from maxsep.lab.engine.model import Pipeline, build_model, derive, statistics_of
from maxsep.lab.networks import MLP
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec, options


@pytest.mark.parametrize("network", ["mlp", "resnet32"])
def test_heads_of_one_seed_share_the_backbone(network):
    shape = (3, 16, 16)
    reference = build_model(RunSpec(network=network, head="plain"), shape, 10).state_dict()
    shared = [name for name in reference if not name.startswith("head.")]
    assert shared
    for head, radius in (("scaled", 0.1), ("maxsep", 0.1), ("control", 0.1), ("learnable_matrix", 1.0)):
        other = build_model(RunSpec(network=network, head=head, radius=radius), shape, 10).state_dict()
        assert all(torch.equal(reference[name], other[name]) for name in shared)
    another = build_model(RunSpec(network=network, head="plain", seed=1), shape, 10).state_dict()
    assert not torch.equal(reference["head.weight"], another["head.weight"])


@pytest.mark.parametrize("head", heads.names())
def test_the_networks_rules_for_the_bias_hold_for_every_head(head):
    def biases(network, scaling=False):
        model = build_model(RunSpec(network=network, head=head, logit_scaling=scaling), (3, 8, 8), 6)
        return [parameter for name, parameter in model.head.named_parameters() if "bias" in name]

    assert not biases("vgg32")
    found = [*biases("wrn40_2"), *biases("wrn40_2", scaling=True)]
    assert not any(parameter.any() for parameter in found)
    assert found or head != "maxsep"


def test_the_control_is_built_by_name_and_starts_centred():
    head = build_model(RunSpec(head="control", radius=0.1), (1, 8, 8), 10).head
    assert isinstance(head, heads.ControlHead)
    assert head.scale == pytest.approx(0.1 * (10 / 9) ** 0.5)
    torch.testing.assert_close(head.weight.mean(0), torch.zeros(head.in_features), rtol=0, atol=1e-7)


def test_a_head_may_start_centred_and_scaled():
    plain, started = (build_model(RunSpec(head="plain", head_start=s), (1, 8, 8), 10).head for s in (1.0, 0.1))
    for name in ("weight", "bias"):
        before, after = (getattr(head, name) for head in (plain, started))
        torch.testing.assert_close(after, (before - before.mean(0)) * 0.1)


def test_rate_decay_and_start_of_a_plain_head_make_the_control(tmp_path):
    """With k = radius^2 C / (C - 1), V = sqrt(k) W follows W's path at k times the rate and 1/k times the decay."""
    k = 0.1**2 * 10 / 9
    shared = RunSpec(epochs=3, batch_size=128, max_train=400, precision="64-true", nesterov=True)
    control = shared.replace(head="control", radius=0.1)
    plain = shared.replace(head="plain", head_rate=k, head_decay=1 / k, head_start=k**0.5)
    ours, theirs = (Run(run(tmp_path, spec)).weights() for spec in (control, plain))
    for name in ("head.weight", "head.bias", "layers.1.weight"):
        scale = k**0.5 if name.startswith("head.") else 1.0
        torch.testing.assert_close(ours[name] * scale, theirs[name], rtol=0, atol=1e-8)  # starts are float32


def test_the_order_of_classes_reaches_the_head():
    counts = [3, 50, 7]
    head = build_model(RunSpec(class_order="frequency"), (1, 8, 8), 3, counts).head
    assert head.class_order.tolist() == [1, 2, 0]
    scaled = build_model(RunSpec(class_order=(2, 0, 1), logit_scaling=True), (1, 8, 8), 3).head
    assert scaled.head.class_order.tolist() == [2, 0, 1]
    assert build_model(RunSpec(), (1, 8, 8), 3, counts).head.class_order is None


@given(seed=st.integers(-(2**40), 2**40), rank=st.integers(0, 64))
def test_derived_seeds_suit_torch_and_differ_by_purpose_and_rank(seed, rank):
    values = {derive(seed, "order", rank), derive(seed, "dropout", rank), derive(seed, "order", rank + 1)}
    assert len(values) == 3
    assert all(0 <= value < 2**63 for value in values)


def test_grey_images_get_the_means_of_the_channels_that_pretrained_weights_expect():
    spec = RunSpec(network="timm/resnet18", weights="pretrained")
    for channels, expected in ((3, ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])), (1, ([0.449], [0.226]))):
        found = statistics_of(spec, SimpleNamespace(train=SimpleNamespace(shape=(channels, 8, 8))))
        assert [values.tolist() for values in found] == [pytest.approx(values) for values in expected]


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_pipeline_normalises_raw_images(channels_last):
    mean, std = torch.tensor([0.5, 0.2, 0.1]), torch.tensor([0.3, 0.2, 0.1])
    images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    network = MLP(5, shape=(3, 8, 8)).eval()
    pipeline = Pipeline(network, mean, std, channels_last=channels_last).eval()
    expected = (images / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    normalised = pipeline.normalise(images)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert normalised.is_contiguous(memory_format=layout)
    torch.testing.assert_close(normalised, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(pipeline(images), network(expected), rtol=1e-4, atol=1e-5)
    assert all(name.startswith("network.") for name in pipeline.state_dict()), "no part of the weights"


FIRST = RunSpec(
    **{"dataset": "digits", "imbalance": 0.1, "network": "resnet32", "head": "maxsep", "class_order": "frequency"},
    **{"epochs": 1, "batch_size": 32, "max_train": 80, "max_test": 60, "mixup": 1.0},
)
SECOND = FIRST.replace(
    **{"start_from": FIRST, "mixup": 0.0, "epochs": 2, "evaluate_every": 1, "sampler": "class_balanced"},
    **{"backbone": "frozen_shifted_norm", "logit_scaling": True, "head_rate": 0.2, "loss": "label_aware_smoothing"},
    loss_options=options(smooth_head=0.4, smooth_tail=0.1),
)


def run(runs, spec=SECOND):
    return train(spec, runs=runs, execution=Execution(device="cpu"), progress=False)


def weights(folder):
    return load_file(folder / "weights.safetensors")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("staged"))


def test_the_first_stage_is_trained_first_and_stays(finished):
    first, second = Run(finished.parent / FIRST.name), Run(finished)
    assert (first.spec, second.spec) == (FIRST, SECOND)
    assert second.metrics["parameters"] == first.metrics["parameters"] + 10
    assert [row["learning_rate"] for row in second.history] == pytest.approx([0.1, 0.05])


def test_shifted_norm_moves_statistics_and_the_head_but_no_weight_of_the_backbone(finished):
    before, after = weights(finished.parent / FIRST.name), weights(finished)
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    for name, value in before.items():
        if not name.startswith("head."):
            assert torch.equal(value, after[name]) != name.endswith(statistics), name
    assert not torch.equal(before["head.weight"], after["head.head.weight"])
    assert not torch.equal(after["head.scale"], torch.ones(10))


def test_a_frozen_backbone_does_not_move(finished):
    before = weights(finished.parent / FIRST.name)
    after = weights(run(finished.parent, SECOND.replace(backbone="frozen", epochs=1)))
    assert all(torch.equal(value, after[name]) for name, value in before.items() if not name.startswith("head."))
    assert not torch.equal(before["head.weight"], after["head.head.weight"])
    still = run(finished.parent, SECOND.replace(backbone="frozen", epochs=1, learning_rate=0.0))
    assert Run(still).metrics["per_class"] == Run(finished.parent / FIRST.name).metrics["per_class"]


def test_a_staged_run_is_rebuilt_and_scores_the_same(finished):
    model, _ = load_model(finished)
    assert type(model.head).__name__ == "LogitScaledHead"
    recorded, again = Run(finished).metrics, evaluate(finished)
    assert again["per_class"] == recorded["per_class"]
    assert again["loss"] == pytest.approx(recorded["loss"])


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
    assert (Run(tmp_path / FIRST.name).state == "finished") == (at >= 3), "three steps are the first stage"
    for folder in (run(tmp_path), tmp_path / FIRST.name):
        reference = finished.parent / folder.name
        assert (folder / "weights.safetensors").read_bytes() == (reference / "weights.safetensors").read_bytes()
