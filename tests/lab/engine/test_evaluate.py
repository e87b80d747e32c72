"""Metrics, thresholds of "unknown" and the data that set them, features during training, runs evaluated again."""

import importlib
import json
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import f1_score
from torch import nn

from maxsep import detect
from maxsep.lab.data import Dataset, ImageSet, Splits, load_outliers, normalisation, prepare, subsets
from maxsep.lab.engine import evaluate, load_model, train
from maxsep.lab.engine.evaluate import (
    SCORES,
    Outputs,
    batch_of,
    check_score,
    known_ece,
    measure,
    predict,
    scores_of,
    with_rejected,
)
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.networks import MLP
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec, options

CPU = Execution(device="cpu")
MODULE, TRAIN_MODULE = (importlib.import_module(f"maxsep.lab.engine.{name}") for name in ("evaluate", "train"))
LOSS = nn.CrossEntropyLoss()


def run(runs, spec):
    return train(spec, runs=runs, execution=CPU, progress=False)


def outputs(logits, labels):
    return Outputs(logits, logits, torch.tensor(labels))


def test_metrics_are_those_of_a_hand_count():
    logits = torch.tensor([[9.0, 5, 4, 3, 2, 1], [1, 9, 5, 4, 3, 2], [9, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 9]])
    metrics = measure(outputs(logits, [0, 0, 5, 5]), LOSS)
    assert (metrics["top1"], metrics["top5"], metrics["balanced"]) == (0.5, 0.5, 0.5)
    assert metrics["per_class"] == [0.5, None, None, None, None, 0.5]
    # all four are sure to more than 14/15, so they share a bin: confidence against one half
    assert metrics["ece"] == pytest.approx(logits.softmax(1).max(1).values.mean().item() - 0.5, abs=1e-6)
    assert metrics["loss"] == pytest.approx(LOSS(logits, torch.tensor([0, 0, 5, 5])).item())
    uneven = measure(outputs(torch.tensor([[1.0, 0.0]] * 10), [0] * 9 + [1]), LOSS)
    assert (uneven["top1"], uneven["balanced"], uneven["top5"]) == (0.9, 0.5, 1.0)
    assert uneven["macro_f1"] == pytest.approx(9 / 19)  # of 2 * 9 / (9 + 10) and 0
    logits, labels = torch.randn(60, 4), torch.randint(3, (60,))  # class 3 is predicted and has no image
    expected = f1_score(labels, logits.argmax(1), labels=[0, 1, 2], average="macro")
    assert measure(Outputs(logits, logits, labels), LOSS)["macro_f1"] == pytest.approx(expected)


def test_the_calibration_error_is_that_of_the_scaled_logits():
    """Cosines 0.9 and 0.8: exp(27) / (exp(27) + exp(24)) = 1 / (1 + exp(-3)) = 0.9526, and three of four are right."""
    cosines = outputs(torch.tensor([[0.9, 0.8]] * 4), [0, 0, 0, 1])
    scaled, bare = measure(cosines, LOSS, 30.0), measure(cosines, LOSS)
    assert scaled["ece"] == pytest.approx(1 / (1 + math.exp(-3)) - 0.75, abs=1e-5)
    assert bare["ece"] == pytest.approx(0.75 - 1 / (1 + math.exp(-0.1)), abs=1e-5)
    assert (scaled["softmax_scale"], bare["softmax_scale"]) == (30.0, 1.0)
    assert all(scaled[name] == bare[name] for name in ("top1", "loss", "per_class"))


@pytest.mark.parametrize(
    ("loss", "values", "metrics", "expected"),
    [
        ("cross_entropy", {}, {"ece": 0.1}, 0.1),
        ("cross_entropy", {}, {"ece": 0.1, "softmax_scale": 1.0}, 0.1),
        ("ldam", {}, {"ece": 0.1}, None),
        ("ldam", {}, {"ece": 0.1, "softmax_scale": 30.0}, 0.1),
        ("ldam", {"scale": 10.0}, {"ece": 0.1, "softmax_scale": 30.0}, None),
        ("ldam", {"scale": 1.0}, {"ece": 0.1}, 0.1),
        *(("cross_entropy", {}, metrics, None) for metrics in ({}, {"ece": None}, {"ece": math.nan})),
    ],
)
def test_a_record_has_only_the_calibration_error_of_its_own_probabilities(loss, values, metrics, expected):
    assert known_ece(RunSpec(loss=loss, loss_options=options(**values)), metrics) == expected


def test_prediction_covers_all_images_in_order_and_restores_the_mode(monkeypatch):
    torch.manual_seed(0)
    images = ImageSet(torch.randint(256, (25, 1, 8, 8), dtype=torch.uint8), torch.randint(3, (25,)), ("a", "b", "c"))
    pipeline = Pipeline(MLP(3, dropout=0.5), torch.zeros(1), torch.ones(1)).train()
    whole = predict(pipeline, images)
    monkeypatch.setattr(MODULE, "BATCH", 7)
    parts = predict(pipeline, images)
    assert pipeline.training
    assert pipeline.network.training
    predict(pipeline.eval(), images)
    assert (pipeline.training, pipeline.network.training) == (False, False)
    torch.testing.assert_close(whole.logits, parts.logits)
    torch.testing.assert_close(pipeline.network.head(whole.features), whole.logits)
    assert not whole.logits.requires_grad
    monkeypatch.undo()
    assert (batch_of((3, 32, 32), "cuda"), batch_of((3, 224, 224), "cuda")) == (1000, 256)
    assert (batch_of((1, 8, 8), "cpu"), batch_of((3, 32, 32), "cpu"), batch_of((3, 999, 999), "cpu")) == (1000, 256, 1)


def numbered(counts, first):
    """Images that carry their own number in two pixels, and their class in the others."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    numbers = torch.arange(first, first + len(labels))
    images = (labels * 40).view(-1, 1, 1, 1).repeat(1, 1, 8, 8).to(torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = (numbers // 256).to(torch.uint8), (numbers % 256).to(torch.uint8)
    return ImageSet(images, labels, tuple(f"class {i}" for i in range(len(counts))))


def numbers_of(images):
    values = images[:, 0, 0, :2].long()
    return set((values[:, 0] * 256 + values[:, 1]).tolist())


TRAIN, TEST = numbered([90, 60, 40, 20], 0), numbered([30] * 4, 1000)


@pytest.fixture
def seen(monkeypatch):
    """The numbers of the images that the real pipeline trains on, evaluates and calibrates with."""
    found = {"trained": set(), "tested": set(), "calibrated": set()}
    normalise = Pipeline.normalise

    def watched(self, images):
        if self.training:
            found["trained"] |= numbers_of(images)
        return normalise(self, images)

    def watch(module, name):
        def watched_predict(pipeline, images, *more):
            found[name] |= numbers_of(images.images)
            return predict(pipeline, images, *more)

        monkeypatch.setattr(module, "predict", watched_predict)

    monkeypatch.setattr(Dataset, "read", lambda *_, **__: Splits("digits", TRAIN, TEST))
    monkeypatch.setattr(Pipeline, "normalise", watched)
    watch(importlib.import_module("maxsep.lab.engine.trainer"), "tested")
    watch(MODULE, "calibrated")
    return found


def check_no_leak(seen):
    assert all(seen.values()), "every split is in use"
    assert not seen["calibrated"] & seen["trained"], "calibration images were trained on"
    assert not seen["calibrated"] & seen["tested"], "calibration images were tested on"
    assert not seen["trained"] & seen["tested"], "test images were trained on"
    assert seen["calibrated"] <= numbers_of(TRAIN.images)


SPEC = RunSpec(calibration=0.2, epochs=2, batch_size=64)
LEAKS = {
    "plain": SPEC,
    "validation": SPEC.replace(validation=0.25),
    "long tail": SPEC.replace(imbalance=0.1, subset_seed=3),
    "limits": SPEC.replace(max_train=50, max_test=20),
    "balanced batches": SPEC.replace(sampler="class_balanced", normalisation="train"),
    "two stages": SPEC.replace(start_from=SPEC, backbone="frozen"),
}


@pytest.mark.parametrize("case", LEAKS)
def test_calibration_data_are_neither_trained_nor_tested_on(case, seen, tmp_path):
    folder = run(tmp_path, LEAKS[case])
    check_no_leak(seen)
    assert Run(folder).unknown["images"] == len(seen["calibrated"])


def test_a_leak_would_be_noticed(seen, tmp_path, monkeypatch):
    real = subsets.hold_out
    with monkeypatch.context() as patch:
        patch.setattr(subsets, "hold_out", lambda labels, *more: (torch.arange(len(labels)), real(labels, *more)[1]))
        run(tmp_path / "trained", SPEC)
    with pytest.raises(AssertionError, match="trained on"):
        check_no_leak(seen)
    for numbers in seen.values():
        numbers.clear()
    monkeypatch.setattr(TRAIN_MODULE, "prepare", lambda *_, **__: Splits("digits", TRAIN, TEST, TEST))
    run(tmp_path / "tested", SPEC)
    with pytest.raises(AssertionError, match="tested on"):
        check_no_leak(seen)


@pytest.mark.parametrize(
    "fields",
    [
        {"radius": 0.5, "class_order": "reversed_frequency"},
        {"head": "plain", "precision": "bf16-mixed"},
        {"head": "cosine_maxsep", "precision": "64-true"},
        {"head": "cosine", "loss": "ldam"},
    ],
)
def test_thresholds_are_those_of_the_stored_weights_in_full_precision(fields, tmp_path):
    spec = RunSpec(calibration=0.2, epochs=2, batch_size=128, **fields)
    folder, data = run(tmp_path, spec), prepare(spec)
    pipeline = Pipeline(load_model(folder)[0].float(), *normalisation(spec.normalisation, data))
    logits, stored = predict(pipeline, data.calibration).logits, Run(folder).unknown
    assert (stored["score"], stored["tpr"], stored["images"]) == ("max_logit", 0.95, len(data.calibration))
    assert stored["softmax_scale"] == spec.softmax_scale
    for name, threshold in stored["thresholds"].items():
        scores = getattr(detect, name)(logits if name == "max_logit" else spec.softmax_scale * logits)
        assert threshold == pytest.approx(detect.threshold_at_tpr(scores, 0.95), rel=1e-5)
        assert (scores >= threshold - 1e-4).double().mean() >= 0.95
    rejected, test = evaluate(folder)["unknown"]["rejected"], predict(pipeline, data.test).logits
    for name in SCORES:
        below = scores_of(name, test, spec.softmax_scale) < stored["thresholds"][name]
        assert rejected[name] == pytest.approx(below.double().mean().item(), abs=0.01)


def test_scores_that_are_no_number_are_rejected():
    logits = torch.tensor([[1.0, 0.0], [float("nan"), 3.0], [2.0, 0.0], [5.0, 0.0]])
    unknown = {"score": "max_logit", "thresholds": {"max_logit": 2.0, "max_softmax": 0.99}}
    assert with_rejected(unknown, logits)["rejected"] == {"max_logit": 0.5, "max_softmax": 0.75}
    scaled = with_rejected(unknown | {"softmax_scale": 30.0}, logits)["rejected"]
    assert scaled == {"max_logit": 0.5, "max_softmax": 0.25}, "softmax takes scaled logits, the largest logit does not"
    assert with_rejected(None, logits) is None
    assert with_rejected(unknown, None) == unknown | {"rejected": None}
    with pytest.raises(ValueError, match="odin"):
        check_score("odin")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs"), RunSpec(epochs=2, radius=0.5, max_train=400, max_test=150))


def test_the_model_is_rebuilt_and_scores_the_same(folder, tmp_path):
    state = torch.get_rng_state()
    model, spec = load_model(folder)
    assert torch.equal(state, torch.get_rng_state())
    assert (spec, model.training, Run(folder).unknown) == (Run(folder).spec, False, None)
    pipeline = MODULE.load_pipeline(folder)
    predict(pipeline, prepare(spec).test)
    assert (pipeline.training, pipeline.network.training) == (False, False)
    scaled = run(tmp_path, RunSpec(head="cosine", loss="ldam", epochs=10, batch_size=64))
    assert Run(scaled).metrics["ece"] < 0.1, "of the bare cosines it is above one half"
    for each in (folder, scaled):
        metrics, recorded = evaluate(each), Run(each).metrics
        for name in ("top1", "top5", "balanced", "per_class", "loss", "ece", "softmax_scale", "angular_fisher"):
            assert metrics[name] == pytest.approx(recorded[name], abs=1e-5)


def test_normalisation_and_class_counts_are_those_that_the_run_recorded(folder, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(folder / "weights.safetensors", copy)
    original = evaluate(folder)["loss"]

    def loss(counts=None, **preprocessing):
        record = json.loads((folder / "result.json").read_text())
        record["preprocessing"] |= preprocessing
        del record["name"]
        if counts is not None:
            record["spec"]["loss"], record["metrics"]["class_counts"] = "logit_adjusted", counts
        (copy / "result.json").write_text(json.dumps(record))
        return evaluate(copy)["loss"]

    assert loss(mean=[0.9]) != pytest.approx(original, abs=1e-3)
    assert loss(counts=[1] * 10) == pytest.approx(original), "equal classes: cross-entropy"
    assert loss(counts=[1000] + [1] * 9) != pytest.approx(original, abs=1e-3)
    with pytest.raises(ValueError, match="classes of digits"):
        loss(classes=list("1023456789"))


WATCHED = RunSpec(dataset="osr_cifar10_0", head="plain", epochs=3, batch_size=32, features_at=(1, 3))


def test_features_are_recorded_and_training_does_not_notice(tiny_cifar, tmp_path):
    (tmp_path / "data").mkdir()
    root = tiny_cifar(tmp_path / "data", images=20)
    watched, plain, limited = (
        train(WATCHED.replace(**change), data_root=root, runs=tmp_path, execution=CPU, progress=False)
        for change in ({}, {"features_at": ()}, {"max_train": 12, "max_test": 6})
    )
    found = Run(limited).features["epochs"]["1"]
    assert (len(found["known"]), len(found["unknown"])) == (6, 6)
    ours, theirs = (load_file(folder / "weights.safetensors") for folder in (watched, plain))
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert not (plain / "features.json").exists()
    history, record = Run(watched).history, Run(watched).features
    assert list(record["epochs"]) == ["1", "3"]
    assert record["classes"] == [f"class {i}" for i in (0, 6, 4, 9, 1, 7)]
    data, pipeline = prepare(WATCHED, root), MODULE.load_pipeline(watched)
    unknown = load_outliers("unknown", root, like=WATCHED.dataset)
    for images, side in ((data.test, "known"), (unknown, "unknown")):
        features = predict(pipeline, images).features
        assert history[-1][f"norm_{side}"] == pytest.approx(features.norm(dim=1).mean().item(), rel=1e-5)
        assert np.allclose(record["epochs"]["3"][side], features, atol=1e-3)
    assert record["epochs"]["3"]["labels"] == data.test.labels.tolist()
