"""Out-of-distribution evaluation of a finished run: numbers against scikit-learn, the record, its lock and repair."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score

from maxsep.detect import Mahalanobis
from maxsep.lab.data import Dataset, load_outliers, prepare
from maxsep.lab.engine import load_model, train
from maxsep.lab.engine.evaluate import predict
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.ood import OODProtocol, covers, detect, ensure_detection, read_detection, scores
from maxsep.lab.ood.evaluate import FILE, full_precision
from maxsep.lab.ood.scores import MahalanobisScorer
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec

CHEAP = {"mahalanobis": False, "repeats": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return train(RunSpec(head="maxsep", epochs=2), runs=tmp_path_factory.mktemp("runs"), progress=False)


@pytest.fixture(scope="module")
def ldam(tmp_path_factory):
    """A run whose probabilities are those of 30 times its logits."""
    spec = RunSpec(head="cosine", loss="ldam", epochs=3, batch_size=64)
    return train(spec, runs=tmp_path_factory.mktemp("ldam"), progress=False)


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    root = tmp_path_factory.mktemp("noise")
    rng = np.random.default_rng(0)
    for number in range(40):
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(root / f"{number:02}.png")
    return f"folder:{root}"


@pytest.fixture(scope="module")
def record(folder, noise):
    return detect(folder, OODProtocol(outliers=(noise,), draw=15, repeats=4), device="cpu")


def logits_of(folder, noise):
    """Logits of test images and outliers straight from the weights, and the test labels."""
    network, _ = load_model(folder)
    preprocessing = json.loads((folder / "result.json").read_text())["preprocessing"]
    mean, std = (torch.tensor(preprocessing[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    test, outliers = Dataset.parse("digits").read().test, load_outliers(noise, like="digits", shape=(1, 8, 8))
    with torch.no_grad():
        return [network((images.images / 255 - mean) / std) for images in (test, outliers)], test.labels


def test_numbers_are_those_of_the_weights(folder, noise, record):
    logits, labels = logits_of(folder, noise)
    energy = torch.cat(logits).logsumexp(1)
    known = torch.arange(len(energy)) < len(labels)
    full = record["sets"][noise]["scores"]["energy"]["full"]
    assert full["auroc"] == pytest.approx(roc_auc_score(known, energy), abs=1e-6)
    assert full["aupr"] == pytest.approx(average_precision_score(known, energy), abs=1e-6)
    assert full["aupr_ood_positive"] == pytest.approx(average_precision_score(~known, -energy), abs=1e-6)
    top1 = (logits[0].argmax(1) == labels).double().mean().item()
    assert record["in_distribution"] == {"dataset": "digits", "count": len(labels), "top1": pytest.approx(top1)}
    assert full["oscr"] <= top1


def test_scores_of_ldam_are_those_of_scaled_logits(ldam, noise):
    record = detect(ldam, OODProtocol(outliers=(noise,), **CHEAP), device="cpu")
    logits, labels = logits_of(ldam, noise)
    softmax = (30 * torch.cat(logits).double()).softmax(1).amax(1)
    auroc = roc_auc_score(torch.arange(len(softmax)) < len(labels), softmax)
    assert record["softmax_scale"] == 30.0
    assert record["sets"][noise]["scores"]["max_softmax"]["full"]["auroc"] == pytest.approx(auroc, abs=1e-4)
    assert list(record["sets"][noise]["scores"]["energy"]) == ["full"], "no draws were asked for"


def test_every_score_has_metrics_on_all_images_and_on_draws(noise, record):
    measured = record["sets"][noise]
    assert (measured["count"], measured["unreadable"]) == (40, [])
    names = ("max_softmax", "max_logit", "energy", "max_logit_centred", "energy_centred")
    assert set(measured["scores"]) == {*names, "mahalanobis_no_step", "mahalanobis"}
    for score in measured["scores"].values():
        assert set(record["conventions"]) == set(score["full"])
        assert (score["draws"]["size"], score["draws"]["repeats"]) == (15, 4)
        assert score["draws"]["auroc"]["mean"] == pytest.approx(score["full"]["auroc"], abs=0.1)


def test_the_step_is_chosen_on_synthetic_outliers(noise, record):
    choice, sweep = record["mahalanobis"], record["sets"][noise]["sweep"]
    means = {m: np.mean([row[m] for row in choice["validation_auroc"].values()]) for m in sweep}
    assert choice["chosen_on"] == "outsiders made from training images"
    assert len(choice["validation_auroc"]) == 8
    assert means[f"{choice['chosen']:g}"] == max(means.values())
    measured = record["sets"][noise]["scores"]
    assert sweep[f"{choice['chosen']:g}"]["auroc"] == measured["mahalanobis"]["full"]["auroc"]
    assert sweep["0"]["fpr95"] == measured["mahalanobis_no_step"]["full"]["fpr95"]


def test_all_steps_share_one_gradient(folder, monkeypatch):
    network, _ = load_model(folder)
    preprocessing = json.loads((folder / "result.json").read_text())["preprocessing"]
    mean, std = (torch.tensor(preprocessing[name]) for name in ("mean", "std"))
    pipeline = Pipeline(network, mean, std).eval().requires_grad_(False)
    data, calls = Dataset.parse("digits").read(), []
    features = network.features
    monkeypatch.setattr(network, "features", lambda x: calls.append((len(x), torch.is_grad_enabled())) or features(x))
    scorer = MahalanobisScorer(pipeline, std, Mahalanobis(), (0.0, 0.01, 0.001))
    scorer.detector.fit(predict(pipeline, data.train).features, data.train.labels)
    known = predict(pipeline, data.test.subset(torch.arange(50))).features
    calls.clear()
    values = scorer.scores(data.test.images[:50], known)
    assert sorted(calls) == [(50, False), (50, False), (50, True)]
    sweep = scorer.detector.sweep(features, pipeline.normalise(data.test.images[:50]), (0.0, 0.01, 0.001), std)
    for step, expected in sweep.items():
        torch.testing.assert_close(values[step], expected, rtol=1e-5, atol=1e-5)


def test_held_out_images_choose_the_step_and_are_not_fitted(tmp_path, noise, monkeypatch):
    spec = RunSpec(head="plain", epochs=1, calibration=0.5)
    folder = train(spec, runs=tmp_path, progress=False)
    fitted, made = [], []
    fit, make = Mahalanobis.partial_fit, scores.synthetic_outliers
    monkeypatch.setattr(Mahalanobis, "partial_fit", lambda *args: fitted.append(len(args[1])) or fit(*args))
    monkeypatch.setattr(scores, "synthetic_outliers", lambda *args: made.append(args[0]) or make(*args))
    record = detect(folder, OODProtocol(outliers=(noise,), repeats=0, magnitudes=(0.0, 0.01)), device="cpu")
    assert record["mahalanobis"]["chosen_on"] == "outsiders made from images held out of training"
    data = prepare(spec)
    assert sum(fitted) == len(data.train)
    held_out, trained = ({image.numpy().tobytes() for image in part.images} for part in (data.calibration, data.train))
    used = {image.numpy().tobytes() for image in made[0]}
    assert len(made[0]) == len(data.calibration) // 2
    assert used <= held_out
    assert not used <= trained


def test_the_record_is_written_once_and_sets_are_added(folder, noise, tmp_path):
    protocol = OODProtocol(outliers=(noise,), **CHEAP)
    ensure_detection(folder, protocol, device="cpu")
    before = (folder / FILE).stat().st_mtime_ns
    assert not ensure_detection(folder, protocol, device="cpu")
    assert (folder / FILE).stat().st_mtime_ns == before
    Image.new("L", (9, 9)).save(tmp_path / "black.png")
    other = f"folder:{tmp_path}"
    assert ensure_detection(folder, OODProtocol(outliers=(other,), **CHEAP), device="cpu")
    assert set(read_detection(folder)["sets"]) == {noise, other}
    assert [path for path in folder.iterdir() if path.name.startswith(".")] == []


def test_a_locked_run_is_left_alone(folder, noise, held_elsewhere):
    with held_elsewhere(Run(folder)), pytest.raises(BlockingIOError):
        ensure_detection(folder, OODProtocol(outliers=(noise,), **CHEAP), device="cpu")


def test_a_damaged_record_is_written_anew(folder, noise):
    (folder / FILE).write_text('{"schema": 1, "sets"')
    assert read_detection(folder) is None
    assert ensure_detection(folder, OODProtocol(outliers=(noise,), **CHEAP), device="cpu")
    assert noise in read_detection(folder)["sets"]


def test_a_record_of_unscaled_logits_is_written_anew(ldam, noise):
    protocol = OODProtocol(outliers=(noise,), **CHEAP)
    assert ensure_detection(ldam, protocol, device="cpu")
    old = read_detection(ldam)
    del old["softmax_scale"]
    old["sets"]["svhn"] = old["sets"][noise]
    (ldam / FILE).write_text(json.dumps(old))
    assert covers(old, protocol)
    assert not covers(old, protocol, 30.0)
    assert ensure_detection(ldam, protocol, device="cpu")
    new = read_detection(ldam)
    assert (new["softmax_scale"], set(new["sets"])) == (30.0, {noise}), "scores on two scales are not mixed"


@pytest.mark.parametrize(
    ("change", "enough"),
    [
        ({}, True),
        ({"outliers": ("folder:elsewhere",)}, False),
        ({"repeats": 5}, False),
        ({"repeats": 0}, True),
        ({"mahalanobis": False}, True),
        ({"magnitudes": (0.0, 0.3)}, False),
    ],
)
def test_whether_a_record_covers_a_protocol(record, noise, change, enough):
    protocol = OODProtocol(outliers=(noise,), draw=15, repeats=4)
    assert covers(record, dataclasses.replace(protocol, **change)) is enough


def test_limits_of_the_run_hold_for_outliers(tmp_path, noise):
    folder = train(RunSpec(head="plain", epochs=1, max_train=40, max_test=12), runs=tmp_path, progress=False)
    record = detect(folder, OODProtocol(outliers=(noise,), **CHEAP), device="cpu")
    assert (record["sets"][noise]["count"], record["in_distribution"]["count"]) == (12, 12)


def test_bad_requests(folder, tmp_path):
    for name in ("result.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        detect(tmp_path, OODProtocol(outliers=("svhn",)))
    with pytest.raises(ValueError, match="digits"):
        detect(folder, OODProtocol(), device="cpu")
    with pytest.raises(ValueError, match="tpu"):
        detect(folder, OODProtocol(outliers=("svhn",)), device="tpu")
    assert OODProtocol().sets("osr_cifar10_0") == ("unknown",)


@pytest.mark.parametrize("before", [True, False])
def test_full_precision_lasts_as_long_as_its_block(before, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", before)
    with full_precision():
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == before
