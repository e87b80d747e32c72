"""Crops against Pillow's pixels and against torchvision's rule, one image at a time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

from maxsep.lab.data import augmentation
from maxsep.lab.data.augment import Augmentation
from maxsep.lab.data.colour_jitter import ColourJitter
from maxsep.lab.data.resized_crop import CropDraw, ResizedCrop, largest_within

CROP = ResizedCrop()
LOW, HIGH = (math.log(bound) for bound in CROP.ratio)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_images(*shape, seed=0):
    return torch.randint(256, shape, generator=generator(seed)).to(torch.uint8)


def many(count, height, width):
    """Images of which only the shape is looked at."""
    return torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(count, 1, height, width)


def with_pillow(image, top, left, height, width):
    """Crop and resize one image, (C, H, W), plane by plane."""
    size = image.shape[2], image.shape[1]
    planes = [Image.fromarray(plane).crop((left, top, left + width, top + height)) for plane in image.numpy()]
    return torch.from_numpy(np.stack([np.asarray(p.resize(size, Image.Resampling.BILINEAR)) for p in planes]))


def expected(images, draw):
    boxes = torch.stack(draw, 1).tolist()
    return torch.stack([with_pillow(image, *box) for image, box in zip(images, boxes, strict=True)])


def torchvision_rule(tries, place, height, width, scale, ratio):
    """One image's crop by the loop of RandomResizedCrop.get_params, from numbers in [0, 1)."""
    for area, shape in tries:
        target = height * width * (scale[0] + (scale[1] - scale[0]) * area)
        aspect = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * shape)
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(place[0] * (height - h + 1)), int(place[1] * (width - w + 1)), h, w
    w, h = width, height
    if width / height < min(ratio):
        h = round(w / min(ratio))
    elif width / height > max(ratio):
        w = round(h * max(ratio))
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("shape", [(64, 3, 32, 32), (64, 1, 8, 8), (32, 2, 24, 40), (32, 4, 33, 17), (8, 3, 97, 224)])
def test_pixels_are_pillows(shape):
    images = random_images(*shape)
    draw = CROP.draw(images, generator(1))
    result = CROP.apply(images, draw)
    assert result.dtype == torch.uint8
    assert torch.equal(result, expected(images, draw)), "bit for bit"
    assert torch.equal(result, CROP(images, generator(1))), "calling is drawing and applying"


def test_smooth_pictures_too():
    """Neighbours differ by one grey level here, so that every rounding is close."""
    slope = (torch.arange(61).view(-1, 1) + 2 * torch.arange(45)).to(torch.uint8).expand(200, 1, 61, 45)
    draw = CROP.draw(slope, generator(5))
    assert torch.equal(CROP.apply(slope, draw), expected(slope, draw))


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 70), st.integers(1, 70))
def test_any_rectangle_of_any_image(data, height, width):
    rows, columns = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    box = data.draw(st.integers(0, height - rows)), data.draw(st.integers(0, width - columns)), rows, columns
    images = random_images(1, 3, height, width, seed=height)
    draw = CropDraw(*(torch.tensor([value]) for value in box))
    assert torch.equal(CROP.apply(images, draw)[0], with_pillow(images[0], *box))


def test_nothing_outside_of_the_rectangle_shows():
    images = torch.full((1, 1, 16, 16), 255, dtype=torch.uint8)
    images[:, :, 3:8, 5:12] = 9
    draw = CropDraw(*(torch.tensor([value]) for value in (3, 5, 5, 7)))
    assert CROP.apply(images, draw).unique().tolist() == [9]


def test_the_whole_image_stays():
    images = random_images(4, 3, 20, 30)
    whole = CropDraw(*(torch.full((4,), value) for value in (0, 0, 20, 30)))
    assert torch.equal(CROP.apply(images, whole), images)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (224, 224), (20, 60), (90, 30), (3, 2), (1, 1), (5, 400)])
@pytest.mark.parametrize("crop", [CROP, ResizedCrop((0.01, 0.3), (0.2, 1.0)), ResizedCrop((1.0, 1.0), (2.0, 3.0))])
def test_rectangles_are_torchvisions(crop, height, width):
    images = many(500, height, width)
    source = generator(2)
    tries = torch.rand(2, 10, 500, generator=source, dtype=torch.float64)
    place = torch.rand(2, 500, generator=source, dtype=torch.float64)
    rule = [
        torchvision_rule(tries[:, :, i].T.tolist(), place[:, i].tolist(), height, width, crop.scale, crop.ratio)
        for i in range(500)
    ]
    # a rectangle of no column, which their rule has in the middle of a tiny image, has one here
    rule = [(top, left, max(1, rows), max(1, columns)) for top, left, rows, columns in rule]
    assert torch.stack(crop.draw(images, generator(2)), 1).tolist() == [list(one) for one in rule]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.floats(0.01, 1), st.floats(0.1, 2), st.integers(0, 2**31))
def test_every_rectangle_is_inside(height, width, least, flat, seed):
    crop = ResizedCrop((least, 1.0), (flat, 2 * flat))
    draw = crop.draw(many(64, height, width), generator(seed))
    for first, extent, size in ((draw.top, draw.height, height), (draw.left, draw.width, width)):
        assert int(first.min()) >= 0
        assert int(extent.min()) >= 1
        assert int((first + extent).max()) <= size


def test_areas_and_shapes_are_uniform_where_all_of_them_fit():
    crop, size = ResizedCrop((0.08, 0.74)), 10_000  # large, so that whole numbers do not show
    draw = crop.draw(many(20_000, size, size), generator())
    area = (draw.height * draw.width).double() / size**2
    shape = (draw.width.double() / draw.height).log()
    assert stats.kstest(area, stats.uniform(0.08, 0.66).cdf).pvalue > 0.01
    assert stats.kstest(shape, stats.uniform(LOW, HIGH - LOW).cdf).pvalue > 0.01
    for first, extent in ((draw.top, draw.height), (draw.left, draw.width)):
        assert stats.kstest(first / (size - extent), "uniform").pvalue > 0.01
    place = torch.stack([area, shape, draw.top / (size - draw.height), draw.left / (size - draw.width)])
    assert (torch.corrcoef(place) - torch.eye(4)).abs().max() < 0.03


def test_large_areas_are_rarer_because_fewer_shapes_fit():
    """A square holds area a in shapes r with a r <= 1 and a / r <= 1 alone."""
    size = 10_000
    draw = CROP.draw(many(20_000, size, size), generator(1))
    rng = np.random.default_rng(0)
    area, shape = rng.uniform(*CROP.scale, 200_000), np.exp(rng.uniform(LOW, HIGH, 200_000))
    fits = (area * shape <= 1) & (area <= shape)
    found = (draw.height * draw.width).double() / size**2
    assert stats.ks_2samp(found, area[fits]).pvalue > 0.01
    assert stats.ks_2samp((draw.width / draw.height).log(), np.log(shape[fits])).pvalue > 0.01
    assert not stats.kstest(found, stats.uniform(0.08, 0.92).cdf).pvalue > 0.01


def test_positions_on_small_images_are_equally_likely():
    quarter = ResizedCrop((0.25, 0.25), (1.0, 1.0))
    draw = quarter.draw(many(200_000, 8, 8), generator())
    for first in (draw.top, draw.left):
        assert stats.chisquare(torch.bincount(first, minlength=5)).pvalue > 0.01


@pytest.mark.parametrize("wide", [True, False])
def test_what_never_fits_is_the_middle(wide):
    """A long image has room for few of the tries; the share of images with none is (1 - p)^10."""
    count, short, long = 20_000, 20, 120
    draw = CROP.draw(many(count, *((short, long) if wide else (long, short))), generator())
    rng = np.random.default_rng(0)
    area, shape = short * long * rng.uniform(*CROP.scale, 10**6), np.exp(rng.uniform(LOW, HIGH, 10**6))
    none = (np.round(np.sqrt(area / shape)) > short).mean() ** 10
    middle = (0, 46, 20, 27) if wide else (46, 0, 27, 20)
    found = (torch.stack(draw, 1) == torch.tensor(middle)).all(1).sum().item()
    assert 0.1 < none < 0.9
    # some 10 come there by a try that fits
    assert found == pytest.approx(none * count, abs=10 + 4 * math.sqrt(count * none * (1 - none)))


def test_the_largest_rectangle_of_a_shape():
    assert largest_within(224, 224, CROP.ratio) == (224, 224)
    assert largest_within(30, 300, CROP.ratio) == (30, 40)
    assert largest_within(300, 30, CROP.ratio) == (40, 30)
    assert largest_within(1, 100, (0.1, 0.3)) == (1, 1), "never empty"


def test_seed_decides():
    images = random_images(8, 3, 32, 32)
    assert torch.equal(CROP(images, generator(3)), CROP(images, generator(3)))
    assert not torch.equal(CROP(images, generator(3)), CROP(images, generator(4)))
    for one, other in zip(CROP.draw(images, generator(3)), CROP.draw(images, generator(3)), strict=True):
        assert torch.equal(one, other)


def test_input_is_left_alone_and_layout_does_not_matter():
    images = random_images(8, 3, 32, 32)
    copy = images.clone()
    result = CROP(images, generator())
    assert torch.equal(images, copy)
    assert torch.equal(CROP(images.to(memory_format=torch.channels_last), generator()), result)


@pytest.mark.parametrize("shape", [(16, 3, 32, 32), (8, 1, 33, 17)])
def test_compiled_whole(shape):
    images = random_images(*shape)
    program = torch.compile(CROP.apply, dynamic=False, fullgraph=True, backend="aot_eager")
    for seed in range(2):
        draw = CROP.draw(images, generator(seed))
        assert torch.equal(program(images, draw), CROP.apply(images, draw))


class NoWaiting(TorchDispatchMode):
    """Fails on operations that make the host wait for the device or whose result shape depends on values."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "lift_fresh"), name
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["resized_crop_flip", "resized_crop_flip_jitter"])
def test_can_be_captured(name):
    """No value is read back, no constant is sent over, from the first call on."""
    images = random_images(8, 3, 40, 24)
    with NoWaiting():
        result = augmentation(name)(images, generator())
    assert result.shape == images.shape


def test_names():
    crop, flip = augmentation("resized_crop_flip").steps
    assert (crop, flip) == (ResizedCrop((0.08, 1.0), (3 / 4, 4 / 3)), Augmentation(flip=True))
    assert augmentation("resized_crop_flip_jitter").steps == (crop, flip, ColourJitter(0.4, 0.4, 0.4))
    with pytest.raises(ValueError, match=r"crop_flip_auto_cutout, resized_crop_flip, resized_crop_flip_jitter, rand_"):
        augmentation("resized_crop")


@pytest.mark.parametrize("scale", [(0.0, 1.0), (0.5, 0.4), (0.5, 1.1), (-1.0, 0.5), (math.nan, 1.0)])
def test_areas_that_no_image_has_are_refused(scale):
    with pytest.raises(ValueError, match=r"0 < least <= largest <= 1, got \(.*\)\. Pass such as \(0\.08, 1\.0\)"):
        ResizedCrop(scale=scale)


@pytest.mark.parametrize("ratio", [(0.0, 1.0), (2.0, 1.0), (1.0, math.inf), (1.0, math.nan)])
def test_shapes_that_no_image_has_are_refused(ratio):
    with pytest.raises(ValueError, match=r"two positive ratios of width to height, the smaller first, got"):
        ResizedCrop(ratio=ratio)


@pytest.mark.parametrize("wrong", [torch.zeros(2, 3, 8, 8), torch.zeros(3, 8, 8, dtype=torch.uint8)])
def test_other_images_are_refused(wrong):
    with pytest.raises(ValueError, match=r"uint8 images of shape \(B, C, H, W\).*before converting to float"):
        CROP(wrong, generator())
    with pytest.raises(ValueError, match="uint8 images"):
        CROP.apply(wrong, CropDraw(*torch.ones(4, 2).long()))
