"""SVHN's .mat files, whole and damaged."""

import random

import numpy as np
import pytest
from scipy.io import savemat

from maxsep.lab.data.checksums import record
from maxsep.lab.data.svhn import load_svhn


def write(root, n=20, part="both", **changes):
    folder = root / "svhn"
    folder.mkdir(exist_ok=True)
    for name in ("train", "test") if part == "both" else (part,):
        pixels = np.random.default_rng(n).integers(0, 256, (32, 32, 3, n)).astype(np.uint8)
        digits = (np.arange(n) % 10 + 1).astype(np.uint8)[:, None]
        content = {"X": pixels, "y": digits} | changes
        content = {key: value for key, value in content.items() if value is not None}
        savemat(folder / f"{name}_32x32.mat", content, do_compression=True)
    return folder


def test_reads_images_and_maps_ten_to_zero(tmp_path):
    write(tmp_path)
    data = load_svhn(tmp_path)
    assert data.name == "svhn"
    assert data.train.shape == (3, 32, 32)
    assert data.train.labels[:12].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert data.train.classes == tuple("0123456789")
    pixels = np.random.default_rng(20).integers(0, 256, (32, 32, 3, 20)).astype(np.uint8)
    assert data.test.images[7, 2, 3, 5] == pixels[3, 5, 2, 7]


def test_missing_file(tmp_path):
    (write(tmp_path) / "test_32x32.mat").unlink()
    with pytest.raises(FileNotFoundError, match=r"test_32x32.mat is missing.*belong in .*svhn"):
        load_svhn(tmp_path)


BAD = {
    "no X": ({"X": None}, r"has no variable 'X'; it has \['y'\]"),
    "small images": ({"X": np.zeros((28, 28, 3, 20), np.uint8)}, r"got uint8 \(28, 28, 3, 20\)"),
    "floats": ({"X": np.zeros((32, 32, 3, 20))}, "X must be uint8.*got double"),
    "too few labels": (
        {"y": np.ones((19, 1), np.uint8)},
        r"y must hold 20 numbers, one per image, got uint8 \(19, 1\)",
    ),
    "text": ({"y": ["a"] * 20}, "y must hold 20 numbers, one per image, got char"),
    "label 11": ({"y": np.full((20, 1), 11, np.uint8)}, "label 11 of image 0 is out of range: .* 1 to 10"),
    "label 0": ({"y": np.r_[np.ones(19), 0].astype(np.uint8)[:, None]}, "label 0 of image 19"),
    "empty class": ({"y": np.ones((20, 1), np.uint8)}, "no image of the digit 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_content_is_one_clear_error(tmp_path, case):
    changes, message = BAD[case]
    write(tmp_path)
    write(tmp_path, part="train", **changes)
    with pytest.raises(ValueError, match=f"train_32x32.mat.*{message}.*fetch the official one again"):
        load_svhn(tmp_path)


def test_truncated_or_foreign_file_is_named(tmp_path):
    path = write(tmp_path) / "test_32x32.mat"
    content, rng = path.read_bytes(), random.Random(0)
    damaged = [content[: rng.randrange(len(content) - 200)] for _ in range(40)]
    for wrong in [*damaged, b"", b"<html></html>", b"MATLAB 7.3" + bytes(600)]:
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"test_32x32.mat"):
            load_svhn(tmp_path)


def test_sums_are_checked(tmp_path):
    folder = write(tmp_path)
    record(folder, ["train_32x32.mat"])
    with (folder / "train_32x32.mat").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ValueError, match=r"train_32x32.mat is damaged: its SHA-256"):
        load_svhn(tmp_path)
