"""Runs that start from pretrained weights: head first, lower rates below, resumed alike, and used without the file."""

import json
import time

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from maxsep.files import sha256_of
from maxsep.lab.data import prepare
from maxsep.lab.engine import load_model, train
from maxsep.lab.engine.evaluate import evaluate
from maxsep.lab.engine.model import build_model, load_pretrained, statistics_of
from maxsep.lab.engine.optim import build_optimiser, learning_rate, set_learning_rate
from maxsep.lab.engine.trainer import DeadlineError
from maxsep.lab.export import export
from maxsep.lab.predict import open_model
from maxsep.lab.spec import Execution, RunSpec

TUNED = {"optimiser": "adamw", "learning_rate": 0.01, "freeze_epochs": 1, "stem_rate": 0.1, "batch_size": 256}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A run on digits, its weights as a file, and their SHA-256."""
    runs = tmp_path_factory.mktemp("first")
    spec = RunSpec(epochs=1, seed=7, head="plain")
    folder = train(spec, runs=runs, execution=Execution(device="cpu"), progress=False)
    return folder / "weights.safetensors", sha256_of(folder / "weights.safetensors")


def body(tensors):
    return {key: value for key, value in tensors.items() if not key.startswith("head.")}


def is_equal(some, others):
    return some.keys() == others.keys() and all(torch.equal(some[key], others[key]) for key in some)


def test_all_methods_of_a_seed_start_from_the_file_and_differ_in_the_head(start):
    path, digest = start
    started = []
    for head in ("plain", "maxsep"):
        spec = RunSpec(head=head, weights=digest)
        network = build_model(spec, (1, 8, 8), 10)
        load_pretrained(spec, network, (1, 8, 8), path)
        started.append(body(network.state_dict()))
    assert is_equal(started[0], body(load_file(path)))
    assert is_equal(*started)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_the_head_alone_is_trained_first_then_all_layers(start, tmp_path, optimiser):
    path, digest = start
    how = {"runs": tmp_path, "execution": Execution(device="cpu", weights=path), "progress": False}
    spec = RunSpec(weights=digest, epochs=2, **TUNED | {"optimiser": optimiser})
    first = load_file(train(spec.replace(stop_after=1), **how) / "weights.safetensors")
    assert is_equal(body(first), body(load_file(path)))
    head = build_model(spec, (1, 8, 8), 10).head
    assert not torch.equal(first["head.weight"], head.weight)
    last = load_file(train(spec, **how) / "weights.safetensors")
    changed = [key for key in body(last) if not torch.equal(last[key], first[key])]
    assert changed == list(body(last))


def test_a_stopped_run_resumes_to_the_same_weights(start, tmp_path):
    path, digest = start
    spec = RunSpec(weights=digest, epochs=2, **TUNED)
    how = {"execution": Execution(device="cpu", weights=path), "progress": False}
    whole = train(spec, runs=tmp_path / "whole", **how)
    for _ in range(2):
        with pytest.raises(DeadlineError):
            train(spec, runs=tmp_path / "parts", deadline=time.monotonic(), **how)
    parts = train(spec, runs=tmp_path / "parts", **how)
    assert json.loads((parts / "result.json").read_text())["resumed"] == 2
    assert is_equal(load_file(parts / "weights.safetensors"), load_file(whole / "weights.safetensors"))
    assert str(path.parent) not in (whole / "result.json").read_text()  # the record names no path


def test_learning_rates_rise_from_the_first_layer_to_the_head():
    spec = RunSpec(network="timm/mobilenetv3_small_050", stem_rate=0.1, head_rate=2.0, freeze_epochs=1)
    network = build_model(spec, (3, 32, 32), 10)
    optimiser = build_optimiser(spec, network)
    factors = [group["factor"] for group in optimiser.param_groups]
    assert factors == sorted(factors)
    assert (factors[0], factors[-1]) == (pytest.approx(0.1), 2.0)
    assert len(factors) > 8
    grouped = [id(value) for group in optimiser.param_groups for value in group["params"]]
    assert sorted(grouped) == sorted(id(value) for value in network.parameters())
    assert optimiser.param_groups[0]["params"][0] is network.backbone.conv_stem.weight
    set_learning_rate(optimiser, 1.0, freezes=True)
    assert [group["lr"] for group in optimiser.param_groups] == [0.0] * (len(factors) - 1) + [2.0]
    set_learning_rate(optimiser, 1.0)
    assert [group["lr"] for group in optimiser.param_groups] == factors


def test_the_rate_rises_with_every_step_and_ends_near_zero():
    spec = RunSpec(schedule="cosine_steps", schedule_options=(("ramp", 2),), learning_rate=1.0, epochs=10)
    rates = [learning_rate(spec, epoch, step, 4) for epoch in range(10) for step in range(4)]
    assert rates[:7] == sorted(rates[:7])
    assert rates[8:] == sorted(rates[8:], reverse=True)
    assert (rates[0], rates[-1]) == (pytest.approx(1 / 8, rel=0.01), pytest.approx(1e-6))
    assert not spec.replace(freeze_epochs=3).is_frozen(3)
    assert [spec.replace(freeze_epochs=9, epochs=3).is_frozen(epoch) for epoch in range(3)] == [True, False, False]


def test_images_are_normalised_as_the_weights_expect(start):
    spec = RunSpec(network="timm/tf_efficientnet_lite0", weights="pretrained")
    data = prepare(spec)  # grey
    assert [values.tolist() for values in statistics_of(spec, data)] == [[0.5], [0.5]]
    assert statistics_of(RunSpec(weights=start[1]), data)[0].tolist() == pytest.approx([0.3053])
    assert statistics_of(spec.replace(normalisation="digits"), data)[0].tolist() == pytest.approx([0.3053])


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    """A run of a timm network on digits that it scales to 32 pixels, started from a file that is gone."""
    folder = tmp_path_factory.mktemp("scaled")
    spec = RunSpec(
        network="timm/mobilenetv3_small_050", image_size=32, epochs=1, max_train=60, max_test=20, calibration=0.1,
        **TUNED,
    )  # fmt: skip
    path = folder / "start.safetensors"
    save_file(build_model(spec.replace(seed=5), (1, 8, 8), 10).backbone.state_dict(), path)
    spec = spec.replace(weights=sha256_of(path))
    run = train(spec, runs=folder, execution=Execution(device="cpu", weights=path), progress=False)
    path.unlink()
    return run


def test_a_run_folder_is_enough_to_evaluate_and_predict(scaled):
    record = json.loads((scaled / "result.json").read_text())
    assert record["preprocessing"]["shape"] == [1, 8, 8]
    assert record["execution"]["channels_last"]
    assert evaluate(scaled)["top1"] == record["metrics"]["top1"]
    network, spec = load_model(scaled)
    images = prepare(spec).test.images[:5]
    mean, std = (torch.tensor(record["preprocessing"][name]).view(1, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        expected = network((images / 255 - mean) / std)
    torch.testing.assert_close(open_model(scaled).logits(images), expected)


def test_an_export_scales_images_itself(scaled, tmp_path):
    images = torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8)
    expected = open_model(scaled).logits(images)
    for format in ("safetensors", "onnx"):
        exported = open_model(export(scaled, tmp_path / format, format))
        torch.testing.assert_close(exported.logits(images), expected, rtol=1e-4, atol=1e-5)


def test_stages_share_their_start():
    first = RunSpec(weights="pretrained", network="timm/resnet18", image_size=64)
    with pytest.raises(ValueError, match="image_size"):
        RunSpec(start_from=first, network="timm/resnet18", weights="pretrained")
    second = first.replace(start_from=first)
    assert isinstance(build_model(second, (3, 8, 8), 4).head, nn.Module)
