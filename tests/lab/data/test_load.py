"""load() by name and prepare() by spec."""

import subprocess
import sys

import pytest
import torch
from PIL import Image

from maxsep.lab.data import load, long_tail_counts, prepare
from maxsep.lab.spec import RunSpec


def test_unknown_name_lists_the_known():
    with pytest.raises(
        ValueError,
        match=r"unknown dataset 'mnist'. Known: digits, cifar10, cifar100, svhn, imagenet, .*osr_.*folder:PATH",
    ):
        load("mnist")


def test_root_is_asked_for(monkeypatch):
    monkeypatch.delenv("MAXSEP_DATA", raising=False)
    with pytest.raises(
        ValueError, match=r"cifar10 needs a data folder: pass --data DIR or set MAXSEP_DATA.*batches-py.*--download"
    ):
        load("cifar10")


def test_root_from_the_environment(tmp_path, write_cifar, monkeypatch):
    write_cifar(tmp_path, "cifar100")
    monkeypatch.setenv("MAXSEP_DATA", str(tmp_path))
    data = load("cifar100")
    assert data.name == "cifar100"
    assert data.train.num_classes == 100


def test_folder_absolute_relative_and_below_the_root(tmp_path, monkeypatch):
    for name in ("a", "b"):
        for i in range(3):
            path = tmp_path / "pictures" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20)).save(path)
    monkeypatch.delenv("MAXSEP_DATA", raising=False)
    absolute = load(f"folder:{tmp_path / 'pictures'}?size=16")
    assert absolute.train.shape == (3, 16, 16)
    assert load("folder:pictures", tmp_path).train.shape == (3, 32, 32)
    monkeypatch.chdir(tmp_path)
    assert load("folder:pictures").name == "folder:pictures"
    with pytest.raises(FileNotFoundError, match=r"neither nothing nor .*nothing is a folder"):
        load("folder:nothing", tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing is not a folder"):
        load("folder:nothing")


def test_prepare_leaves_balanced_data_as_it_is():
    plain, prepared = load("digits"), prepare(RunSpec(dataset="digits"))
    assert torch.equal(plain.train.images, prepared.train.images)
    assert torch.equal(plain.test.labels, prepared.test.labels)


def test_prepare_cuts_the_tail_and_not_the_test_set():
    plain = load("digits")
    data = prepare(RunSpec(dataset="digits", imbalance=0.02))
    profile = long_tail_counts(max(plain.train.class_counts), 10, 0.02)
    capped = [min(a, b) for a, b in zip(profile, plain.train.class_counts, strict=True)]
    assert data.train.class_counts == capped
    assert len(data.test) == len(plain.test)


def test_validation_comes_out_of_the_training_set():
    spec = RunSpec(dataset="digits", imbalance=0.1, validation=0.25)
    whole, data = prepare(spec.replace(validation=0.0)), prepare(spec)
    assert len(data.train) + len(data.test) == len(whole.train)
    assert min(data.train.class_counts) >= 1
    assert min(data.test.class_counts) >= 1
    rows = {bytes(image.flatten().tolist()) for image in whole.train.images}
    assert all(bytes(image.flatten().tolist()) in rows for image in data.test.images)


def test_run_seed_does_not_move_the_subset():
    spec = RunSpec(dataset="digits", imbalance=0.1, validation=0.2, max_train=60)
    one, two = prepare(spec), prepare(spec.replace(seed=7))
    assert torch.equal(one.train.images, two.train.images)
    assert torch.equal(one.test.images, two.test.images)
    other = prepare(spec.replace(subset_seed=1))
    assert not torch.equal(one.train.images, other.train.images)


def test_limits():
    data = prepare(RunSpec(dataset="digits", max_train=50, max_test=3))
    assert len(data.train) == 50
    assert data.train.class_counts == [5] * 10
    assert len(data.test) == 3
    with pytest.raises(ValueError, match="max_train must be at least 10, one image for every class of digits, got 9"):
        prepare(RunSpec(dataset="digits", max_train=9))
    with pytest.raises(ValueError, match="number of images to keep must be a whole number of at least 1, got 0"):
        prepare(RunSpec(dataset="digits", max_test=0))


def test_validation_needs_two_images_somewhere(tmp_path):
    for split in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / split / name / "0.png")
    with pytest.raises(ValueError, match=r"no class of folder:.* has two training images.*Use validation=0"):
        prepare(RunSpec(dataset=f"folder:{tmp_path}", validation=0.5))


def test_import_is_light():
    """Readers bring their libraries in when used, not when imported."""
    code = "import sys, maxsep.lab.data; print(*{'sklearn', 'scipy', 'PIL', 'torchvision'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == ""


@pytest.mark.parametrize(("dataset", "module"), [("digits", "sklearn"), ("svhn", "scipy.io"), ("folder", "PIL")])
def test_missing_library_names_the_extra(tmp_path, monkeypatch, dataset, module):
    (tmp_path / "svhn").mkdir()
    for part in ("train", "test"):
        (tmp_path / "svhn" / f"{part}_32x32.mat").write_bytes(b"")
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        (tmp_path / "pictures" / name / "0.png").write_bytes(b"")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r'missing: pip install "maxsep\[lab\]"'):
        load(f"folder:{tmp_path / 'pictures'}" if dataset == "folder" else dataset, tmp_path)
