"""A run and its exports are one classifier; image files give what the same images give in memory."""

import json
import math
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import maxsep
from maxsep import detect
from maxsep.files import write_folder
from maxsep.lab import predict
from maxsep.lab.data import Dataset, prepare
from maxsep.lab.engine import load_model, train
from maxsep.lab.engine.evaluate import SCORES
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.export import export
from maxsep.lab.predict import Prediction, Unreadable, classify, find_images, open_model
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

IMAGES = Dataset.parse("digits").read().test.images[:40]
FORMATS = ("safetensors", "onnx")


@pytest.fixture(scope="module")
def classifier(run):
    return open_model(run, "cpu")


def test_a_run_gives_the_logits_of_its_pipeline(run, classifier):
    preprocessing = Run(run).preprocessing
    mean, std = (torch.tensor(preprocessing[name]) for name in ("mean", "std"))
    with torch.no_grad():
        expected = Pipeline(load_model(run)[0], mean, std)(IMAGES)
    assert torch.allclose(classifier.logits(IMAGES), expected, atol=1e-5)
    assert (classifier.labels, classifier.shape) == (tuple("0123456789"), (1, 8, 8))


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_is_the_run(classifier, exported, format):
    other = open_model(exported[format])
    for name in ("labels", "shape", "unknown", "score", "spec"):
        assert getattr(other, name) == getattr(classifier, name)
    tolerance = 0 if format == "safetensors" else 1e-5
    for size in (1, 7, 40):
        ours, theirs = classifier.logits(IMAGES[:size]), other.logits(IMAGES[:size])
        assert torch.allclose(theirs, ours, rtol=tolerance, atol=tolerance)


def test_thresholds_let_95_percent_of_the_calibration_data_pass(run, ldam):
    for folder in (run, ldam[0], *ldam[1].values()):
        classifier = open_model(folder, "cpu")
        held_out = prepare(classifier.spec).calibration
        for name in SCORES:
            scores = classifier.scores(name, classifier.logits(held_out.images))
            assert 0.95 <= (scores >= classifier.threshold(name) - 1e-5).double().mean().item() < 0.96


def without_scale(folder, copy):
    """Copy an export or a run as it was written before `softmax_scale` was recorded."""
    name = "result.json" if (folder / "result.json").is_file() else "maxsep.json"
    record = json.loads((folder / name).read_text())
    extra = record.get("extra", record)
    extra.pop("softmax_scale", None)
    record.get("metrics", {}).pop("softmax_scale", None)
    del extra["unknown"]["softmax_scale"]
    extra["unknown"]["thresholds"]["max_softmax"] = 0.15

    def write(target):
        for file in folder.iterdir():
            if file.is_file() and file.name != "MANIFEST.json":
                shutil.copy(file, target)
        (target / name).write_text(json.dumps(record))

    write_folder(copy, write)
    return copy


@pytest.mark.parametrize("format", ["run", *FORMATS])
def test_old_thresholds_are_compared_with_unscaled_scores(ldam, tmp_path, format):
    run, exported = ldam
    now = open_model(run, "cpu")
    old = open_model(without_scale(run if format == "run" else exported[format], tmp_path / "old"), "cpu")
    logits = old.logits(IMAGES)
    assert torch.allclose(old.probabilities(logits), now.probabilities(logits))
    assert old.threshold("max_softmax") == 0.15
    assert torch.equal(old.scores("max_softmax", logits), detect.max_softmax(logits))
    assert torch.equal(now.scores("max_softmax", logits), detect.max_softmax(30 * logits))
    assert torch.equal(replace(now, unknown=None).scores("energy", logits), detect.energy(30 * logits))
    assert torch.equal(now.scores("max_logit", logits), detect.max_logit(logits))


def test_other_networks_and_heads_come_back_from_the_disk(tmp_path):
    """A cosine head does not fold to one layer, and a convolutional network has buffers."""
    spec = RunSpec(network="resnet32", head="cosine_maxsep", epochs=1, max_train=40, max_test=20, logit_scaling=True)
    folder = train(spec, runs=tmp_path, execution=Execution(device="cpu"), progress=False)
    ours = open_model(folder, "cpu")
    for format in FORMATS:
        theirs = open_model(export(folder, tmp_path / format, format), "cpu")
        assert torch.allclose(theirs.logits(IMAGES), ours.logits(IMAGES), rtol=1e-5, atol=1e-5)
        assert (theirs.unknown, theirs.threshold("energy"), theirs.score) == (None, None, "max_logit")


@pytest.mark.parametrize(
    ("format", "file"), [("safetensors", "model.safetensors"), ("onnx", "model.onnx"), ("onnx", "maxsep.json")]
)
def test_a_damaged_export_is_refused_by_name(exported, tmp_path, format, file):
    copy = shutil.copytree(exported[format], tmp_path / "copy")
    content = bytearray((copy / file).read_bytes())
    content[-9] ^= 1
    (copy / file).write_bytes(content)
    with pytest.raises(ValueError, match=file):
        open_model(copy)


def test_folders_without_a_model_are_refused(run, exported, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        open_model(tmp_path)
    maxsep.save(torch.nn.Linear(2, 3), tmp_path / "saved")
    with pytest.raises(ValueError, match="saved"):
        open_model(tmp_path / "saved")
    bare = shutil.copytree(run, tmp_path / "bare")
    (bare / "weights.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="bare"):
        open_model(bare)
    with pytest.raises(ValueError, match="tpu"):
        open_model(run, "tpu")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"\.\[export\]"):
        open_model(exported["onnx"])


@pytest.mark.parametrize("score", SCORES)
def test_files_give_what_the_same_images_give_in_memory(classifier, paths, score):
    logits = classifier.logits(IMAGES)
    probabilities, scores = logits.double().softmax(1), getattr(detect, score)(logits)
    threshold = scores.median().item()
    predictions = list(classify(classifier, paths, score=score, threshold=threshold, top=3))
    assert [prediction.path for prediction in predictions] == paths
    for prediction, row, expected in zip(predictions, probabilities, scores.tolist(), strict=True):
        order = row.argsort(descending=True)[:3].tolist()
        assert [name for name, _ in prediction.top] == [classifier.labels[index] for index in order]
        assert [share for _, share in prediction.top] == pytest.approx(row[order].tolist())
        assert prediction.score == pytest.approx(expected)
        assert prediction.unknown == (expected < threshold)


@pytest.mark.parametrize("format", FORMATS)
def test_probabilities_of_ldam_are_those_of_scaled_cosines(ldam, paths, format):
    run, exported = ldam
    ours, theirs = open_model(run, "cpu"), open_model(exported[format], "cpu")
    expected = (30 * ours.logits(IMAGES).double()).softmax(1).amax(1).tolist()
    assert sum(expected) / len(expected) > 0.8, "of the bare cosines it is near one fifth"
    for score in SCORES:
        limit = ours.threshold(score)
        pairs = [list(classify(model, paths, score=score, threshold=limit)) for model in (ours, theirs)]
        for one, other, probability in zip(*pairs, expected, strict=True):
            assert one.top[0][1] == pytest.approx(probability, abs=1e-6)
            assert other.top[0] == (one.top[0][0], pytest.approx(one.top[0][1], abs=1e-4))
            assert other.score == pytest.approx(one.score, abs=1e-4)
        assert sum(prediction.unknown for prediction in pairs[0]) < 10


def test_the_threshold_itself_is_known_and_nan_is_not(classifier, paths, monkeypatch):
    (first,) = classify(classifier, paths[:1])
    assert first.unknown is None
    (at,) = classify(classifier, paths[:1], threshold=first.score)
    (below,) = classify(classifier, paths[:1], threshold=math.nextafter(first.score, math.inf))
    monkeypatch.setattr(type(classifier), "scores", lambda self, score, logits: torch.full((len(logits),), math.nan))
    (nan,) = classify(classifier, paths[:1], threshold=-1e30)
    assert (at.unknown, below.unknown, nan.unknown) == (False, True, True)


def test_batches_and_unreadable_files_change_no_other_prediction(classifier, paths, monkeypatch, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no")
    mixed = [*paths[:3], broken, *paths[3:8], Path("gone.png")]
    whole = list(classify(classifier, mixed, top=99))
    monkeypatch.setattr(predict, "BATCH", 4)
    for one, other in zip(whole, classify(classifier, mixed, top=99), strict=True):
        assert type(one) is type(other)
        if isinstance(one, Prediction):
            assert (one.path, len(one.top)) == (other.path, 10)
            assert one.score == pytest.approx(other.score, abs=1e-5)
    assert [index for index, item in enumerate(whole) if isinstance(item, Unreadable)] == [3, 9]
    readable = [path for path in mixed if path.exists() and path != broken]
    alone = [prediction.score for prediction in classify(classifier, readable)]
    assert [item.score for item in whole if isinstance(item, Prediction)] == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "name"), [({"score": "odin"}, "odin"), ({"threshold": math.nan}, "threshold"), ({"top": 0}, "top")]
)
def test_bad_options_are_refused_before_an_image_is_read(classifier, options, name):
    with pytest.raises(ValueError, match=name):
        classify(classifier, [Path("gone.png")], **options)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in ("b.png", "a.JPG", "notes.txt", "odd", "deep/c.webp", "deep/.hidden/d.png", ".e.png", "empty/x.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a[1].png").touch()
    (tmp_path / "deep" / "d.png").symlink_to("gone")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "images", "missing", "skipped"),
    [
        (["b.png", "a.JPG"], ["b.png", "a.JPG"], [], []),
        (["odd", "b.png", "odd"], ["odd", "b.png", "odd"], [], []),
        (["."], ["a.JPG", "a[1].png", "b.png", "deep/c.webp", "deep/d.png"], [], ["empty/x.csv", "notes.txt", "odd"]),
        (["deep", "b.png"], ["deep/c.webp", "deep/d.png", "b.png"], [], []),
        (["b*.png"], ["b.png"], [], []),
        (["**/*.webp", "d*p"], ["deep/c.webp", "deep/c.webp", "deep/d.png"], [], []),
        (["a[1].png"], ["a[1].png"], [], []),
        (["gone.png", "b.png", "*.gif", "empty"], ["b.png"], ["gone.png", "*.gif", "empty"], ["empty/x.csv"]),
        (["notes.txt", "*.txt"], ["notes.txt", "notes.txt"], [], []),
    ],
)  # fmt: skip
def test_files_folders_and_patterns_in_the_order_of_the_arguments(tree, arguments, images, missing, skipped):
    files = find_images(arguments)
    assert [os.fspath(path) for path in files.images] == images
    assert [item.path for item in files.missing] == missing
    assert [os.fspath(path) for path in files.skipped] == skipped
