"""Outliers by name: the right images, and what they are called."""

import re

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from maxsep.lab.data import check_outliers, load_outliers, name_outliers, origin, outliers


@pytest.fixture
def root(tmp_path):
    (tmp_path / "svhn").mkdir()
    for part in ("train", "test"):
        pixels = np.full((32, 32, 3, 20), 3, dtype=np.uint8)
        savemat(tmp_path / "svhn" / f"{part}_32x32.mat", {"X": pixels, "y": np.arange(20)[:, None] % 10 + 1})
    for scene in ("a", "b"):
        (tmp_path / "places365" / scene).mkdir(parents=True)
        for number in range(3):
            image = np.full((50, 40, 3), 10 * number + (100 if scene == "b" else 0), dtype=np.uint8)
            Image.fromarray(image).save(tmp_path / "places365" / scene / f"{number}.png")
    return tmp_path


def first_pixels(images):
    return images.images[:, 0, 0, 0].tolist()


def test_svhn_is_its_test_split_and_needs_no_training_digits(root):
    whole = load_outliers("svhn", root).images
    assert whole.shape == (20, 3, 32, 32)
    (root / "svhn" / "train_32x32.mat").unlink()
    assert load_outliers("svhn", root).images.equal(whole)
    (root / "svhn" / "test_32x32.mat").unlink()
    with pytest.raises(FileNotFoundError, match="svhn"):
        load_outliers("svhn", root)


def test_stand_ins_are_called_what_their_folder_says(root):
    assert [origin(name, root) for name in ("svhn", "places")] == ["SVHN test", "Places365"]
    for folder in ("svhn", "places365"):
        (root / folder / "ORIGIN.txt").write_text("a stand-in\nmore words\n")
    assert [origin(name, root) for name in ("svhn", "places")] == ["a stand-in"] * 2
    assert origin("cifar+10", root, like="osr_cifar+_0") == "CIFAR-100 test, 10 classes"


def test_places_is_any_tree_of_images_or_an_array(root, monkeypatch):
    assert first_pixels(load_outliers("places", root)) == [0, 10, 20, 100, 110, 120]
    monkeypatch.setattr(outliers, "PLACES", 4)
    chosen = first_pixels(load_outliers("places", root))
    assert len(chosen) == 4
    assert chosen == first_pixels(load_outliers("places", root)) == sorted(chosen)
    (root / "places365").rename(root / "elsewhere")
    with pytest.raises(FileNotFoundError, match="places365"):
        load_outliers("places", root)
    pixels = np.arange(5, dtype=np.uint8)[:, None, None, None].repeat(32, 1).repeat(32, 2).repeat(3, 3)
    np.savez(root / "places365.npz", images=pixels)
    assert len(load_outliers("places", root)) == 4
    np.savez(root / "places365.npz", images=pixels.astype(np.float32))
    with pytest.raises(ValueError, match="float32"):
        load_outliers("places", root)


def test_a_folder_is_read_at_the_size_and_in_the_channels_of_the_dataset(root):
    folder = f"folder:{root / 'places365'}"
    assert load_outliers(folder, shape=(3, 16, 16)).shape == (3, 16, 16)
    grey = load_outliers(folder, like="digits", shape=(1, 8, 8))
    assert first_pixels(grey) == [0, 10, 20, 100, 110, 120]
    assert origin(folder) == str(root / "places365")
    Image.new("RGB", (8, 8), (200, 100, 50)).save(root / "places365" / "colour.png")
    assert first_pixels(load_outliers(folder, shape=(1, 8, 8)))[-1] == round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_outliers(f"folder:{root / 'nowhere'}")


def test_a_damaged_image_is_left_out_of_a_folder_if_it_can_be_reported(root):
    folder, damaged = f"folder:{root / 'places365'}", root / "places365" / "a" / "1.png"
    damaged.write_bytes(b"no image")
    unreadable = {}
    assert first_pixels(load_outliers(folder, unreadable=unreadable)) == [0, 20, 100, 110, 120]
    assert list(unreadable) == [damaged]
    with pytest.raises(ValueError, match=r"a/1.png"):
        load_outliers(folder)
    with pytest.raises(ValueError, match=r"a/1.png"):
        load_outliers("places", root, unreadable={})


def test_what_a_user_types(root, monkeypatch):
    monkeypatch.chdir(root)
    assert name_outliers("places") == "places"
    assert name_outliers("folder:anything") == "folder:anything"
    assert name_outliers("places365") == "folder:places365"
    assert name_outliers("a?size=16", root / "places365") == "folder:a?size=16"
    for typo, meant in (("shvn", "svhn"), ("SVHN", "svhn"), ("place", "places"), ("cifar-100", "cifar100")):
        for ask in (name_outliers, check_outliers):
            with pytest.raises(ValueError, match=rf"mean {meant}\?"):
                ask(typo)
    with pytest.raises(ValueError, match=r"my/photos"):
        name_outliers("my/photos", root)
    for name, like in (("svhn", "svhn"), ("unknown", "cifar10"), ("cifar+10", "osr_svhn_0"), ("folder:", "cifar10")):
        with pytest.raises(ValueError, match=re.escape(name)):
            load_outliers(name, "nowhere", like=like)
    with pytest.raises(ValueError, match=r"\(32, 32\).*\(8, 8\)"):
        load_outliers("svhn", root, like="digits", shape=(1, 8, 8))
