"""The official files, whole and damaged: no code of a file runs, and no damage passes for data."""

import base64
import os
import pickle
import zlib

import numpy as np
import pytest
import torch
from scipy.io import savemat
from sklearn.datasets import load_digits

from maxsep.files import MANIFEST
from maxsep.lab.data import DataError, Dataset
from maxsep.lab.data.official import read_digits, read_parts

# what Python 2 wrote: byte strings for text, numpy.core for arrays; first pixels 0 to 9, first green 7, second row 5
BATCH = (
    "c-rmOyK2KQ07hZSw<K;K#FHVfVS|TIjU~tzXd!VTM}`_&=u$$Ty0wz-9Xd5S-|&Nx@ZiPgJ$N%RQ+Ktt&C_<L>uzTPCAA4va(OzL=+VSkA!dbi"
    "6SxW8L~dd?iJOI+rJL0}or+p*wMm+O+#jdBISgICA9way4}+f4?a(!c{$z)-vFY_r+PBxUQhX>`pEqWal`<<*_fByyg#EeK+UeM(Dj3(LDCK#R"
    "m7$WaRaF&Vv&)pi)}IgJMf@rj0B+TSPXGXbcO?A}(Ek7cz#9Sm577Sr0Kgj|{SVOp006)n5&aL){{R5M8}T2{0nq;d0O0>f=zoCz2LJ&4|LK2#"
    "{s#a6H)l!z1N1)t0Px0&{s-uP007_(TaWoS@X0{>"
)
META = (
    "c-m`Vsx4&H2<6U6OiIm(&r8frEiPn=Eo9aRWlzpYEG||sC}e>#4GUReOrt_J7}L0r9mX^%<bW|v3prs-vqCNy)4Y%y#<VEpfiW!$c~eXE08gzcVE"
)


def read(name, root):
    return Dataset.parse(name).read(root)


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar(tmp_path, write_cifar, name, classes):
    folder = write_cifar(tmp_path, name)
    data = read(name, tmp_path)
    assert data.train.classes == tuple(f"class {i}" for i in range(classes))
    assert set(data.train.class_counts) == {5 if name == "cifar10" else 1}
    batch = pickle.loads((folder / ("test_batch" if name == "cifar10" else "test")).read_bytes())
    # a row of the file is the red plane, then green, then blue, each row by row
    assert np.array_equal(data.test.images.numpy(), batch["data"].reshape(-1, 3, 32, 32))
    assert data.test.labels.tolist() == list(range(classes))


def test_cifar_of_python_2(tmp_path, write_cifar):
    for path in write_cifar(tmp_path).iterdir():
        path.write_bytes(zlib.decompress(base64.b85decode(META if path.name == "batches.meta" else BATCH)))
    data = read("cifar10", tmp_path)
    assert data.test.classes == tuple(f"class {i}" for i in range(10))
    assert data.test.labels.tolist() == data.test.images[:, 0, 0, 0].tolist() == list(range(10))
    assert (data.test.images[0, 1, 0, 0], data.test.images[0, 0, 1, 0]) == (7, 5)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(FileNotFoundError, match="data_batch_3"):
        read("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        *(("test_batch", {"data": array}) for array in (np.zeros((10, 3071), np.uint8), np.zeros((10, 3072)))),
        *(("test_batch", {"labels": labels}) for labels in ([*range(9), 10], [*range(9), 1.5], [[1]] * 10, [0])),
        ("data_batch_5", {"labels": [0] * 10}),
        *(("batches.meta", {"label_names": names}) for names in (["a"], [3] * 10)),
    ],
)
def test_bad_content(tmp_path, write_cifar, part, changes):
    path = write_cifar(tmp_path) / part
    path.write_bytes(pickle.dumps(pickle.loads(path.read_bytes()) | changes, protocol=2))
    with pytest.raises(DataError, match=part):
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
    yield pickle.dumps(np.array([Evil(os.system, command)], dtype=object), protocol=2)
    yield f"(S'{command}'\nios\nsystem\n.".encode()  # INST
    yield f"(cos\nsystem\nS'{command}'\no.".encode()  # OBJ
    yield b"\x80\x02\x82\x01."  # EXT1
    yield b"P1\n."  # PERSID
    yield b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93."  # STACK_GLOBAL


def test_no_hostile_pickle_runs(tmp_path, write_cifar):
    path, marker = write_cifar(tmp_path) / "test_batch", tmp_path / "executed"
    for content in hostile(marker):
        path.write_bytes(content)
        with pytest.raises(DataError, match="test_batch"):
            read("cifar10", tmp_path)
        assert not marker.exists(), content


def write_svhn(root, *parts, **changes):
    (root / "svhn").mkdir(exist_ok=True)
    pixels = np.random.default_rng(20).integers(0, 256, (32, 32, 3, 20)).astype(np.uint8)
    content = {"X": pixels, "y": (np.arange(20) % 10 + 1).astype(np.uint8)[:, None]} | changes
    for part in parts or ("train", "test"):
        savemat(root / "svhn" / f"{part}_32x32.mat", content, do_compression=True)
    return pixels


def test_svhn_maps_ten_to_zero(tmp_path):
    pixels = write_svhn(tmp_path)
    data = read("svhn", tmp_path)
    assert data.train.labels[:12].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert data.test.images[7, 2, 3, 5] == pixels[3, 5, 2, 7]
    bad_labels = (np.ones((19, 1), np.uint8), ["a"] * 20, np.full((20, 1), 11, np.uint8), np.ones((20, 1), np.uint8))
    bad_images = (np.zeros((28, 28, 3, 20), np.uint8), np.zeros((32, 32, 3, 20)))
    for changes in (*({"y": labels} for labels in bad_labels), *({"X": images} for images in bad_images)):
        write_svhn(tmp_path, "train", **changes)
        with pytest.raises(DataError, match="train_32x32"):
            read("svhn", tmp_path)


@pytest.mark.parametrize("name", ["cifar-10-batches-py/data_batch_4", "svhn/test_32x32.mat"])
def test_cut_or_foreign_files(tmp_path, write_cifar, name):
    write_cifar(tmp_path)
    write_svhn(tmp_path)
    path = tmp_path / name
    content = path.read_bytes()
    for wrong in (*(content[: len(content) * i // 10] for i in range(9)), b"<html></html>", b"MATLAB 7.3" + bytes(600)):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match=path.name):
            read("svhn" if "svhn" in name else "cifar10", tmp_path)


def test_sums_are_kept_after_the_first_good_read_if_the_folder_can_be_written(tmp_path, write_cifar, monkeypatch):
    folder = write_cifar(tmp_path)
    path, content = folder / "data_batch_2", (folder / "data_batch_2").read_bytes()
    path.write_bytes(content[:-9])
    with pytest.raises(DataError, match="data_batch_2"):
        read_parts("cifar10", tmp_path, "train")
    path.write_bytes(content)
    with monkeypatch.context() as patch:
        patch.setattr("maxsep.files.replace_file", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
        read_parts("cifar10", tmp_path, "train")
    assert not (folder / MANIFEST).exists()
    read_parts("cifar10", tmp_path, "train")
    (folder / ".DS_Store").touch()
    (folder / "test_batch").write_bytes((folder / "data_batch_1").read_bytes())  # not read yet
    read_parts("cifar10", tmp_path, "test")
    for name in ("data_batch_2", "test_batch", "batches.meta"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
        with pytest.raises(DataError, match=name):
            read_parts("cifar10", tmp_path, "train", "test")
        (folder / name).write_bytes(whole)


def test_digits_are_the_originals_stretched_with_a_fixed_stratified_split():
    data, again = read_digits(), read_digits()
    assert torch.equal(data.train.images, again.train.images)
    assert (len(data.train), len(data.test)) == (1198, 599)
    for train, test in zip(data.train.class_counts, data.test.class_counts, strict=True):
        assert abs(test / (train + test) - 1 / 3) < 0.01
    everything = torch.cat([data.train.images, data.test.images])
    back, original = (everything.double() * 16 / 255).round()[:, 0], torch.from_numpy(load_digits().images)
    assert torch.equal(back.flatten(1).sum(1).sort().values, original.flatten(1).sum(1).sort().values)
