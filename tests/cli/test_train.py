"""`maxsep train`: from options to a spec, and from a folder to a run."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from maxsep.cli import train as module
from maxsep.cli.train import build_spec
from maxsep.lab.spec import RunSpec


@pytest.fixture
def asked(run, monkeypatch):
    """Specs and settings of the runs that were asked for, of which none is trained."""
    calls = []
    monkeypatch.setattr(module, "train", lambda spec, **settings: calls.append((spec, settings)))
    monkeypatch.setattr(module, "_show", lambda *_: None)
    monkeypatch.setattr(module, "dry_run", lambda *_, **__: None)
    return calls


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """A folder `tail` of 20 images in two classes, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("dark", "light"):
        (tmp_path / "tail" / name).mkdir(parents=True)
        for i in range(10):
            Image.new("RGB", (8, 8), ((name == "light") * 200 + i,) * 3).save(tmp_path / "tail" / name / f"{i}.png")
    return tmp_path / "tail"


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ("", {"batch_size": 32}),
        ("--imbalance 0.02", {"imbalance": 0.02, "batch_size": 16}),
        ("--optimiser adamw", {"optimiser": "adamw", "learning_rate": 0.001, "batch_size": 32}),
        ("--optimiser sgd --learning-rate 0.3 --batch-size 64", {"learning_rate": 0.3, "batch_size": 64}),
        ("--dataset cifar10", {"dataset": "cifar10"}),
        ("--dataset imagenet?size=64",
         {"dataset": "imagenet?size=64", "network": "resnet50", "augmentation": "resized_crop_flip"}),
        ("--set mixup=1 --set nesterov=true --set weight_decay=1e-3 --set max_train=99 --batch-size 8",
         {"mixup": 1.0, "nesterov": True, "weight_decay": 1e-3, "max_train": 99, "batch_size": 8}),
        ("--set clip_norm=1 --set class_order=frequency --batch-size 8",
         {"clip_norm": 1.0, "class_order": "frequency", "batch_size": 8}),
        ("--set schedule=step --set schedule.every=7 --set schedule.factor=0.5 --batch-size 8",
         {"schedule": "step", "schedule_options": (("every", 7), ("factor", 0.5)), "batch_size": 8}),
        ("--head cosine --loss ldam --set loss.reweight=effective --set loss.reweight_from=16 --set loss.scale=20",
         {"head": "cosine", "loss": "ldam", "batch_size": 32,
          "loss_options": (("reweight", "effective"), ("reweight_from", 16), ("scale", 20.0))}),
        ("--head etf --set head.rotation=0 --set head.normalise=true",
         {"head": "etf", "head_options": (("normalise", True), ("rotation", 0)), "batch_size": 32}),
        ("--network vgg32 --set network.feature_size=2 --batch-size 8",
         {"network": "vgg32", "network_options": (("feature_size", 2),), "batch_size": 8}),
    ],
)  # fmt: skip
def test_options_become_a_spec(call, asked, tmp_path, options, fields):
    call("train", "--runs", tmp_path, "--device", "cpu", *options.split())
    ((spec, settings),) = asked
    assert spec == RunSpec(**fields)
    assert spec.digest == RunSpec(**fields).digest, "types matter: 20 and 20.0 have different digests"
    assert settings["download"] is False


def test_settings_of_execution(call, asked, tmp_path):
    call("train", "--runs", tmp_path, "--device", "cpu", "--devices", 2, "--download", "--data", tmp_path)
    ((_, settings),) = asked
    assert (settings["execution"].devices, settings["execution"].device) == (2, "cpu")
    assert (settings["download"], settings["data_root"], settings["runs"]) == (True, tmp_path, tmp_path)


def test_cifar100_gets_the_order_of_its_files(call, asked, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "with_order", lambda specs, *_, **__: [s.replace(data_order="official") for s in specs])
    call("train", "--dataset", "cifar100", "--runs", tmp_path)
    assert asked[0][0].data_order == "official"


@pytest.mark.parametrize("dataset", ["tail?size=8", "folder:tail?size=8", "./tail/?size=8"])
def test_a_folder_gets_the_settings_of_compare(pictures, dataset):
    spec = build_spec({"dataset": dataset})
    assert (spec.dataset, spec.network, spec.augmentation, spec.batch_size) == (
        "folder:tail?size=8", "resnet32", "crop_flip", 16,
    )  # fmt: skip
    spec = build_spec({"dataset": dataset, "network": "mlp", "augmentation": "none", "batch_size": 8})
    assert (spec.network, spec.augmentation, spec.batch_size) == ("mlp", "none", 8)


def test_a_batch_of_all_images_is_warned_of(call, asked, pictures):
    with pytest.warns(UserWarning, match="batch-size 16"):
        call("train", "--dataset", "tail?size=8", "--batch-size", 16)
    call("train", "--dataset", "tail?size=8", "--batch-size", 15)
    call("train", "--dataset", "tail?size=8")


@pytest.mark.parametrize(("held", "images"), [("validation=0", 16), ("calibration=0.3", 12), ("validation=0.05", 14)])
def test_the_opening_line_counts_the_images_that_are_trained_on(call, pictures, held, images):
    options = ["--epochs", 1, "--device", "cpu", "--network", "mlp", "--set", held]
    first, *_ = call("train", "--dataset", "tail?size=8", *options).splitlines()
    assert f" {images} " in first.replace("(", " ")
    answer = json.loads(call("train", "--dataset", "tail?size=8", *options, "--json"))
    assert answer["metrics"]["num_train"] == images
    assert (answer["unknown"] is not None) == held.startswith("calibration")


def test_a_finished_run_is_not_trained_again_and_ends_with_its_folder(call, tmp_path):
    arguments = ["train", "--runs", tmp_path, "--epochs", 1, "--device", "cpu"]
    first = call(*arguments).splitlines()
    (folder,) = tmp_path.glob("digits-*")
    before = (folder / "result.json").stat().st_mtime_ns
    again = call(*arguments).splitlines()
    assert first[-1] == again[-1] == str(folder)
    assert len(again) == len(first) + 1
    assert (folder / "result.json").stat().st_mtime_ns == before
    assert json.loads((folder / "result.json").read_text())["hardware"]["threads"] == 1


@pytest.mark.parametrize("change", ["gone", "another name", "another size"])
def test_a_finished_run_of_other_pictures_is_refused(call, refuse, pictures, change):
    arguments = ["train", "--dataset", "tail?size=8", "--epochs", 1, "--device", "cpu", "--network", "mlp"]
    arguments += ["--learning-rate", 0.01]
    call(*arguments)
    (pictures / "readme.txt").write_text("no picture")
    call(*arguments)
    old = pictures / "dark" / "0.png"
    if change == "another size":
        Image.new("RGB", (64, 64), (7, 90, 11)).save(old)
    else:
        old.rename(old.with_name("10.png") if change == "another name" else pictures.parent / "away.png")
    assert "runs" in refuse(*arguments)
    assert "runs" in refuse(*arguments, "--json")
    call(*arguments, "--runs", "others")
    (path,) = Path("runs").glob("*/result.json")
    record = json.loads(path.read_text())
    del record["metrics"]["files"]  # a record of before fingerprints were kept
    path.write_text(json.dumps(record))
    path.with_name("MANIFEST.json").unlink()
    call(*arguments)


def test_a_run_that_diverges_leaves_its_reason(invoke, tmp_path):
    result = invoke("train", "--learning-rate", 1e30, "--runs", tmp_path, "--json")
    assert isinstance(result.exception, ArithmeticError)
    (path,) = tmp_path.glob("*/failure.json")
    assert json.loads(path.read_text())["error"].startswith("NonFiniteError")


def write_digits(folder, count, size):
    """Digits as noisy colour pictures in class folders."""
    digits, rng = load_digits(), np.random.RandomState(0)
    for k in rng.permutation(len(digits.images))[:count]:
        small = Image.fromarray((15.9 * digits.images[k]).astype(np.uint8))
        grey = np.asarray(small.resize((size, size), Image.Resampling.BICUBIC), float)[..., None]
        pixels = grey * rng.uniform(0.5, 1, 3) + rng.normal(0, 25, (size, size, 3))
        (folder / str(digits.target[k])).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / str(digits.target[k]) / f"{k}.png")


def test_a_folder_gets_a_searched_rate_and_a_reference(call, tmp_path):
    write_digits(tmp_path / "digits", 150, 16)
    arguments = ["train", "--dataset", f"{tmp_path / 'digits'}?size=8", "--network", "mlp", "--epochs", 8]
    answer = json.loads(call(*arguments, "--device", "cpu", "--runs", tmp_path / "runs", "--json"))
    assert (answer["search"]["optimiser"], len(answer["search"]["trials"])) == ("adamw", 12)
    spec = json.loads((Path(answer["run"]) / "spec.json").read_text())
    assert spec["learning_rate"] == answer["search"]["learning_rate"]
    assert 0 < answer["reference"]["top1"] <= 1
    assert bool(answer["warnings"]) == (answer["metrics"]["balanced"] < answer["reference"]["balanced"])


@pytest.mark.nightly
def test_defaults_are_as_good_as_logistic_regression_within_ten_minutes(call, tmp_path):
    write_digits(tmp_path / "digits", 300, 48)
    began = time.monotonic()
    arguments = ["train", "--dataset", f"folder:{tmp_path / 'digits'}", "--runs", tmp_path / "runs", "--json"]
    answer = json.loads(call(*arguments))
    assert time.monotonic() - began < 600
    assert answer["metrics"]["top1"] >= answer["reference"]["top1"]
    assert answer["warnings"] == []
