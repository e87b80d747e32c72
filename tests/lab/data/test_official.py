"""The official files, whole and damaged: no code of a file runs, and no damage passes for data."""

import os
import pickle
import random

import numpy as np
import pytest
import torch
from scipy.io import savemat
from sklearn.datasets import load_digits

from maxsep.files import write_folder
from maxsep.lab.data import DataError, Dataset
from maxsep.lab.data.official import read_digits


def read(name, root):
    return Dataset.parse(name).read(root)


@pytest.mark.parametrize("writer", ["python2", "python3"])
@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar(tmp_path, write_cifar, cifar_batch, name, classes, writer):
    write_cifar(tmp_path, name, writer)
    data = read(name, tmp_path)
    assert (data.name, data.train.images.shape) == (name, (5 * classes, 3, 32, 32))
    assert data.train.classes == tuple(f"class {i}" for i in range(classes))
    first = cifar_batch(name, classes)
    assert np.array_equal(data.train.images[:classes].reshape(classes, -1).numpy(), first["data"])
    assert data.train.labels[:classes].tolist() == list(range(classes))
    # A row of the file is the red plane, then green, then blue, each row by row.
    assert data.train.images[0, 1, 0, 0] == first["data"][0, 1024]
    assert data.train.images[0, 0, 1, 0] == first["data"][0, 32]


@pytest.mark.parametrize("part", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_missing_part_is_named(tmp_path, write_cifar, part):
    (write_cifar(tmp_path) / part).unlink()
    with pytest.raises(FileNotFoundError, match=part):
        read("cifar10", tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"data": np.zeros((10, 3071), np.uint8)},
        {"data": np.zeros((10, 3072))},
        {"data": [1, 2]},
        {"labels": [*range(9), 10]},
        {"labels": [*range(9), 1.5]},
        {"labels": [*range(8)]},
        {"labels": [[1, 0]] * 10},
        {"labels": [0] * 10},
    ],
    ids=["pixels", "floats", "no array", "too large", "no number", "too few", "one-hot", "unequal classes"],
)
def test_a_bad_batch(tmp_path, write_cifar, cifar_batch, changes):
    folder = write_cifar(tmp_path)
    (folder / "test_batch").write_bytes(pickle.dumps(cifar_batch("cifar10", 10, **changes), protocol=2))
    with pytest.raises(DataError, match="test_batch"):
        read("cifar10", tmp_path)


@pytest.mark.parametrize("names", [["a"], [3] * 10, None])
def test_bad_class_names(tmp_path, write_cifar, names):
    (write_cifar(tmp_path) / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
    with pytest.raises(DataError, match=r"batches\.meta"):
        read("cifar10", tmp_path)


class Evil:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def hostile(marker):
    """Pickles that would run something, by every instruction that can."""
    command = f"touch {marker}"
    yield from (pickle.dumps(Evil(os.system, command), protocol=protocol) for protocol in range(6))
    yield pickle.dumps({"data": np.zeros(4, np.uint8), "x": Evil(eval, f"open({str(marker)!r}, 'w')")}, protocol=2)
    yield pickle.dumps(Evil(open, str(marker), "w"), protocol=2)
    yield pickle.dumps(Evil(getattr, [], "append"), protocol=2)
    yield pickle.dumps(np.array([Evil(os.system, command)], dtype=object), protocol=2)
    yield f"cos\nsystem\n(S'{command}'\ntR.".encode()
    yield f"(S'{command}'\nios\nsystem\n.".encode()  # INST
    yield f"(cos\nsystem\nS'{command}'\no.".encode()  # OBJ
    yield b"\x80\x02\x82\x01."  # EXT1
    yield b"P1\n."  # PERSID
    yield b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93."  # STACK_GLOBAL
    yield b"cbuiltins\nprint\n(S'x'\ntR."


def test_no_hostile_pickle_runs(tmp_path, write_cifar):
    path, marker = write_cifar(tmp_path) / "test_batch", tmp_path / "executed"
    for content in hostile(marker):
        path.write_bytes(content)
        with pytest.raises(DataError, match="test_batch"):
            read("cifar10", tmp_path)
        assert not marker.exists(), content


@pytest.mark.parametrize("writer", ["python2", "python3"])
def test_cut_or_lengthened_batches(tmp_path, write_cifar, writer):
    path = write_cifar(tmp_path, writer=writer) / "data_batch_4"
    content, rng = path.read_bytes(), random.Random(1)
    for damaged in [*(content[: rng.randrange(len(content))] for _ in range(20)), content + b"\0", pickle.dumps([1])]:
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="data_batch_4"):
            read("cifar10", tmp_path)


def write_svhn(root, part="both", **changes):
    (root / "svhn").mkdir(exist_ok=True)
    for name in ("train", "test") if part == "both" else (part,):
        pixels = np.random.default_rng(20).integers(0, 256, (32, 32, 3, 20)).astype(np.uint8)
        content = {"X": pixels, "y": (np.arange(20) % 10 + 1).astype(np.uint8)[:, None]} | changes
        savemat(root / "svhn" / f"{name}_32x32.mat", content, do_compression=True)
    return pixels


def test_svhn_maps_ten_to_zero(tmp_path):
    pixels = write_svhn(tmp_path)
    data = read("svhn", tmp_path)
    assert data.train.labels[:12].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert data.train.classes == tuple("0123456789")
    assert data.test.images[7, 2, 3, 5] == pixels[3, 5, 2, 7]
    (tmp_path / "svhn" / "test_32x32.mat").unlink()
    with pytest.raises(FileNotFoundError, match="test_32x32"):
        read("svhn", tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"X": np.zeros((28, 28, 3, 20), np.uint8)},
        {"X": np.zeros((32, 32, 3, 20))},
        {"y": np.ones((19, 1), np.uint8)},
        {"y": ["a"] * 20},
        {"y": np.full((20, 1), 11, np.uint8)},
        {"y": np.ones((20, 1), np.uint8)},
    ],
    ids=["small images", "floats", "too few labels", "text", "label 11", "empty classes"],
)
def test_bad_svhn(tmp_path, changes):
    write_svhn(tmp_path)
    write_svhn(tmp_path, "train", **changes)
    with pytest.raises(DataError, match="train_32x32"):
        read("svhn", tmp_path)


def test_cut_or_foreign_svhn(tmp_path):
    write_svhn(tmp_path)
    path = tmp_path / "svhn" / "test_32x32.mat"
    content, rng = path.read_bytes(), random.Random(0)
    cut = [content[: rng.randrange(len(content) - 200)] for _ in range(20)]
    for wrong in [*cut, b"", b"<html></html>", b"MATLAB 7.3" + bytes(600)]:
        path.write_bytes(wrong)
        with pytest.raises(DataError, match="test_32x32"):
            read("svhn", tmp_path)


def test_a_flipped_bit_is_noticed_where_there_is_a_manifest(tmp_path, write_cifar):
    source = write_cifar(tmp_path / "source")
    folder = tmp_path / source.name
    write_folder(folder, lambda new: [(new / path.name).write_bytes(path.read_bytes()) for path in source.iterdir()])
    (folder / ".DS_Store").touch()
    assert len(read("cifar10", tmp_path).train) == 50
    path = folder / "data_batch_5"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="data_batch_5"):
        read("cifar10", tmp_path)


def test_digits_are_the_originals_stretched_with_a_fixed_stratified_split():
    data, again = read_digits(), read_digits()
    assert torch.equal(data.train.images, again.train.images)
    assert (len(data.train), len(data.test)) == (1198, 599)
    for train, test in zip(data.train.class_counts, data.test.class_counts, strict=True):
        assert abs(test / (train + test) - 1 / 3) < 0.01
    everything = torch.cat([data.train.images, data.test.images])
    assert (everything.min(), everything.max()) == (0, 255)
    back, original = (everything.double() * 16 / 255).round()[:, 0], torch.from_numpy(load_digits().images)
    assert torch.equal(back.flatten(1).sum(1).sort().values, original.flatten(1).sum(1).sort().values)
