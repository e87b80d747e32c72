"""Brightness, contrast and saturation of batches against Pillow, which handles one image at a time."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from scipy import stats

from maxsep.lab.data.colour_jitter import ADJUSTMENTS, ColourJitter, JitterDraw

JITTER = ColourJitter()
ENHANCE = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
ORDERS = list(itertools.permutations(range(3)))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(count, channels=3, height=24, width=32, seed=0):
    """Noise within different ranges, so that mean and spread differ from image to image."""
    rng = np.random.default_rng(seed)
    low, high = np.sort(rng.integers(0, 256, (2, count, channels, 1, 1)), axis=0)
    images = (low + (high - low + 1) * rng.random((count, channels, height, width))).astype(np.uint8)
    images[0], images[-1] = rng.integers(0, 256, images[0].shape), 77
    return torch.from_numpy(images)


def with_pillow(image, order, factors):
    """Change one image, (C, H, W)."""
    array = image.numpy()
    picture = Image.fromarray(array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0)))
    for number in order:
        picture = ENHANCE[number](picture).enhance(factors[number])
    return torch.from_numpy(np.array(picture)).view(*image.shape[1:], -1).permute(2, 0, 1)


def expected(images, draw):
    given = zip(images, draw.order.T.tolist(), draw.factors.T.tolist(), strict=True)
    return torch.stack([with_pillow(*one) for one in given])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "_".join(ADJUSTMENTS[i] for i in order))
def test_every_order_is_pillows(order, channels):
    images = pictures(40, channels)
    drawn = ColourJitter(0.9, 0.9, 2.0).draw(images, generator(sum(order[:2])))
    draw = JitterDraw(torch.tensor(order).view(3, 1).expand(3, 40), drawn.factors)
    result = JITTER.apply(images, draw)
    assert result.dtype == torch.uint8
    assert torch.equal(result, expected(images, draw)), "bit for bit"


@pytest.mark.parametrize("size", [(32, 32), (33, 17), (7, 120), (1, 1)])
def test_every_image_has_its_own(size):
    images = pictures(100, 3, *size)
    draw = JITTER.draw(images, generator(2))
    assert len(draw.order.unique(dim=1).T) == 6
    assert torch.equal(JITTER.apply(images, draw), expected(images, draw))
    assert torch.equal(JITTER(images, generator(2)), expected(images, draw)), "calling is drawing and applying"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ORDERS), st.tuples(*[st.floats(0, 3, width=32)] * 3), st.sampled_from([1, 3]))
def test_any_factors(order, factors, channels):
    images = pictures(3, channels, 9, 11)
    draw = JitterDraw(torch.tensor([order] * 3).T, torch.tensor([factors] * 3, dtype=torch.float32).T)
    assert torch.equal(JITTER.apply(images, draw), expected(images, draw))


def test_saturation_does_nothing_to_grey_images():
    grey = pictures(20, 1)
    assert torch.equal(ColourJitter(0, 0, 5.0)(grey, generator()), grey)
    assert torch.equal(ColourJitter(0, 0, 5.0)(grey.expand(-1, 3, -1, -1), generator()), grey.expand(-1, 3, -1, -1))


def test_no_strength_changes_nothing():
    images = pictures(20)
    assert torch.equal(ColourJitter(0, 0, 0)(images, generator()), images)


def test_draws_cover_their_ranges_evenly():
    images = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(30_000, 3, 8, 8)
    draw = ColourJitter(0.4, 0.1, 1.5).draw(images, generator())
    for factor, (low, high) in zip(draw.factors, [(0.6, 1.4), (0.9, 1.1), (0.0, 2.5)], strict=True):
        assert stats.kstest(factor.double(), stats.uniform(low, high - low).cdf).pvalue > 0.01
    number = draw.order[0] * 9 + draw.order[1] * 3 + draw.order[2]
    orders, counts = number.unique(return_counts=True)
    assert orders.tolist() == [a * 9 + b * 3 + c for a, b, c in ORDERS]
    assert stats.chisquare(counts).pvalue > 0.01
    together = torch.cat([draw.factors, number.float().unsqueeze(0)])
    assert (torch.corrcoef(together) - torch.eye(4)).abs().max() < 0.03


def test_seed_decides():
    images = pictures(8)
    assert torch.equal(JITTER(images, generator(3)), JITTER(images, generator(3)))
    assert not torch.equal(JITTER(images, generator(3)), JITTER(images, generator(4)))


def test_input_is_left_alone_and_layout_does_not_matter():
    images = pictures(8)
    copy = images.clone()
    result = JITTER(images, generator())
    assert torch.equal(images, copy)
    assert torch.equal(JITTER(images.to(memory_format=torch.channels_last), generator()), result)
    assert torch.equal(JITTER(images[:, :, 1:, 2:], generator()), JITTER(images[:, :, 1:, 2:].clone(), generator()))


@pytest.mark.parametrize("channels", [1, 3])
def test_compiled_whole(channels):
    images = pictures(16, channels)
    program = torch.compile(JITTER.apply, dynamic=False, fullgraph=True, backend="aot_eager")
    for seed in range(2):
        draw = JITTER.draw(images, generator(seed))
        assert torch.equal(program(images, draw), JITTER.apply(images, draw))


@pytest.mark.parametrize("name", ADJUSTMENTS)
@pytest.mark.parametrize("strength", [-0.1, float("inf"), float("nan")])
def test_strengths_are_not_negative(name, strength):
    with pytest.raises(ValueError, match=rf"{name} must be .*at least 0, got .*\. Pass 0 to leave the {name} alone"):
        ColourJitter(**{name: strength})


def test_other_images_are_refused():
    with pytest.raises(ValueError, match=r"knows grey and colour images, got 4 channels. Use resized_crop_flip"):
        JITTER(torch.zeros(2, 4, 8, 8, dtype=torch.uint8), generator())
    with pytest.raises(ValueError, match=r"uint8 images of shape \(B, C, H, W\).*before converting to float"):
        JITTER(torch.zeros(2, 3, 8, 8), generator())
