"""Image files as bytes; tests/lab/data/test_folder.py has the colours, the orientation and what is refused."""

import numpy as np
import pytest
from PIL import Image

from maxsep.lab.data.decode import decode


def picture(path, *size, seed=0):
    array = np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8)
    Image.fromarray(array).save(path)
    return array


def test_grey_images_of_the_right_size_come_back_bit_for_bit(tmp_path):
    array = picture(tmp_path / "a.png", 8, 8)
    found, errors = decode([tmp_path / "a.png"], (1, 8, 8))
    assert not errors
    assert found.tolist() == [[array.tolist()]]


def test_colours_become_grey_and_grey_becomes_colours(tmp_path):
    colours, grey = picture(tmp_path / "a.png", 8, 8, 3), picture(tmp_path / "b.png", 8, 8)
    found, _ = decode([tmp_path / "a.png", tmp_path / "b.png"], (1, 8, 8))
    luma = colours @ np.array([0.299, 0.587, 0.114])  # ITU-R BT.601
    assert np.abs(found[0, 0] - luma).max() <= 1
    found, _ = decode([tmp_path / "a.png", tmp_path / "b.png"], (3, 8, 8))
    assert (found[0] == colours.transpose(2, 0, 1)).all()
    assert (found[1] == grey).all()


@pytest.mark.parametrize("size", [(40, 30), (16, 64), (5, 9)])
def test_an_image_covers_the_shape_and_keeps_its_proportions(tmp_path, size):
    ramp = np.tile(np.linspace(0, 255, size[1]).astype(np.uint8), (size[0], 1))
    Image.fromarray(ramp).save(tmp_path / "a.png")
    ((rows,),), errors = decode([tmp_path / "a.png"], (1, 8, 16))
    assert not errors
    assert rows.shape == (8, 16)
    assert (np.diff(rows.astype(int), axis=1) >= 0).all()
    covered = min(1.0, 16 / max(16, size[1] * 8 / size[0]))
    assert np.ptp(rows[4]) == pytest.approx(255 * covered, abs=30), "the centre, cut and not squeezed"


def test_what_cannot_be_read_does_not_stop_the_others(tmp_path):
    array = picture(tmp_path / "b.png", 8, 8)
    (tmp_path / "a.png").write_bytes(b"no image")
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(tmp_path / "deep.png")
    found, errors = decode([tmp_path / name for name in ("a.png", "b.png", "c.png", "deep.png")], (1, 8, 8))
    assert found[1, 0].tolist() == array.tolist()
    assert sorted(errors) == [0, 2, 3]
    assert str(errors[0]).startswith(f"{tmp_path / 'a.png'} cannot be read as an image (UnidentifiedImageError")
    assert "c.png cannot be read as an image (FileNotFoundError" in str(errors[2])
    assert "deep.png has more than 8 bits per channel" in str(errors[3])


def test_files_have_one_or_three_channels():
    with pytest.raises(ValueError, match=r"have 1 channel \(grey\) or 3 \(RGB\), and the images here have 4"):
        decode([], (4, 8, 8))
