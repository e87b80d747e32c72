import json
import shutil
import sys
from dataclasses import replace

import pytest
import torch

import maxsep
from maxsep import detect
from maxsep.files import write_folder
from maxsep.lab.data import Dataset, prepare
from maxsep.lab.engine import load_model, train
from maxsep.lab.engine.calibration import SCORES
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.run import Run
from maxsep.lab.serving import export, open_classifier
from maxsep.lab.spec import Execution, RunSpec

IMAGES = Dataset.parse("digits").read().test.images[:50]


def test_a_run_answers_as_its_pipeline_does(run):
    classifier = open_classifier(run, "cpu")
    told = Run(run).preprocessing
    with torch.no_grad():
        expected = Pipeline(load_model(run)[0], torch.tensor(told["mean"]), torch.tensor(told["std"]))(IMAGES)
    assert torch.allclose(classifier.logits(IMAGES), expected, atol=1e-5)
    assert classifier.labels == tuple("0123456789")
    assert classifier.shape == (1, 8, 8)


@pytest.mark.parametrize("format", ["safetensors", "onnx"])
def test_an_export_is_the_run(run, exported, format):
    ours, theirs = open_classifier(run, "cpu"), open_classifier(exported[format])
    assert (ours.labels, ours.shape, ours.unknown, ours.score) == (
        theirs.labels, theirs.shape, theirs.unknown, theirs.score,
    )  # fmt: skip
    assert torch.equal(ours.mean, theirs.mean)
    assert torch.equal(ours.std, theirs.std)
    tolerance = 0 if format == "safetensors" else 1e-5
    for size in (1, 7, 50):
        assert torch.allclose(theirs.logits(IMAGES[:size]), ours.logits(IMAGES[:size]), rtol=tolerance, atol=tolerance)
    for score in ("max_logit", "max_softmax", "energy"):
        assert theirs.threshold(score) == ours.threshold(score) == Run(run).unknown["thresholds"][score]


def test_the_thresholds_let_95_percent_of_the_calibration_data_pass(run):
    classifier, held = open_classifier(run, "cpu"), prepare(Run(run).spec).calibration
    for name, score in SCORES.items():
        passed = (score(classifier.logits(held.images)) >= classifier.threshold(name) - 1e-5).double().mean().item()
        assert 0.95 <= passed < 0.96


def test_the_thresholds_of_scaled_cosines_let_as_many_pass(ldam):
    run, exported = ldam
    held = prepare(Run(run).spec).calibration
    for classifier in (open_classifier(folder, "cpu") for folder in (run, *exported.values())):
        for name in SCORES:
            scores = classifier.scores(name, classifier.logits(held.images))
            assert 0.95 <= (scores >= classifier.threshold(name) - 1e-5).double().mean().item() < 0.96


def without_scale(folder, copy):
    """An export or a run as they were written before they said their scale."""
    name = "result.json" if (folder / "result.json").is_file() else "maxsep.json"
    told = json.loads((folder / name).read_text())
    within = told.get("extra", told)
    within.pop("softmax_scale", None)
    told.get("metrics", {}).pop("softmax_scale", None)
    del within["unknown"]["softmax_scale"]
    within["unknown"]["thresholds"]["max_softmax"] = 0.15

    def write(place):
        for file in folder.iterdir():
            if file.is_file() and file.name != "MANIFEST.json":
                shutil.copy(file, place)
        (place / name).write_text(json.dumps(told))

    write_folder(copy, write)
    return copy


@pytest.mark.parametrize("format", ["run", "safetensors", "onnx"])
def test_what_does_not_say_its_scale_is_read_with_its_own_thresholds(ldam, tmp_path, format):
    run, exported = ldam
    now = open_classifier(run, "cpu")
    old = open_classifier(without_scale(run if format == "run" else exported[format], tmp_path / "old"), "cpu")
    logits = old.logits(IMAGES)
    assert torch.allclose(logits, now.logits(IMAGES), atol=1e-5)
    assert torch.allclose(old.probabilities(logits), now.probabilities(logits))
    assert old.threshold("max_softmax") == 0.15
    assert torch.equal(old.scores("max_softmax", logits), detect.max_softmax(logits)), "as the threshold was set"
    assert torch.equal(now.scores("max_softmax", logits), detect.max_softmax(30 * logits))
    assert torch.equal(replace(now, unknown=None).scores("energy", logits), detect.energy(30 * logits))
    assert torch.equal(now.scores("max_logit", logits), detect.max_logit(logits))


def test_other_networks_and_heads_come_back_from_the_disk(tmp_path):
    """A head by direction does not fold to one layer, and a convolutional network has buffers."""
    spec = RunSpec(network="resnet32", head="cosine_maxsep", epochs=1, max_train=40, max_test=20, logit_scaling=True)
    folder = train(spec, runs=tmp_path, execution=Execution(device="cpu"), progress=False)
    ours = open_classifier(folder, "cpu")
    for format in ("safetensors", "onnx"):
        theirs = open_classifier(export(folder, tmp_path / format, format), "cpu")
        assert torch.allclose(theirs.logits(IMAGES), ours.logits(IMAGES), rtol=1e-5, atol=1e-5)
        assert theirs.unknown is None
        assert theirs.threshold("energy") is None
        assert theirs.score == "max_logit"


def test_what_is_no_model_is_told(run, tmp_path, exported):
    with pytest.raises(FileNotFoundError, match=r"is neither a finished run .* nor an exported model \(maxsep.json\)"):
        open_classifier(tmp_path)
    maxsep.save(torch.nn.Linear(2, 3), tmp_path / "saved")
    with pytest.raises(ValueError, match=r"does not say which network it belongs to .* maxsep.save wrote it"):
        open_classifier(tmp_path / "saved")
    bare = shutil.copytree(run, tmp_path / "bare")
    (bare / "weights.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="was kept without its weights, so it cannot predict"):
        open_classifier(bare)
    with pytest.raises(ValueError, match=r"unknown device 'tpu'. Known: auto, cpu, cuda"):
        open_classifier(run, "tpu")


@pytest.mark.parametrize(
    ("format", "file"), [("safetensors", "model.safetensors"), ("onnx", "model.onnx"), ("onnx", "maxsep.json")]
)
def test_a_damaged_export_is_refused_by_name(exported, tmp_path, format, file):
    copy = shutil.copytree(exported[format], tmp_path / "copy")
    content = bytearray((copy / file).read_bytes())
    content[-9] ^= 1
    (copy / file).write_bytes(content)
    with pytest.raises(ValueError, match=f"{file} is damaged"):
        open_classifier(copy)


def test_cuda_is_asked_for_in_vain(run, exported, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"torch finds no CUDA device. Use 'auto' or 'cpu'"):
        open_classifier(run, "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match=r"model.onnx runs on the CPU here. Use --device cpu"):
        open_classifier(exported["onnx"], "cuda")


def test_a_missing_onnxruntime_names_the_extra(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r'need onnxruntime. Install it with: pip install "maxsep\[export\]"'):
        open_classifier(exported["onnx"])
