"""Outliers by name: the right images, and words that say what they really are."""

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from maxsep.lab.data import load_outliers, name_outliers, origin, outliers


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


def test_svhn_needs_no_training_digits(root):
    whole = load_outliers("svhn", root).images
    (root / "svhn" / "train_32x32.mat").unlink()
    assert load_outliers("svhn", root).images.equal(whole)
    (root / "svhn" / "test_32x32.mat").unlink()
    with pytest.raises(FileNotFoundError, match=r"svhn is not in .*test_32x32.mat there"):
        load_outliers("svhn", root)


def test_svhn_is_its_test_split(root):
    assert load_outliers("svhn", root).images.shape == (20, 3, 32, 32)
    assert origin("svhn", root) == "SVHN test, not the official file"
    (root / "svhn" / "ORIGIN.txt").write_text("SVHN test, re-cropped from the full numbers\nmore words\n")
    assert origin("svhn", root) == "SVHN test, re-cropped from the full numbers"


def test_the_official_file_is_known_by_its_sum(root, monkeypatch):
    monkeypatch.setattr(outliers.sources.RemoteFile, "difference", lambda file, path: "")
    assert origin("svhn", root) == "SVHN test"


def test_places_is_any_tree_of_images(root, monkeypatch):
    assert first_pixels(load_outliers("places", root)) == [0, 10, 20, 100, 110, 120]
    assert origin("places", root) == "images of places365/, not named as in Places365"
    monkeypatch.setattr(outliers, "PLACES", 4)
    chosen = first_pixels(load_outliers("places", root))
    assert len(chosen) == 4
    assert chosen == first_pixels(load_outliers("places", root)) == sorted(chosen)


def test_places_by_the_names_of_the_release(tmp_path):
    (tmp_path / "places365").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "places365" / "Places365_val_00000001.jpg")
    assert origin("places", tmp_path) == "Places365"


def test_places_as_an_array(tmp_path, monkeypatch):
    pixels = np.arange(5, dtype=np.uint8)[:, None, None, None].repeat(32, 1).repeat(32, 2).repeat(3, 3)
    np.savez(tmp_path / "places365.npz", images=pixels, origin="MiniPlaces validation")
    assert first_pixels(load_outliers("places", tmp_path)) == [0, 1, 2, 3, 4]
    assert origin("places", tmp_path) == "MiniPlaces validation"
    monkeypatch.setattr(outliers, "PLACES", 2)
    assert len(load_outliers("places", tmp_path)) == 2
    np.savez(tmp_path / "places365.npz", test_x=pixels)
    assert origin("places", tmp_path) == "images of places365.npz, source not told"
    (tmp_path / "places365.txt").write_text("MiniPlaces, packed")
    assert origin("places", tmp_path) == "MiniPlaces, packed"
    np.savez(tmp_path / "places365.npz", images=pixels.astype(np.float32))
    with pytest.raises(ValueError, match=r"must hold `images`, uint8 of shape \(N, 32, 32, 3\), got float32"):
        load_outliers("places", tmp_path)


def test_places_that_are_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"places is not in .*expected places365/ .* or places365.npz"):
        load_outliers("places", tmp_path)


def test_a_folder_is_read_at_the_size_and_in_the_channels_of_the_dataset(root):
    folder = f"folder:{root / 'places365'}"
    assert load_outliers(folder, shape=(3, 16, 16)).shape == (3, 16, 16)
    grey = load_outliers(folder, like="digits", shape=(1, 8, 8))
    assert first_pixels(grey) == [0, 10, 20, 100, 110, 120]
    assert origin(folder) == str(root / "places365")
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        load_outliers(f"folder:{root / 'nowhere'}")


def test_a_damaged_image_is_left_out_of_a_folder_if_it_can_be_told(root):
    folder, damaged = f"folder:{root / 'places365'}", root / "places365" / "a" / "1.png"
    damaged.write_bytes(b"no image")
    unreadable = {}
    assert first_pixels(load_outliers(folder, unreadable=unreadable)) == [0, 20, 100, 110, 120]
    assert list(unreadable) == [damaged]
    with pytest.raises(ValueError, match=r"a/1.png cannot be read as an image"):
        load_outliers(folder)
    with pytest.raises(ValueError, match=r"a/1.png cannot be read as an image"):
        load_outliers("places", root, unreadable={})


def test_what_a_user_means(root, monkeypatch):
    monkeypatch.chdir(root)
    assert name_outliers("places") == "places"
    assert name_outliers("folder:anything") == "folder:anything"
    assert name_outliers("places365") == "folder:places365"
    assert name_outliers("a?size=16", root / "places365") == "folder:a?size=16"
    for typo, meant in (("shvn", "svhn"), ("SVHN", "svhn"), ("place", "places"), ("cifar-100", "cifar100")):
        with pytest.raises(ValueError, match=rf"'{typo}' is neither .*\. Did you mean {meant}\? Known: .*cifar\+50"):
            name_outliers(typo, root)
    with pytest.raises(ValueError, match=r"'my/photos' is neither .* outliers\. Known: .* path of a folder of images"):
        name_outliers("my/photos", root)


def test_colour_becomes_grey_as_the_eye_sees_it():
    colour = torch.tensor([200, 100, 50], dtype=torch.uint8).view(1, 3, 1, 1)
    assert outliers._channels(colour, 1).item() == round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)
    assert outliers._channels(colour[:, :1], 3).flatten().tolist() == [200] * 3


@pytest.mark.parametrize(
    ("name", "like", "message"),
    [
        ("textures", "cifar10", r"unknown outliers 'textures'. Known: svhn, places, .*folder:PATH"),
        ("Place", "cifar10", r"unknown outliers 'Place'. Did you mean places\? Known"),
        ("svhn", "svhn", "svhn cannot be outliers of itself"),
        ("unknown", "cifar10", "'cifar10' is no split such as osr_cifar10_0"),
        ("cifar+10", "osr_svhn_0", "osr_svhn_0 has unknown"),
    ],
)
def test_names_that_mean_nothing(name, like, message):
    with pytest.raises(ValueError, match=message):
        load_outliers(name, "nowhere", like=like)


def test_images_of_another_size(root):
    with pytest.raises(ValueError, match=r"the images of svhn are \(32, 32\), those of digits \(8, 8\)"):
        load_outliers("svhn", root, like="digits", shape=(1, 8, 8))
