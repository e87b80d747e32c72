"""Batched augmentation against a reference that handles one image at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

from maxsep.lab.data import Augmentation, augmentation
from maxsep.lab.data.augment import Draw

EVERYTHING = augmentation("crop_flip_rotate")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_images(*shape, seed=0):
    return torch.randint(1, 256, shape, generator=generator(seed)).to(torch.uint8)


def reference(image, top, left, flip, angle):
    """Pad, slice, flip and rotate one image with numpy and Pillow; image: (C, H, W)."""
    _, height, width = image.shape
    pad = min(height, width) // 8
    array = image.numpy()
    if top is not None:
        padded = np.pad(array, ((0, 0), (pad, pad), (pad, pad)))
        array = padded[:, pad + top : pad + top + height, pad + left : pad + left + width]
    if flip:
        array = array[:, :, ::-1]
    if angle is not None:
        planes = [Image.fromarray(np.ascontiguousarray(plane)) for plane in array]
        array = np.stack([np.asarray(p.rotate(angle, Image.Resampling.NEAREST)) for p in planes])
    return torch.from_numpy(np.ascontiguousarray(array))


def expected(images, draw):
    rows = [[None if values is None else values[i].item() for values in draw] for i in range(len(images))]
    return torch.stack([reference(image, *row) for image, row in zip(images, rows, strict=True)])


@pytest.mark.parametrize("shape", [(64, 3, 32, 32), (32, 1, 8, 8), (16, 2, 24, 40), (16, 4, 33, 17)])
@pytest.mark.parametrize(
    "augment",
    [
        Augmentation(crop=True),
        Augmentation(flip=True),
        Augmentation(degrees=15.0),
        Augmentation(degrees=180.0),
        augmentation("crop_flip"),
        EVERYTHING,
    ],
    ids=str,
)
def test_equals_the_reference_pixel_for_pixel(augment, shape):
    images = random_images(*shape)
    draw = augment.draw(images, generator(1))
    result = augment.apply(images, draw)
    assert result.dtype == torch.uint8
    assert torch.equal(result, expected(images, draw))
    assert torch.equal(result, augment(images, generator(1))), "calling is drawing and applying"


@settings(max_examples=60, deadline=None)
@given(st.integers(-4, 4), st.integers(-4, 4), st.booleans(), st.floats(-180, 180))
def test_any_parameters(top, left, flip, angle):
    images = random_images(1, 3, 32, 32)
    draw = Draw(
        torch.tensor([top]), torch.tensor([left]), torch.tensor([flip]), torch.tensor([angle], dtype=torch.float64)
    )
    assert torch.equal(EVERYTHING.apply(images, draw), expected(images, draw))


def test_draws_cover_their_ranges_evenly():
    images = torch.zeros(20_000, 1, 32, 32, dtype=torch.uint8)
    draw = EVERYTHING.draw(images, generator())
    for shift in (draw.top, draw.left):
        counts = torch.bincount(shift + 4, minlength=9)
        assert len(counts) == 9
        assert (counts / len(images) - 1 / 9).abs().max() < 0.01
    assert abs(draw.flip.double().mean() - 0.5) < 0.015
    assert draw.angle.abs().max() <= 15
    assert abs(draw.angle.mean()) < 0.3
    assert abs(draw.angle.std() - 15 / 3**0.5) < 0.2
    together = torch.stack([draw.top.double(), draw.left.double(), draw.flip.double(), draw.angle])
    assert (torch.corrcoef(together) - torch.eye(4)).abs().max() < 0.03


def test_seed_decides():
    images = random_images(8, 3, 32, 32)
    assert torch.equal(EVERYTHING(images, generator(3)), EVERYTHING(images, generator(3)))
    assert not torch.equal(EVERYTHING(images, generator(3)), EVERYTHING(images, generator(4)))


def test_none_draws_nothing():
    images, source = random_images(2, 3, 8, 8), generator()
    before = source.get_state()
    assert augmentation("none")(images, source) is images
    assert torch.equal(source.get_state(), before)


def test_input_is_left_alone_and_layout_does_not_matter():
    images = random_images(8, 3, 32, 32)
    copy = images.clone()
    result = EVERYTHING(images, generator())
    assert torch.equal(images, copy)
    assert torch.equal(EVERYTHING(images.to(memory_format=torch.channels_last), generator()), result)


class NoWaiting(TorchDispatchMode):
    """Fails on operations that make the host wait for the device or whose result shape depends on values."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert not {"_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "lift_fresh"} & {
            function.overloadpacket.__name__
        }, function
        return function(*args, **(kwargs or {}))


def test_can_be_captured():
    """No value is read back, no constant is sent over, and shapes are known beforehand."""
    images = random_images(8, 3, 32, 32)
    with NoWaiting():
        result = EVERYTHING(images, generator())
    assert result.shape == images.shape
    draw = EVERYTHING.draw(images, generator())
    shadow = EVERYTHING.apply(images.to("meta"), Draw(*(values.to("meta") for values in draw)))
    assert shadow.shape == images.shape
    assert shadow.dtype == torch.uint8


def test_errors():
    with pytest.raises(ValueError, match=r"unknown augmentation 'mixup'. Known: none, crop_flip, crop_flip_rotate"):
        augmentation("mixup")
    for wrong in (torch.zeros(2, 3, 8, 8), torch.zeros(3, 8, 8, dtype=torch.uint8)):
        with pytest.raises(ValueError, match=r"uint8 images of shape \(B, C, H, W\).*before converting to float"):
            EVERYTHING(wrong, generator())
        with pytest.raises(ValueError, match="uint8 images"):
            EVERYTHING.apply(wrong, Draw(None, None, None, None))
