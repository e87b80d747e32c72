"""An export's numbers are its run's, if its data can be found."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from maxsep.lab.engine import evaluate, train
from maxsep.lab.run import Run
from maxsep.lab.serving import evaluate_export, export, export_data, is_export, open_classifier
from maxsep.lab.spec import Execution, RunSpec


@pytest.mark.parametrize("format", ["safetensors", "onnx"])
@pytest.mark.parametrize("which", ["cross entropy", "ldam"])
def test_the_numbers_of_an_export_are_those_of_its_run(run, exported, ldam, format, which):
    run, exported = (run, exported) if which == "cross entropy" else ldam
    classifier = open_classifier(exported[format], "cpu")
    found, expected = evaluate_export(classifier, export_data(classifier)), evaluate(run)
    assert set(expected) - set(found) == {"angular_fisher"}, "an export has no features"
    ours, theirs = (numbers.pop("unknown") for numbers in (found, expected))
    assert ours["thresholds"] == theirs["thresholds"]
    assert ours["rejected"] == pytest.approx(theirs["rejected"], abs=0.002), "rounding may move an image across"
    for name, value in found.items():
        assert value == pytest.approx(expected[name], abs=1e-4)


def test_an_export_is_told_from_a_run(run, exported, tmp_path):
    assert is_export(exported["onnx"])
    assert is_export(exported["safetensors"])
    assert not is_export(run)
    assert not is_export(tmp_path)
    assert not is_export(tmp_path / "nowhere")


def write_pictures(folder, classes=("cat", "dog")):
    rng = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(10):
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def of_pictures(tmp_path_factory):
    """A model of pictures in a folder that was then moved: the run, the classifier, and where the folder is now."""
    place = tmp_path_factory.mktemp("own")
    pictures = write_pictures(place / "pictures")
    spec = RunSpec(dataset=f"folder:{pictures}?size=16", epochs=1, batch_size=4)
    run = train(spec, runs=place / "runs", execution=Execution(device="cpu"), progress=False)
    expected = evaluate(run)
    classifier = open_classifier(export(run, place / "model"), "cpu")
    return classifier, shutil.move(pictures, place / "moved"), expected


def test_a_folder_that_was_moved_is_asked_for_and_taken(of_pictures):
    classifier, moved, expected = of_pictures
    with pytest.raises(
        FileNotFoundError,
        match=r"was trained on folder:.*pictures\?size=16, .* is not a folder.* Say with --dataset where it",
    ):
        export_data(classifier)
    for dataset in (str(moved), f"folder:{moved}", f"{moved}?size=16"):
        data = export_data(classifier, dataset=dataset)
        assert evaluate_export(classifier, data)["loss"] == pytest.approx(expected["loss"], abs=1e-5)


def test_other_data_are_refused(of_pictures, tmp_path):
    classifier, moved, _ = of_pictures
    with pytest.raises(ValueError, match=r"has other classes than .*model: ant, bee, not cat, dog. Name the data"):
        export_data(classifier, dataset=str(write_pictures(tmp_path / "insects", ("ant", "bee"))))
    with pytest.raises(ValueError, match=r"has other classes than .*model: 0, 1, 2, 3, 4, \.\.\., not cat, dog"):
        export_data(classifier, dataset="digits")
    with pytest.raises(ValueError, match=r"has other images than .*model: 3 x 24 x 24, not 3 x 16 x 16"):
        export_data(classifier, dataset=f"{moved}?size=24")
    with pytest.raises(ValueError, match="'nowhere' is neither a known dataset"):
        export_data(classifier, dataset="nowhere")


def test_an_official_dataset_that_is_not_there_says_so_itself(of_pictures, tmp_path):
    classifier, *_ = of_pictures
    with pytest.raises(FileNotFoundError, match=r"^cifar10 is not in .* choose another folder with --data"):
        export_data(replace(classifier, spec=RunSpec(dataset="cifar10")), tmp_path)


def test_batches_do_not_show(exported, monkeypatch):
    classifier = open_classifier(exported["safetensors"], "cpu")
    data = export_data(classifier)
    whole = evaluate_export(classifier, data)
    monkeypatch.setattr("maxsep.lab.engine.evaluation.BATCH", 7)
    rows = []
    seen = replace(classifier, forward=lambda x: rows.append(len(x)) or classifier.forward(x))
    assert evaluate_export(seen, data)["loss"] == pytest.approx(whole["loss"], abs=1e-5)
    assert torch.tensor(rows).max() == 7


def test_a_loss_goes_by_the_images_that_were_trained_on(ldam):
    """Not by those that are there now; an export that does not tell them has no others."""
    run, exported = ldam
    adjusted = RunSpec(head="cosine", loss="logit_adjusted")
    classifier = replace(open_classifier(exported["safetensors"], "cpu"), spec=adjusted)
    data = export_data(classifier)
    assert classifier.class_counts == tuple(Run(run).metrics["class_counts"])
    fewer = replace(data, train=data.train.subset((data.train.labels > 4) | (torch.arange(len(data.train)) % 3 == 0)))
    loss = evaluate_export(classifier, data)["loss"]
    assert evaluate_export(classifier, fewer)["loss"] == loss
    untold = replace(classifier, class_counts=())
    assert evaluate_export(untold, fewer)["loss"] != pytest.approx(loss, abs=1e-3)


def test_what_is_known_of_the_files_is_passed_on(of_pictures, exported):
    classifier, moved, _ = of_pictures
    assert classifier.files is not None
    assert classifier.files == export_data(classifier, dataset=str(moved)).fingerprint
    assert open_classifier(exported["onnx"], "cpu").files is None
