"""Detection on a finished run: the record, its numbers against another way to them, and that it is made once."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score

from maxsep.detect import ODIN, Mahalanobis
from maxsep.lab.data import Dataset, load_outliers, prepare
from maxsep.lab.detection import FILE, Wish, covers, detect, distances, ensure_detection, read_detection
from maxsep.lab.detection.distances import Distances
from maxsep.lab.engine import load_model, train
from maxsep.lab.engine.evaluation import predict
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec

CHEAP = {"mahalanobis": False, "repeats": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A trained run on digits."""
    return train(RunSpec(head="maxsep", epochs=2), runs=tmp_path_factory.mktemp("runs"), progress=False)


@pytest.fixture(scope="module")
def noise(noise_of):
    return noise_of(40)


@pytest.fixture(scope="module")
def record(folder, noise):
    return detect(folder, Wish(outliers=(noise,), draw=15, repeats=4, odin=True), device="cpu")


def test_the_numbers_are_those_of_the_weights(folder, noise, record):
    network, _ = load_model(folder)
    told = json.loads((folder / "result.json").read_text())["preprocessing"]
    mean, std = (torch.tensor(told[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    test = Dataset.parse("digits").read().test
    outside = load_outliers(noise, like="digits", shape=(1, 8, 8))
    with torch.no_grad():
        logits = [network((images.images / 255 - mean) / std) for images in (test, outside)]
    scores = torch.cat(logits).logsumexp(1)
    is_known = torch.arange(len(scores)) < len(test)
    full = record["sets"][noise]["scores"]["energy"]["full"]
    assert full["auroc"] == pytest.approx(roc_auc_score(is_known, scores), abs=1e-6)
    assert full["aupr"] == pytest.approx(average_precision_score(is_known, scores), abs=1e-6)
    assert full["aupr_ood_positive"] == pytest.approx(average_precision_score(~is_known, -scores), abs=1e-6)
    right = (logits[0].argmax(1) == test.labels).double().mean()
    assert record["in_distribution"] == {"dataset": "digits", "count": len(test), "top1": pytest.approx(right.item())}
    assert full["oscr"] <= record["in_distribution"]["top1"]


def test_every_score_is_there_in_full_and_in_draws(noise, record):
    found = record["sets"][noise]
    assert found["count"] == 40
    assert set(found["scores"]) == {
        *("max_softmax", "max_logit", "energy", "max_logit_centred", "energy_centred"),
        *("mahalanobis_no_step", "mahalanobis", "odin"),
    }
    for score in found["scores"].values():
        assert set(record["conventions"]) == set(score["full"])
        assert (score["draws"]["size"], score["draws"]["repeats"]) == (15, 4)
        assert score["draws"]["auroc"]["mean"] == pytest.approx(score["full"]["auroc"], abs=0.1)
        assert score["draws"]["auroc"]["std"] >= 0


def test_the_logits_of_the_matrix_are_centred_already(noise, record):
    scores = record["sets"][noise]["scores"]
    assert scores["energy_centred"]["full"]["auroc"] == pytest.approx(scores["energy"]["full"]["auroc"], abs=1e-4)
    assert record["sets"][noise]["histograms"]["energy"]["edges"][0] >= np.log(10) - 1e-4


def test_the_step_is_chosen_on_outsiders_and_all_steps_are_told(noise, record):
    told, sweep = record["mahalanobis"], record["sets"][noise]["sweep"]
    means = {m: np.mean([row[m] for row in told["validation_auroc"].values()]) for m in sweep}
    assert told["chosen_on"] == "outsiders made from training images"
    assert len(told["validation_auroc"]) == 8
    assert means[f"{told['chosen']:g}"] == max(means.values())
    scores = record["sets"][noise]["scores"]
    assert sweep[f"{told['chosen']:g}"]["auroc"] == scores["mahalanobis"]["full"]["auroc"]
    assert sweep["0"]["fpr95"] == scores["mahalanobis_no_step"]["full"]["fpr95"]


def test_all_steps_share_one_gradient_and_no_step_costs_no_pass(folder, monkeypatch):
    network, _ = load_model(folder)
    told = json.loads((folder / "result.json").read_text())["preprocessing"]
    pipeline = Pipeline(network, torch.tensor(told["mean"]), torch.tensor(told["std"])).eval().requires_grad_(False)
    data, rows = Dataset.parse("digits").read(), []
    features = network.features
    monkeypatch.setattr(network, "features", lambda x: rows.append((len(x), torch.is_grad_enabled())) or features(x))
    found = Distances(pipeline, torch.tensor(told["std"]), Mahalanobis(), (0.0, 0.01, 0.001))
    found.detector.fit(predict(pipeline, data.train).features, data.train.labels)
    known = predict(pipeline, data.test.subset(torch.arange(50))).features
    rows.clear()
    scores = found.scores(data.test.images[:50], known)
    assert sorted(rows) == [(50, False), (50, False), (50, True)]
    assert torch.equal(scores[0.0], found.detector.score(known))
    sweep = found.detector.sweep(features, pipeline.normalise(data.test.images[:50]), (0.0, 0.01, 0.001), found.std)
    for step, values in sweep.items():
        torch.testing.assert_close(scores[step], values, rtol=1e-5, atol=1e-5)


def test_it_is_made_once_and_sets_are_added(folder, noise, tmp_path):
    assert ensure_detection(folder, Wish(outliers=(noise,), **CHEAP), device="cpu")
    before = (folder / FILE).stat().st_mtime_ns
    assert not ensure_detection(folder, Wish(outliers=(noise,), **CHEAP), device="cpu")
    assert (folder / FILE).stat().st_mtime_ns == before
    Image.new("L", (9, 9)).save(tmp_path / "black.png")
    other = f"folder:{tmp_path}"
    assert ensure_detection(folder, Wish(outliers=(other,), **CHEAP), device="cpu")
    assert set(read_detection(folder)["sets"]) == {noise, other}
    assert [path for path in folder.iterdir() if path.name.startswith(".")] == []


def test_two_processes_do_not_detect_side_by_side(folder, noise, held_elsewhere):
    with held_elsewhere(Run(folder)), pytest.raises(BlockingIOError, match="another process"):
        ensure_detection(folder, Wish(outliers=(noise,), **CHEAP), device="cpu")


def test_a_damaged_record_is_made_anew(folder, noise):
    (folder / FILE).write_text('{"schema": 1, "sets"')
    assert read_detection(folder) is None
    assert ensure_detection(folder, Wish(outliers=(noise,), **CHEAP), device="cpu")
    assert noise in read_detection(folder)["sets"]


@pytest.mark.parametrize(
    ("change", "enough"),
    [
        ({}, True),
        ({"outliers": ("folder:elsewhere",)}, False),
        ({"repeats": 5}, False),
        ({"repeats": 0}, True),
        ({"odin": False, "mahalanobis": False}, True),
        ({"magnitudes": (0.0, 0.3)}, False),
    ],
)
def test_whether_a_record_holds_what_is_wished(record, noise, change, enough):
    wish = Wish(outliers=(noise,), draw=15, repeats=4, odin=True)
    assert covers(record, dataclasses.replace(wish, **change)) is enough


def test_limits_of_the_run_hold_for_outliers_too(tmp_path, noise):
    spec = RunSpec(head="plain", epochs=1, max_train=40, max_test=12)
    folder = train(spec, runs=tmp_path, progress=False)
    record = detect(folder, Wish(outliers=(noise,), **CHEAP), device="cpu")
    assert (record["sets"][noise]["count"], record["in_distribution"]["count"]) == (12, 12)


def test_images_held_out_for_calibration_choose_the_step_and_are_not_fitted(tmp_path, noise, monkeypatch):
    folder = train(RunSpec(head="plain", epochs=1, calibration=0.5), runs=tmp_path, progress=False)
    fitted, made = [], []
    fit, make = Mahalanobis.partial_fit, distances.outsiders

    def noted(images, *given):
        made.append(images)
        return make(images, *given)

    monkeypatch.setattr(Mahalanobis, "partial_fit", lambda *given: fitted.append(len(given[1])) or fit(*given))
    monkeypatch.setattr(distances, "outsiders", noted)
    told = detect(folder, Wish(outliers=(noise,), repeats=0, magnitudes=(0.0, 0.01)), device="cpu")
    assert told["mahalanobis"]["chosen_on"] == "outsiders made from images held out of training"
    assert sum(fitted) == json.loads((folder / "result.json").read_text())["metrics"]["num_train"]
    data = prepare(RunSpec(head="plain", epochs=1, calibration=0.5))
    held_out, trained = ({image.numpy().tobytes() for image in each.images} for each in (data.calibration, data.train))
    assert len(made[0]) == len(data.calibration) // 2
    used = {image.numpy().tobytes() for image in made[0]}
    assert used <= held_out
    assert not used <= trained


def test_without_weights_or_outliers(folder, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("result.json", "metrics.jsonl"):
        (bare / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(FileNotFoundError, match="was kept without its weights, so there is nothing to score with"):
        detect(bare, Wish(outliers=("svhn",)))
    with pytest.raises(ValueError, match="name some outliers: 'digits' is no open-set split"):
        detect(folder, Wish(), device="cpu")


@pytest.fixture(scope="module")
def ldam(tmp_path_factory):
    """A run whose probabilities are those of 30 times its logits."""
    spec = RunSpec(head="cosine", loss="ldam", epochs=3, batch_size=64)
    return train(spec, runs=tmp_path_factory.mktemp("ldam"), progress=False)


def test_scores_of_scaled_cosines(ldam, noise):
    record = detect(ldam, Wish(outliers=(noise,), odin=True, **CHEAP), device="cpu")
    assert record["softmax_scale"] == 30.0
    network, _ = load_model(ldam)
    told = json.loads((ldam / "result.json").read_text())["preprocessing"]
    mean, std = (torch.tensor(told[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    test, outside = Dataset.parse("digits").read().test, load_outliers(noise, like="digits", shape=(1, 8, 8))
    known, other = (((images.images / 255) - mean) / std for images in (test, outside))
    with torch.no_grad():
        scores = [(30 * network(x).double()).softmax(1).amax(1) for x in (known, other)]
    is_known = torch.arange(len(test) + len(outside)) < len(test)
    found = record["sets"][noise]["scores"]
    assert found["max_softmax"]["full"]["auroc"] == pytest.approx(roc_auc_score(is_known, torch.cat(scores)), abs=1e-4)
    odin = ODIN(lambda x: 30 * network(x), std=torch.tensor(told["std"]))
    scores = [odin.score(x) for x in (known, other)]
    assert found["odin"]["full"]["auroc"] == pytest.approx(roc_auc_score(is_known, torch.cat(scores)), abs=1e-4)


def test_a_record_of_unscaled_cosines_is_made_anew(ldam, noise):
    wish = Wish(outliers=(noise,), **CHEAP)
    assert ensure_detection(ldam, wish, device="cpu")
    assert not ensure_detection(ldam, wish, device="cpu")
    old = read_detection(ldam)
    del old["softmax_scale"]
    old["sets"]["svhn"] = old["sets"][noise]
    (ldam / FILE).write_text(json.dumps(old))
    assert covers(old, wish)
    assert not covers(old, wish, 30.0)
    assert ensure_detection(ldam, wish, device="cpu")
    new = read_detection(ldam)
    assert (new["softmax_scale"], set(new["sets"])) == (30.0, {noise}), "scores of two kinds are not mixed"
