"""`maxsep train`: from options to a spec, and from a folder to a run."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from class_folders import write_classes
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from maxsep.cli import main
from maxsep.cli import train as module
from maxsep.cli.train import build_spec
from maxsep.lab.run import Run
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
    return write_classes(tmp_path / "tail", dark=10, light=10)


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
        f"folder:{pictures}?size=8", "resnet32", "crop_flip", 16,
    )  # fmt: skip
    spec = build_spec({"dataset": dataset, "network": "mlp", "augmentation": "none", "batch_size": 8})
    assert (spec.network, spec.augmentation, spec.batch_size) == ("mlp", "none", 8)


def test_all_problems_are_lines_of_one_error_and_can_be_skipped(call, monkeypatch, capsys, pictures):
    for i in (2, 5):
        (pictures / "dark" / f"0{i}.bmp").write_bytes(b"no picture" * i)
    (pictures / "empty").mkdir()
    line = ["train", "--dataset", "tail?size=8", "--epochs", 1, "--network", "mlp", "--learning-rate", 0.01]
    monkeypatch.setattr("sys.argv", ["maxsep", *map(str, line)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    problems = capsys.readouterr().err.splitlines()[1:]
    assert len(problems) == 3
    assert not Path("runs").exists()
    printed = call(*line, "--device", "cpu", "--skip-broken").splitlines()
    assert "3 files or folders skipped" in printed[0]
    Path("tail").rename("moved")
    metrics = json.loads(call("evaluate", printed[-1], "--dataset", "moved", "--json"))
    again = json.loads(call(*line, "--skip-broken", "--dataset", "moved?size=8", "--runs", "other", "--json"))
    assert metrics["top1"] == pytest.approx(again["metrics"]["top1"])


def test_one_folder_has_one_run_however_it_is_spelled(call, pictures):
    options = ["--epochs", 1, "--device", "cpu", "--network", "mlp", "--learning-rate", 0.01]
    printed = [call("train", "--dataset", name, *options) for name in ("tail?size=8", f"folder:{pictures}?size=8")]
    assert len({text.splitlines()[-1] for text in printed}) == len(list(Path("runs").glob("*/result.json"))) == 1
    assert printed[0].splitlines()[-1].startswith("runs/tail_size_8-mlp-")


def test_a_batch_of_all_images_is_warned_of(call, asked, pictures):
    with pytest.warns(UserWarning, match="--batch-size 16") as warned:
        call("train", "--dataset", "tail?size=8", "--batch-size", 16)
    assert [item.filename for item in warned] == [module.__file__], "as warnings of this package are"
    call("train", "--dataset", "tail?size=8", "--batch-size", 15)
    call("train", "--dataset", "tail?size=8")


@pytest.mark.parametrize("dataset", ["tail?size=8", "digits"])
def test_a_network_that_hardly_trained_is_warned_of(invoke, pictures, dataset):
    options = ["train", "--dataset", dataset, "--epochs", 2, "--device", "cpu", "--network", "mlp"]
    lines = invoke(*options, "--learning-rate", 1e-9).stderr.splitlines()
    assert sum(line.startswith("maxsep: warning: ") for line in lines) == 1
    for rate, warns in ((1e-9, True), (0.1, False)):
        answer = json.loads(invoke(*options, "--optimiser", "sgd", "--learning-rate", rate, "--json").stdout)
        assert bool(answer["warnings"]) == warns


@pytest.mark.parametrize(("held", "images"), [("validation=0", 16), ("calibration=0.3", 12), ("validation=0.05", 14)])
def test_the_opening_line_counts_the_images_that_are_trained_on(call, pictures, held, images):
    options = ["--epochs", 1, "--device", "cpu", "--network", "mlp", "--set", held]
    first, *_ = call("train", "--dataset", "tail?size=8", *options).splitlines()
    assert f" {images} " in first.replace("(", " ")
    answer = json.loads(call("train", "--dataset", "tail?size=8", *options, "--json"))
    assert answer["metrics"]["num_train"] == images
    assert (answer["unknown"] is not None) == held.startswith("calibration")


@pytest.mark.parametrize(
    ("setting", "evaluated"),
    [("clip_norm=0", [10]), ("evaluate_every=4", [0, 4, 8, 10]), ("validation=0.2", [10])],
)
def test_own_test_images_are_evaluated_once_unless_asked_for(invoke, pictures, setting, evaluated):
    options = ["--epochs", 11, "--device", "cpu", "--network", "mlp", "--learning-rate", 0.01, "--set", setting]
    result = invoke("train", "--dataset", "tail?size=8", *options)
    run = Run(result.stdout.splitlines()[-1])
    assert [row["epoch"] for row in run.history if "top1" in row] == evaluated
    assert all(f"{run.history[epoch]['train_loss']:.3f}" in result.stderr for epoch in (0, 10)), "the log has the loss"


def test_a_finished_run_is_not_trained_again_and_ends_with_its_folder(call, refuse, tmp_path):
    arguments = ["train", "--runs", tmp_path, "--epochs", 1, "--device", "cpu"]
    first = call(*arguments).splitlines()
    (folder,) = tmp_path.glob("digits-*")
    before = (folder / "result.json").stat().st_mtime_ns
    again = call(*arguments).splitlines()
    assert first[-1] == again[-1] == str(folder)
    assert len(again) == len(first) + 1
    assert (folder / "result.json").stat().st_mtime_ns == before
    assert json.loads((folder / "result.json").read_text())["hardware"]["threads"] == 1
    (folder / "weights.safetensors").write_bytes(b"damaged")
    assert str(folder) in refuse(*arguments)


@pytest.mark.parametrize("change", ["gone", "another name", "another size"])
def test_a_finished_run_of_other_pictures_is_refused(call, refuse, pictures, change):
    arguments = ["train", "--dataset", "tail?size=8", "--epochs", 1, "--device", "cpu", "--network", "mlp"]
    arguments += ["--learning-rate", 0.01]
    call(*arguments)
    (pictures / "readme.txt").write_text("no picture")
    call(*arguments)
    old = pictures / "dark" / "00.bmp"
    if change == "another size":
        Image.new("RGB", (64, 64), (7, 90, 11)).save(old)
    else:
        old.rename(old.with_name("10.bmp") if change == "another name" else pictures.parent / "away.bmp")
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


def write_textures(folder, count, size):
    """Crops of the two photographs that come with scikit-learn."""
    rng = np.random.RandomState(0)
    for name, photo in zip(("china", "flower"), load_sample_images().images, strict=True):
        (folder / name).mkdir(parents=True)
        for k in range(count // 2):
            y, x = (rng.randint(0, side - size) for side in photo.shape[:2])
            Image.fromarray(photo[y : y + size, x : x + size]).save(folder / name / f"{k}.png")


def test_a_folder_gets_a_searched_rate_and_is_as_good_as_its_reference(call, tmp_path):
    write_textures(tmp_path / "photos", 300, 16)
    arguments = ["train", "--dataset", f"{tmp_path / 'photos'}?size=8", "--network", "mlp", "--epochs", 16]
    answer = json.loads(call(*arguments, "--device", "cpu", "--runs", tmp_path / "runs", "--json"))
    assert (answer["search"]["optimiser"], len(answer["search"]["trials"])) == ("adamw", 12)
    spec = json.loads((Path(answer["run"]) / "spec.json").read_text())
    assert spec["learning_rate"] == answer["search"]["learning_rate"]
    assert answer["metrics"]["top1"] >= answer["reference"]["top1"] > 0
    assert answer["warnings"] == []


@pytest.mark.nightly
@pytest.mark.parametrize("write", [write_digits, write_textures])
def test_defaults_are_as_good_as_logistic_regression_within_ten_minutes(call, tmp_path, write):
    write(tmp_path / "own", 300, 48)
    began = time.process_time()  # of all threads: other processes of the machine do not count
    arguments = ["train", "--dataset", f"folder:{tmp_path / 'own'}", "--runs", tmp_path / "runs", "--json"]
    answer = json.loads(call(*arguments))
    assert time.process_time() - began < 600 * torch.get_num_threads()
    assert answer["metrics"]["top1"] >= answer["reference"]["top1"]
    assert answer["warnings"] == []


def test_early_stopping_trains_again_on_all_images_until_the_chosen_epoch(call, tmp_path):
    arguments = ["train", "--head", "plain", "--epochs", 6, "--set", "max_train=200", "--early-stopping"]
    arguments += ["--learning-rate", 0.3, "--set", "schedule=constant", "--device", "cpu", "--runs", tmp_path, "--json"]
    answer = json.loads(call(*arguments))
    spec = json.loads((Path(answer["run"]) / "spec.json").read_text())
    rows = (Path(answer["run"]) / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == (spec["stop_after"] or 6)
    assert (answer["metrics"]["num_train"], answer["metrics"]["num_test"], spec["validation"]) == (200, 599, 0)
    assert json.loads(call(*arguments))["run"] == answer["run"]
