"""The threshold of "unknown", and that the data which sets it serves nothing else."""

import json
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep import detect
from maxsep.lab.data import Dataset, ImageSet, Splits, normalisation, prepare, subsets
from maxsep.lab.engine import evaluate, load_model, train
from maxsep.lab.engine.evaluate import SCORES, check_score, predict, with_rejected
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.predict import open_model
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

CPU = Execution(device="cpu")


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
    """What the real pipeline trains on, evaluates and calibrates with, by the numbers in the pixels."""
    found = {"trained": set(), "tested": set(), "calibrated": set()}
    normalise = Pipeline.normalise

    def watched(self, images):
        if self.training:
            found["trained"] |= numbers_of(images)
        return normalise(self, images)

    def watch(place, name):
        def watched_predict(pipeline, images, *more):
            found[name] |= numbers_of(images.images)
            return predict(pipeline, images, *more)

        monkeypatch.setattr(f"maxsep.lab.engine.{place}.predict", watched_predict)

    monkeypatch.setattr(Dataset, "read", lambda *_, **__: Splits("digits", TRAIN, TEST))
    monkeypatch.setattr(Pipeline, "normalise", watched)
    watch("trainer", "tested")
    watch("calibration", "calibrated")
    return found


def check_no_leak(seen):
    assert all(seen.values()), "every split is in use"
    assert not seen["calibrated"] & seen["trained"], "calibration images were trained on"
    assert not seen["calibrated"] & seen["tested"], "calibration images were tested on"
    assert not seen["trained"] & seen["tested"], "test images were trained on"
    assert seen["calibrated"] <= numbers_of(TRAIN.images)


SPEC = RunSpec(calibration=0.2, epochs=2, batch_size=64)


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        SPEC.replace(validation=0.25),
        SPEC.replace(imbalance=0.1, subset_seed=3),
        SPEC.replace(max_train=50, max_test=20),
        SPEC.replace(sampler="class_balanced", normalisation="train"),
        SPEC.replace(start_from=SPEC, backbone="frozen"),
    ],
    ids=["plain", "validation", "long tail", "limits", "balanced batches", "two stages"],
)
def test_calibration_data_is_neither_trained_nor_tested_on(spec, seen, tmp_path):
    folder = train(spec, runs=tmp_path, execution=CPU, progress=False)
    check_no_leak(seen)
    assert Run(folder).unknown["images"] == len(seen["calibrated"])


def test_a_hold_out_that_stays_in_training_would_be_noticed(seen, tmp_path, monkeypatch):
    real = subsets.hold_out
    monkeypatch.setattr(subsets, "hold_out", lambda labels, *more: (torch.arange(len(labels)), real(labels, *more)[1]))
    train(SPEC, runs=tmp_path, execution=CPU, progress=False)
    with pytest.raises(AssertionError, match="calibration images were trained on"):
        check_no_leak(seen)


def test_calibration_on_test_images_would_be_noticed(seen, tmp_path, monkeypatch):
    monkeypatch.setattr("maxsep.lab.engine.loop.prepare", lambda *_, **__: Splits("digits", TRAIN, TEST, TEST))
    train(SPEC, runs=tmp_path, execution=CPU, progress=False)
    with pytest.raises(AssertionError, match="calibration images were tested on"):
        check_no_leak(seen)


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(1, 40), min_size=2, max_size=6).filter(lambda counts: max(counts) > 3),
    validation=st.sampled_from([0.0, 0.1, 0.5]),
    calibration=st.floats(0.01, 0.9),
    seed=st.integers(0, 5),
)
def test_every_class_with_two_images_gives_one_and_keeps_one(counts, validation, calibration, seed):
    whole = Splits("digits", numbered(counts, 0), numbered([1] * len(counts), 1000))
    spec = RunSpec(validation=validation, calibration=calibration, subset_seed=seed)
    with mock.patch.object(Dataset, "read", return_value=whole):
        found, before = prepare(spec), prepare(spec.replace(calibration=0.0))
    parts = [numbers_of(split.images) for split in (found.train, found.calibration)]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == numbers_of(before.train.images)
    assert torch.equal(found.test.images, before.test.images), "validation is the same with and without"
    pairs = zip(before.train.class_counts, found.train.class_counts, found.calibration.class_counts, strict=True)
    for had, kept, held in pairs:
        assert held == min(max(1, round(calibration * had)), had - 1)
        assert kept == had - held >= 1
    assert before.calibration is None


def test_single_images_cannot_be_held_out():
    whole = Splits("digits", numbered([1, 1], 0), numbered([1, 1], 1000))
    with (
        mock.patch.object(Dataset, "read", return_value=whole),
        pytest.raises(ValueError, match="calibration must be 0"),
    ):
        prepare(RunSpec(calibration=0.5))


@pytest.mark.parametrize(
    "spec",
    [
        RunSpec(calibration=0.2, epochs=2, batch_size=128, radius=0.5),
        RunSpec(calibration=0.2, epochs=2, batch_size=128, head="plain", precision="bf16-mixed"),
        RunSpec(calibration=0.2, epochs=2, batch_size=128, head="cosine_maxsep", precision="64-true"),
        RunSpec(calibration=0.2, epochs=2, batch_size=128, head="cosine", loss="ldam"),
    ],
    ids=["float32", "bfloat16", "float64", "scaled cosines"],
)
def test_the_thresholds_are_those_of_the_stored_weights_in_full_precision(spec, tmp_path):
    folder = train(spec, runs=tmp_path, execution=CPU, progress=False)
    network, _ = load_model(folder)
    data = prepare(spec)
    logits = predict(Pipeline(network.float(), *normalisation(spec.normalisation, data)), data.calibration).logits
    stored = json.loads((folder / "result.json").read_text())["unknown"]
    assert Run(folder).unknown == stored
    assert (stored["score"], stored["tpr"], stored["images"]) == ("max_logit", 0.95, len(data.calibration))
    assert stored["softmax_scale"] == spec.softmax_scale
    assert list(stored["thresholds"]) == ["max_logit", "max_softmax", "energy"]
    for name, threshold in stored["thresholds"].items():
        scores = getattr(detect, name)(logits if name == "max_logit" else spec.softmax_scale * logits)
        assert threshold == pytest.approx(detect.threshold_at_tpr(scores, 0.95), rel=1e-5)
        assert (scores >= threshold - 1e-4).double().mean() >= 0.95


def test_a_run_without_calibration_data_has_no_threshold(tmp_path):
    folder = train(RunSpec(epochs=1), runs=tmp_path, execution=CPU, progress=False)
    assert Run(folder).unknown is None
    assert "unknown" not in json.loads((folder / "result.json").read_text())


def test_an_unknown_score_lists_the_known():
    assert list(SCORES) == ["max_logit", "max_softmax", "energy"]
    with pytest.raises(ValueError, match=r"unknown score 'odin'. Known: max_logit, max_softmax, energy"):
        check_score("odin")


def test_what_a_threshold_rejects_of_known_images(tmp_path):
    """As `predict` would: the share of test images whose score, on the thresholds' scale, is below each threshold."""
    spec = RunSpec(head="cosine", loss="ldam", epochs=3, batch_size=128, calibration=0.2)
    folder = train(spec, runs=tmp_path, execution=CPU, progress=False)
    told = evaluate(folder)["unknown"]
    classifier = open_model(folder, "cpu")
    logits = classifier.logits(prepare(spec).test.images)
    for score in SCORES:
        below = classifier.scores(score, logits) < classifier.threshold(score)
        assert told["rejected"][score] == pytest.approx(below.double().mean().item(), abs=0.005), score
        assert 0 < told["rejected"][score] < 0.5
    assert {key: told[key] for key in Run(folder).unknown} == Run(folder).unknown
    assert told == json.loads(json.dumps(told))


def test_scores_that_are_no_number_are_rejected():
    logits = torch.tensor([[1.0, 0.0], [float("nan"), 3.0], [2.0, 0.0], [5.0, 0.0]])
    unknown = {"score": "max_logit", "thresholds": {"max_logit": 2.0, "max_softmax": 0.99}}
    assert with_rejected(unknown, logits)["rejected"] == {"max_logit": 0.5, "max_softmax": 0.75}
    scaled = with_rejected(unknown | {"softmax_scale": 30.0}, logits)["rejected"]
    assert scaled == {"max_logit": 0.5, "max_softmax": 0.25}, "softmax takes scaled logits, the largest logit does not"
    assert with_rejected(None, logits) is None
    assert with_rejected(unknown, None) == unknown | {"rejected": None}
