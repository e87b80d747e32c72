import json
import shutil
import sys
from importlib import import_module

import onnx
import onnxruntime
import pytest
import torch

import maxsep
from maxsep.lab.data import Dataset
from maxsep.lab.engine.model import build_model
from maxsep.lab.run import Run
from maxsep.lab.serving import export

module = import_module("maxsep.lab.serving.export")


@pytest.mark.parametrize("format", ["safetensors", "onnx"])
def test_labels_preprocessing_and_threshold_travel_with_the_model(run, exported, format):
    told, result = json.loads((exported[format] / "maxsep.json").read_text()), Run(run)
    assert told["labels"] == list("0123456789")
    assert told["preprocessing"] == {
        "shape": [1, 8, 8],
        "colours": "L",
        "resize": "bicubic, until it covers 8 x 8; then the centre",
        "normalise": "(pixel / 255 - mean) / std",
        "mean": result.preprocessing["mean"],
        "std": result.preprocessing["std"],
    }
    assert told["threshold"] == result.unknown["thresholds"]["max_logit"]
    assert told["extra"] == {
        "spec": result.spec.to_dict(), "unknown": result.unknown, "softmax_scale": 1.0, "files": None,
        "class_counts": result.metrics["class_counts"],
    }  # fmt: skip
    assert told["maxsep_version"] == maxsep.__version__
    assert told["torch_version"] == torch.__version__


def test_the_folder_is_what_maxsep_load_reads(run, exported):
    model = maxsep.fold(build_model(Run(run).spec, (1, 8, 8), 10))
    saved = maxsep.load(exported["safetensors"], model)
    assert saved.labels == tuple("0123456789")
    assert saved.threshold == Run(run).unknown["thresholds"]["max_logit"]
    assert saved.radius is None
    assert isinstance(model.head, torch.nn.Linear)


def test_any_program_can_run_the_onnx_file(run, exported):
    """As its JSON says, without maxsep: prepare, run, take the largest."""
    path = exported["onnx"] / "model.onnx"
    onnx.checker.check_model(path)
    assert sorted(file.name for file in path.parent.iterdir()) == ["MANIFEST.json", "maxsep.json", "model.onnx"]
    how = json.loads((path.parent / "maxsep.json").read_text())["preprocessing"]
    data = Dataset.parse("digits").read().test
    images = (data.images.numpy() / 255 - how["mean"][0]) / how["std"][0]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": images.astype("float32")})
    accuracy = (logits.argmax(1) == data.labels.numpy()).mean()
    assert accuracy == pytest.approx(Run(run).metrics["top1"], abs=0.004)


def test_an_export_replaces_an_export_and_nothing_else(run, exported, tmp_path):
    shutil.copytree(exported["onnx"], tmp_path / "model")
    export(run, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert not (tmp_path / "model" / "model.onnx").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match=str(tmp_path / "mine")):
        export(run, tmp_path / "mine")


def test_an_onnx_file_that_says_something_else_is_not_given_out(run, exported, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_write_onnx", lambda _, __, path: shutil.copy(exported["onnx"] / "model.onnx", path))
    real = module.open_onnx
    monkeypatch.setattr(module, "open_onnx", lambda path: lambda images: real(path)(images) + 1e-3)
    with pytest.raises(ValueError, match=r"other logits than the run: they differ by .*e-0., allowed are 1e-05"):
        export(run, tmp_path / "model", "onnx")
    monkeypatch.setattr(module, "open_onnx", lambda path: lambda images: real(path)(images) * torch.nan)
    with pytest.raises(ValueError, match="they differ by nan"):
        export(run, tmp_path / "model", "onnx")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_told(run, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"unknown format 'pickle'. Known: safetensors, onnx"):
        export(run, tmp_path / "model", "pickle")
    with pytest.raises(FileNotFoundError, match="holds no finished run"):
        export(tmp_path, tmp_path / "model")
    bare = shutil.copytree(run, tmp_path / "bare")
    (bare / "weights.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="was kept without its weights, so it cannot be exported"):
        export(bare, tmp_path / "model")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r'need onnx and onnxscript: pip install "maxsep\[export\]"'):
        export(run, tmp_path / "model", "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["bare"]


def test_a_program_reads_by_what_logits_are_multiplied(ldam):
    run, exported = ldam
    told = json.loads((exported["onnx"] / "maxsep.json").read_text())
    assert told["extra"]["softmax_scale"] == told["extra"]["unknown"]["softmax_scale"] == 30.0
    assert told["threshold"] <= 1, "the model gives cosines, and the largest of them is compared with it"
    images = (Dataset.parse("digits").read().test.images.numpy() / 255 - told["preprocessing"]["mean"][0]) / told[
        "preprocessing"
    ]["std"][0]
    session = onnxruntime.InferenceSession(exported["onnx"] / "model.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": images.astype("float32")})
    probabilities = (told["extra"]["softmax_scale"] * torch.from_numpy(logits)).softmax(1)
    assert probabilities.max(1).values.mean() == pytest.approx(Run(run).metrics["top1"], abs=0.1)
