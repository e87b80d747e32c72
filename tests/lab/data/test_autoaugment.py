"""AutoAugment, RandAugment and cutout: every operation against Pillow, what is drawn how often, and fixed bits."""

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch.utils._python_dispatch import TorchDispatchMode

from maxsep.lab.data import augmentation
from maxsep.lab.data.autoaugment import (
    BLENDS,
    MOVES,
    AutoAugment,
    Cutout,
    RandAugment,
    operate,
    policy_operations,
    strength,
    tabulate,
)

CIFAR, SVHN = RandAugment(6), RandAugment(18, digits=True)
BITS = {
    "crop_flip": "b783a2dbf41e82af",
    "crop_flip_rotate": "b71da559148993b7",
    "crop_flip_auto": "2ddf06f9d6cbe4ee",
    "crop_flip_auto_cutout": "053f319a28dc1156",
    "rand_augment_m6": "45cfd3fc94166acc",
    "rand_augment_digits_m18": "fab675964c05a36a",
}


LEVELS = {"posterise": 2, "solarise": 153.6, "solarise_add": 66, "contrast": 1.18, "cutout": 24}  # of SVHN


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(count=24, channels=3, height=32, width=32):
    """Smooth pictures of different ranges, noise, and flat ones: histograms of every kind."""
    rng = np.random.default_rng(0)
    waves = np.add.outer(np.sin(np.arange(height) / 5), np.cos(np.arange(width) / 7))[None, None]
    noise = rng.normal(0, 8, (count, channels, height, width))
    images = np.clip(128 + 60 * waves * rng.random((count, channels, 1, 1)) + noise, 0, 255).astype(np.uint8)
    images[0], images[1] = rng.integers(0, 256, images[0].shape), 77
    images[2] = rng.integers(0, 2, images[2].shape) * 200
    return torch.from_numpy(images)


@pytest.mark.parametrize("name", BITS)
def test_bits_are_those_of_recorded_runs(name):
    source = generator(7)
    images = torch.randint(256, (64, 3, 32, 32), generator=source).to(torch.uint8)
    result = augmentation(name)(images, source)
    assert hashlib.sha256(result.numpy().tobytes()).hexdigest()[:16] == BITS[name]


def move(image, matrix, fill):
    colour = fill if image.mode == "L" else (fill,) * 3
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=colour)


def rotate(image, degrees, fill):
    return image.rotate(degrees, Image.Resampling.NEAREST, fillcolor=fill if image.mode == "L" else (fill,) * 3)


def solarise_add(image, amount, _):
    raised = np.clip(np.asarray(image).astype(float) + amount, 0, 255).astype(np.uint8)
    return ImageOps.solarize(Image.fromarray(raised), 128)


PILLOW = {
    "nothing": lambda image, m, fill: image,
    "shear_x": lambda image, m, fill: move(image, (1, m, 0, 0, 1, 0), fill),
    "shear_y": lambda image, m, fill: move(image, (1, 0, 0, m, 1, 0), fill),
    "translate_x": lambda image, m, fill: move(image, (1, 0, m, 0, 1, 0), fill),
    "translate_y": lambda image, m, fill: move(image, (1, 0, 0, 0, 1, m), fill),
    "rotate": rotate,
    "colour": lambda image, m, fill: ImageEnhance.Color(image).enhance(m),
    "contrast": lambda image, m, fill: ImageEnhance.Contrast(image).enhance(m),
    "brightness": lambda image, m, fill: ImageEnhance.Brightness(image).enhance(m),
    "sharpness": lambda image, m, fill: ImageEnhance.Sharpness(image).enhance(m),
    "posterise": lambda image, m, fill: ImageOps.posterize(image, int(m)),
    "solarise": lambda image, m, fill: ImageOps.solarize(image, m),
    "solarise_add": solarise_add,
    "invert": lambda image, m, fill: ImageOps.invert(image),
    "autocontrast": lambda image, m, fill: ImageOps.autocontrast(image),
    "equalise": lambda image, m, fill: ImageOps.equalize(image),
}
MAGNITUDES = {
    **dict.fromkeys(("shear_x", "shear_y"), (0.06, -0.2667, 0.3)),
    **dict.fromkeys(("translate_x", "translate_y"), (4.8338, -12.8902, 20.0)),
    "rotate": (6.6667, -30.0, 13.3),
    **dict.fromkeys(BLENDS, (0.1, 0.46, 1.0, 1.18, 1.9)),
    "posterise": (1.0, 4.0, 5.0, 8.0),
    "solarise": (28.4444, 113.7778, 256.0),
    "solarise_add": (0.0, 22.0, 66.0, 25.67),
}


def with_pillow(image, name, magnitude, fill=128):
    array = image.permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(array.squeeze(-1) if array.shape[2] == 1 else array)
    result = np.array(PILLOW[name](picture, magnitude, fill))
    return torch.from_numpy(result).view(*array.shape[:2], -1).permute(2, 0, 1)


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 32, 32), (3, 24, 40)])
@pytest.mark.parametrize("name", PILLOW)
def test_one_operation(name, shape):
    images, fill = pictures(12, *shape), 128 if shape[2] == 32 else 0
    magnitudes = MAGNITUDES.get(name, (0.0,))
    tables = tabulate(tuple((name, magnitude) for magnitude in magnitudes), shape, images.device, fill)
    for position, magnitude in enumerate(magnitudes):
        expected = torch.stack([with_pillow(image, name, magnitude, fill) for image in images])
        assert torch.equal(operate(images, torch.full((12,), position), tables), expected), magnitude


def test_few_kernels_do_all_of_it():
    """A captured training step pays for their number: the network itself has about a hundred."""

    class Kernels(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += not function.is_view
            return function(*args, **(kwargs or {}))

    images = pictures(16)
    operations = tuple((name, MAGNITUDES.get(name, (0.0,))[0]) for name in PILLOW)
    tables = tabulate(operations, (3, 32, 32), images.device)
    with Kernels() as kernels:
        operate(images, torch.arange(16), tables)
    assert kernels.count <= 60


def test_auto_augment_applies_what_it_drew():
    images, operations = pictures(), policy_operations(32, 32)
    assert len(operations) == 101
    draw = AutoAugment().draw(images, generator(2))
    expected = images
    for chosen in draw[0].tolist():
        expected = torch.stack([with_pillow(x, *operations[i]) for x, i in zip(expected, chosen, strict=True)])
    assert torch.equal(AutoAugment().apply(images, draw), expected)


def test_cutout_holes():
    images = torch.full((3, 1, 8, 8), 9, dtype=torch.uint8)
    result = Cutout().apply(images, torch.tensor([[4, 0, 7], [4, 0, 7]]))
    assert (result == 0).sum((1, 2, 3)).tolist() == [16, 4, 9], "half as wide as the image, and they stick out"
    assert bool((result[0, 0, 2:6, 2:6] == 0).all())
    centre = Cutout().draw(torch.zeros(9000, 1, 8, 8), generator())
    assert (centre.min().item(), centre.max().item()) == (0, 7)


def with_hole(image, side, row, column):
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    left, top = int(max(0, column - side / 2)), int(max(0, row - side / 2))
    box = (left, top, min(picture.width, left + side), min(picture.height, top + side))
    ImageDraw.Draw(picture).rectangle(box, (125, 123, 114))
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


@pytest.mark.parametrize("augment", [CIFAR, SVHN, RandAugment(11)], ids=str)
def test_rand_augment_applies_what_it_drew(augment):
    images = pictures(200)
    draw = augment.draw(images, generator(5))
    result = augment.apply(images, draw)
    names = [augment.operations[i // 2] for i in draw.chosen.tolist()]
    assert len(set(names)) == len(augment.operations) == (13 if augment.digits else 16)
    for image, new, name, i, centre in zip(images, result, names, draw.chosen.tolist(), draw.centre.T, strict=True):
        size = strength(name, augment.level) * (-1 if name in MOVES and i % 2 == 0 else 1)
        assert name not in LEVELS or augment is not SVHN or size == pytest.approx(LEVELS[name])
        hole = name == "cutout"
        expected = with_hole(image, size, *centre.tolist()) if hole else with_pillow(image, name, size, fill=0)
        assert torch.equal(new, expected), name
