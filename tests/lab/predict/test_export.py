"""Exports hold all that is needed to use them, and nothing is written that does not agree with the run."""

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
from maxsep.lab.export import export
from maxsep.lab.run import Run

module = import_module("maxsep.lab.export")


@pytest.mark.parametrize("format", ["safetensors", "onnx"])
def test_labels_preprocessing_and_threshold_travel_with_the_model(run, exported, format):
    description, result = json.loads((exported[format] / "maxsep.json").read_text()), Run(run)
    assert description["labels"] == list("0123456789")
    assert description["preprocessing"]["shape"] == [1, 8, 8]
    assert description["preprocessing"]["colours"] == "L"
    for name in ("mean", "std"):
        assert description["preprocessing"][name] == result.preprocessing[name]
    assert description["threshold"] == result.unknown["thresholds"]["max_logit"]
    assert description["extra"] == {"spec": result.spec.to_dict(), "unknown": result.unknown, "softmax_scale": 1.0}
    assert description["maxsep_version"] == maxsep.__version__


def test_maxsep_load_reads_the_folder(run, exported):
    model = maxsep.fold(build_model(Run(run).spec, (1, 8, 8), 10))
    saved = maxsep.load(exported["safetensors"], model)
    assert saved.labels == tuple("0123456789")
    assert saved.threshold == Run(run).unknown["thresholds"]["max_logit"]
    assert isinstance(model.head, torch.nn.Linear)


@pytest.mark.parametrize("which", ["cross-entropy", "ldam"])
def test_another_program_gets_the_run_s_predictions_from_the_onnx_file(run, exported, ldam, which):
    """As maxsep.json describes it, without maxsep."""
    run, exported = (run, exported) if which == "cross-entropy" else ldam
    path = exported["onnx"] / "model.onnx"
    onnx.checker.check_model(path)
    assert sorted(file.name for file in path.parent.iterdir()) == ["MANIFEST.json", "maxsep.json", "model.onnx"]
    description, data = json.loads((path.parent / "maxsep.json").read_text()), Dataset.parse("digits").read().test
    how = description["preprocessing"]
    images = (data.images.numpy() / 255 - how["mean"][0]) / how["std"][0]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": images.astype("float32")})
    top1 = Run(run).metrics["top1"]
    assert (logits.argmax(1) == data.labels.numpy()).mean() == pytest.approx(top1, abs=0.004)
    confidence = (description["extra"]["softmax_scale"] * torch.from_numpy(logits)).softmax(1).amax(1).mean()
    assert confidence == pytest.approx(top1, abs=0.1), "softmax_scale makes logits probabilities"


def test_an_export_replaces_an_export_and_nothing_else(run, exported, tmp_path):
    shutil.copytree(exported["onnx"], tmp_path / "model")
    export(run, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert not (tmp_path / "model" / "model.onnx").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match="mine"):
        export(run, tmp_path / "mine")


@pytest.mark.parametrize("change", [lambda logits: logits + 1e-3, lambda logits: logits * torch.nan])
def test_an_onnx_file_with_other_logits_is_not_written(run, tmp_path, monkeypatch, change):
    real = module.open_onnx
    monkeypatch.setattr(module, "open_onnx", lambda path: lambda images: change(real(path)(images)))
    with pytest.raises(ValueError, match="ONNX"):
        export(run, tmp_path / "model", "onnx")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused(run, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="pickle"):
        export(run, tmp_path / "model", "pickle")
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        export(tmp_path, tmp_path / "model")
    bare = shutil.copytree(run, tmp_path / "bare")
    (bare / "weights.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="bare"):
        export(bare, tmp_path / "model")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"\.\[export\]"):
        export(run, tmp_path / "model", "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["bare"]
