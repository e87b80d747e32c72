"""Batched augmentation against references that handle one image at a time; what holds for every name."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from waiting import NoWaiting

from maxsep.lab.data import augmentation
from maxsep.lab.data.augment import ColourJitter, CropFlip, ResizedCrop

NAMES = (
    *("crop_flip", "crop_flip_rotate", "crop_flip_cutout", "crop_flip_auto", "crop_flip_auto_cutout"),
    *("resized_crop_flip", "resized_crop_flip_jitter", "rand_augment_m6", "rand_augment_digits_m18"),
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_images(*shape, seed=0):
    return torch.randint(1, 256, shape, generator=generator(seed)).to(torch.uint8)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_name(name, channels):
    """The seed decides, the input and its layout do not matter, and a CUDA graph could capture it."""
    augment, images = augmentation(name), random_images(32, channels, 32, 32)
    copy, result = images.clone(), augment(images, generator(3))
    assert torch.equal(images, copy)
    assert (result.shape, result.dtype) == (images.shape, torch.uint8)
    assert not torch.equal(result, images)
    assert not torch.equal(result, augment(images, generator(4)))
    assert torch.equal(result, augment(images.to(memory_format=torch.channels_last), generator(3)))
    with NoWaiting():
        assert torch.stack([result, augment(images, generator(3))]).diff(dim=0).count_nonzero().shape == ()
    assert torch.equal(result, augment.apply(images, augment.draw(images, generator(3))))


def test_none_and_names_that_are_none():
    images, source = random_images(2, 4, 8, 8), generator()
    assert augmentation("none")(images, source) is images
    assert torch.equal(source.get_state(), generator().get_state()), "nothing is drawn"
    for name in ("mixup", "rand_augment", "rand_augment_m06", "rand_augment_m-1", "rand_augment_m31"):
        with pytest.raises(ValueError, match="0 to 30"):
            augmentation(name)
    for name in ("crop_flip_auto", "rand_augment_m6"):
        with pytest.raises(ValueError, match="4 channels"):
            augmentation(name)(images, source)


def reference(image, shift, flip, angle):
    """Pad, slice, flip and rotate one image (C, H, W) with numpy and Pillow."""
    _, height, width = image.shape
    pad, array = min(height, width) // 8, image.numpy()
    if shift is not None:
        top, left = (pad + shift).tolist()
        array = np.pad(array, ((0, 0), (pad, pad), (pad, pad)))[:, top : top + height, left : left + width]
    if flip:
        array = array[:, :, ::-1]
    if angle is not None:
        planes = [Image.fromarray(np.ascontiguousarray(plane)) for plane in array]
        array = np.stack([np.asarray(p.rotate(float(angle), Image.Resampling.NEAREST)) for p in planes])
    return torch.from_numpy(np.ascontiguousarray(array))


@pytest.mark.parametrize("shape", [(64, 3, 32, 32), (32, 1, 8, 8), (16, 2, 24, 40), (16, 4, 33, 17)])
@pytest.mark.parametrize(
    "step",
    [CropFlip(flip=False), CropFlip(crop=False), CropFlip(False, False, 180.0), CropFlip(), CropFlip(degrees=15.0)],
    ids=str,
)
def test_crop_flip_and_rotation_pixel_for_pixel(step, shape):
    images = random_images(*shape)
    draw = step.draw(images, generator(1))
    rows = [[None if values is None else values[..., i] for values in draw] for i in range(len(images))]
    expected = torch.stack([reference(image, *row) for image, row in zip(images, rows, strict=True)])
    assert torch.equal(step.apply(images, draw), expected)


def torchvision_rule(tries, position, size, scale, ratio):
    """One rectangle by the loop of RandomResizedCrop.get_params, from numbers in [0, 1)."""
    for area, shape in tries:
        target = size * size * (scale[0] + (scale[1] - scale[0]) * area)
        aspect = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * shape)
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= size and 0 < h <= size:
            return [int(position[0] * (size - h + 1)), int(position[1] * (size - w + 1)), h, w]
    return [0, 0, size, size]


@pytest.mark.parametrize("size", [8, 32, 224])
@pytest.mark.parametrize("crop", [ResizedCrop(), ResizedCrop((0.9, 1.0))])
def test_rectangles_are_torchvisions(crop, size):
    images = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(500, 1, size, size)
    source = generator(2)
    tries = torch.rand(2, 10, 500, generator=source, dtype=torch.float64)
    position = torch.rand(2, 500, generator=source, dtype=torch.float64)
    rows = zip(tries.permute(2, 1, 0).tolist(), position.T.tolist(), strict=True)
    expected = [torchvision_rule(*row, size, crop.scale, crop.ratio) for row in rows]
    assert crop.draw(images, generator(2)).T.tolist() == expected


@pytest.mark.parametrize("shape", [(64, 3, 32, 32), (64, 1, 8, 8), (8, 3, 97, 97)])
def test_resized_crops_are_pillows_to_one_grey_level(shape):
    images = random_images(*shape)
    draw = ResizedCrop().draw(images, generator(1))
    result = ResizedCrop().apply(images, draw)
    for image, new, (top, left, height, width) in zip(images, result, draw.T.tolist(), strict=True):
        for plane, got in zip(image.numpy(), new, strict=True):
            box = Image.fromarray(plane).crop((left, top, left + width, top + height))
            expected = np.asarray(box.resize((shape[3], shape[2]), Image.Resampling.BILINEAR)).astype(int)
            assert np.abs(expected - got.numpy()).max() <= 1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("number", range(3), ids=["brightness", "contrast", "saturation"])
def test_one_adjustment_is_pillows_to_one_grey_level(number, channels):
    enhance = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[number]
    images = random_images(16, channels, 32, 32)
    factors = torch.linspace(0.6, 1.4, 16)
    others = torch.ones(3, 16)
    others[number] = factors
    result = ColourJitter().apply(images, (torch.arange(3).view(3, 1).expand(3, 16), others))
    for image, new, factor in zip(images, result, factors.tolist(), strict=True):
        array = image.permute(1, 2, 0).contiguous().numpy()
        expected = np.asarray(enhance(Image.fromarray(array.squeeze(2) if channels == 1 else array)).enhance(factor))
        got = new.permute(1, 2, 0).numpy().reshape(expected.shape)
        assert np.abs(expected.astype(int) - got).max() <= 1
