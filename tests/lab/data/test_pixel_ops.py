"""Every operation of the batched kind against Pillow, which handles one image at a time."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch.utils._python_dispatch import TorchDispatchMode

from maxsep.lab.data.pixel_ops import operate, paint
from maxsep.lab.data.pixel_tables import BLENDS, OPERATIONS, tabulate


def pictures(count, channels=3, size=32, seed=0):
    """Smooth pictures of different ranges, noise, and flat ones: histograms of every kind."""
    rng = np.random.default_rng(seed)
    waves = np.add.outer(np.sin(np.arange(size) / 5), np.cos(np.arange(size) / 7))[None, None]
    shades = 128 + 60 * waves * rng.random((count, channels, 1, 1)) + rng.normal(0, 8, (count, channels, size, size))
    images = np.clip(shades, 0, 255).astype(np.uint8)
    images[0] = rng.integers(0, 256, images[0].shape)
    images[1] = 77
    images[2] = rng.integers(0, 2, images[2].shape) * 200
    return torch.from_numpy(images)


def affine(image, matrix):
    fill = 128 if image.mode == "L" else (128,) * 3
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=fill)


def solarise_add(image, amount):
    raised = np.clip(np.asarray(image).astype(float) + amount, 0, 255).astype(np.uint8)
    return ImageOps.solarize(Image.fromarray(raised), 128)


REFERENCE = {
    "nothing": lambda image, m: image,
    "shear_x": lambda image, m: affine(image, (1, m, 0, 0, 1, 0)),
    "shear_y": lambda image, m: affine(image, (1, 0, 0, m, 1, 0)),
    "translate_x": lambda image, m: affine(image, (1, 0, m, 0, 1, 0)),
    "translate_y": lambda image, m: affine(image, (1, 0, 0, 0, 1, m)),
    "rotate": lambda image, m: image.rotate(
        m, Image.Resampling.NEAREST, fillcolor=128 if image.mode == "L" else (128,) * 3
    ),
    "colour": lambda image, m: ImageEnhance.Color(image).enhance(m),
    "contrast": lambda image, m: ImageEnhance.Contrast(image).enhance(m),
    "brightness": lambda image, m: ImageEnhance.Brightness(image).enhance(m),
    "sharpness": lambda image, m: ImageEnhance.Sharpness(image).enhance(m),
    "posterise": lambda image, m: ImageOps.posterize(image, int(m)),
    "solarise": lambda image, m: ImageOps.solarize(image, m),
    "solarise_add": solarise_add,
    "invert": lambda image, m: ImageOps.invert(image),
    "autocontrast": lambda image, m: ImageOps.autocontrast(image),
    "equalise": lambda image, m: ImageOps.equalize(image),
}
MAGNITUDES = {
    **dict.fromkeys(("shear_x", "shear_y"), (0.1, -0.2667, 0.3)),
    **dict.fromkeys(("translate_x", "translate_y"), (4.8338, -12.8902, 14.5015)),
    "rotate": (6.6667, -30.0, 13.3),
    **dict.fromkeys(BLENDS, (0.1, 0.7, 1.0, 1.3, 1.9)),
    "posterise": (4.0, 5.0, 8.0),
    "solarise": (28.4444, 113.7778, 256.0),
    "solarise_add": (0.0, 22.0, 66.0, 25.67),
}


def with_pillow(image, name, magnitude):
    return from_pillow(REFERENCE[name](to_pillow(image), magnitude))


def to_pillow(image):
    array = image.permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(array.squeeze(-1) if array.shape[2] == 1 else array)


def from_pillow(picture):
    array = np.array(picture)
    return torch.from_numpy(array).view(*array.shape[:2], -1).permute(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_one_operation(name, channels):
    images = pictures(24, channels)
    magnitudes = MAGNITUDES.get(name, (0.0,))
    tables = tabulate(tuple((name, magnitude) for magnitude in magnitudes), 32, 32, images.device)
    for place, magnitude in enumerate(magnitudes):
        result = operate(images, torch.full((24,), place), tables)
        assert result.dtype == torch.uint8
        expected = torch.stack([with_pillow(image, name, magnitude) for image in images])
        assert torch.equal(result, expected), (name, magnitude)


def test_every_image_of_a_batch_has_its_own():
    images = pictures(64)
    names = [OPERATIONS[i % len(OPERATIONS)] for i in range(64)]
    amounts = [
        MAGNITUDES.get(name, (0.0,))[i // len(OPERATIONS) % len(MAGNITUDES.get(name, (0.0,)))]
        for i, name in enumerate(names)
    ]
    tables = tabulate(tuple(zip(names, amounts, strict=True)), 32, 32, images.device)
    result = operate(images, torch.arange(64), tables)
    expected = torch.stack([with_pillow(*one) for one in zip(images, names, amounts, strict=True)])
    assert torch.equal(result, expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_painted_rectangles_are_pillows_without_their_last_row_and_column(channels):
    images = pictures(20, channels)
    rng, colour = np.random.default_rng(3), (125, 123, 114)[:channels]
    first, last = rng.integers(-4, 30, (2, 20)), rng.integers(-2, 40, (2, 20))
    last = np.maximum(first, last)
    rows, columns = (torch.from_numpy(np.stack([first[axis], last[axis] + 1])) for axis in (0, 1))
    result = paint(images, rows, columns, torch.tensor(colour, dtype=torch.uint8).view(-1, 1, 1))
    for number, image in enumerate(images):
        picture = to_pillow(image)
        (top, left), (bottom, right) = first[:, number], last[:, number]
        ImageDraw.Draw(picture).rectangle((left, top, right, bottom), colour if channels == 3 else colour[0])
        assert torch.equal(result[number], from_pillow(picture)), number


@pytest.mark.parametrize("size", [(24, 40), (40, 24)])
def test_images_need_not_be_square(size):
    images = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (len(OPERATIONS), 3, *size), dtype=np.uint8))
    chosen = [(name, MAGNITUDES.get(name, (0.0,))[0]) for name in OPERATIONS]
    result = operate(images, torch.arange(len(chosen)), tabulate(tuple(chosen), *size, images.device))
    for number, (name, magnitude) in enumerate(chosen):
        assert torch.equal(result[number], with_pillow(images[number], name, magnitude)), name


def test_few_kernels_do_all_of_it():
    """A captured training step pays for their number: the network itself has about a hundred."""
    images = pictures(16)
    tables = tabulate(tuple((name, MAGNITUDES.get(name, (0.0,))[0]) for name in OPERATIONS), 32, 32, images.device)
    with Kernels() as kernels:
        operate(images, torch.arange(16), tables)
    assert kernels.count <= 60


class Kernels(TorchDispatchMode):
    """Counts operations that do something; views of the same memory do nothing."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))
