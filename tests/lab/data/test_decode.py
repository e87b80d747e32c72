"""Image files as bytes; tests/lab/data/test_folder.py has the colours, the orientation and what is refused."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from maxsep.lab.data.decode import decode, warn_of_reduced


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


def png16(path, values):
    """Write uint16 (H, W, C) as a PNG of 16 bits per channel; Pillow writes none with colours."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, channels = values.shape
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)


def tiff16(path, values):
    """Write uint16 (H, W, 3) as an uncompressed TIFF."""
    height, width, _ = values.shape
    content = values.astype("<u2").tobytes()
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 3, 122), (259, 3, 1, 1), (262, 3, 1, 2), (273, 4, 1, 128)]
    tags += [(277, 3, 1, 3), (278, 4, 1, height), (279, 4, 1, len(content))]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    path.write_bytes(
        b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + struct.pack("<3H", 16, 16, 16) + content
    )


def ppm16(path, values):
    path.write_bytes(b"P6 %d %d 65535 " % values.shape[1::-1] + values.astype(">u2").tobytes())


WRITERS = {"png": png16, "tiff": tiff16, "ppm": ppm16}


@pytest.mark.parametrize("kind", WRITERS)
def test_of_deep_colours_the_upper_bits_are_kept_and_it_is_told(tmp_path, kind):
    deep = np.random.default_rng(0).integers(0, 65536, (8, 8, 3)).astype(np.uint16)
    WRITERS[kind](tmp_path / f"deep.{kind}", deep)
    picture(tmp_path / "a.png", 8, 8, 3)
    with pytest.warns(UserWarning, match="more than 8 bits") as found:
        array, errors = decode([tmp_path / "a.png", tmp_path / f"deep.{kind}"], (3, 8, 8))
    assert not errors
    assert np.abs(array[1].transpose(1, 2, 0).astype(int) - (deep >> 8)).max() <= 1  # ppm is scaled, not cut
    assert [str(item.message) for item in found] == [
        f"{tmp_path / f'deep.{kind}'} has more than 8 bits per channel, of which the upper 8 are kept. Convert to 8 "
        "bits yourself where the range is to be used otherwise."
    ]


def test_deep_files_are_told_once_with_their_number_or_given_to_the_caller(tmp_path):
    paths = [tmp_path / name for name in ("c.png", "a.png", "b.png")]
    for path, channels in zip(paths, (3, 4, 2), strict=True):
        png16(path, np.zeros((8, 8, channels), np.uint16))
    reduced = []
    decode(paths, (3, 8, 8), reduced)
    assert reduced == paths, "in the order of the files, and no warning"
    with pytest.warns(UserWarning, match=r"c.png and 2 other images have more than 8 bits per channel"):
        decode(paths, (3, 8, 8))
    decode(paths, (3, 8, 8))  # every run reads the same files again
    with pytest.warns(UserWarning, match=r"c.png and 1 other image have more"):
        warn_of_reduced(paths[:2])


def test_deep_grey_images_are_refused(tmp_path):
    png16(tmp_path / "grey.png", np.zeros((8, 8, 1), np.uint16))
    _, errors = decode([tmp_path / "grey.png"], (3, 8, 8))
    assert str(errors[0]).endswith("has more than 8 bits per channel (mode I;16). Convert it to 8 bits first.")


def test_sixteen_bits_for_three_channels_are_not_deep(tmp_path):
    """A bitmap of 5 bits per channel says 16, too."""
    header = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 54 + 128, 0, 0, 54, 40, 8, 8, 1, 16, 0, 128, 0, 0, 0, 0)
    (tmp_path / "a.bmp").write_bytes(header + bytes(128))
    reduced = []
    assert not decode([tmp_path / "a.bmp"], (3, 8, 8), reduced)[1]
    assert reduced == []


@pytest.mark.parametrize(
    "content", [b"P1\n2 1\n0 1\n", b"P2\n2 1\n255\n255 0\n", b"P4\n2 1\n\x40"], ids=["P1", "P2", "P4"]
)
def test_black_and_white_is_not_deep(tmp_path, content):
    (tmp_path / "a.pbm").write_bytes(content)
    reduced = []
    array, errors = decode([tmp_path / "a.pbm"], (1, 1, 2), reduced)
    assert (array.tolist(), errors, reduced) == ([[[[255, 0]]]], {}, [])


def test_files_have_one_or_three_channels():
    with pytest.raises(ValueError, match=r"have 1 channel \(grey\) or 3 \(RGB\), and the images here have 4"):
        decode([], (4, 8, 8))
