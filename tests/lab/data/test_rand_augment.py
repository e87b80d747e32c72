"""RandAugment: every operation at both of the protocol's levels against Pillow, and what is drawn how often."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch.utils._python_dispatch import TorchDispatchMode

from maxsep.lab.data import augmentation
from maxsep.lab.data.pixel_tables import BLENDS, MOVES
from maxsep.lab.data.rand_augment import RandAugment, RandDraw, strength

CIFAR, SVHN = RandAugment(6), RandAugment(18, digits=True)


def pictures(count=12, channels=3, size=32, seed=0):
    rng = np.random.default_rng(seed)
    waves = np.add.outer(np.sin(np.arange(size) / 4), np.cos(np.arange(size) / 6))[None, None]
    shades = 120 + 70 * waves * rng.random((count, channels, 1, 1)) + rng.normal(0, 12, (count, channels, size, size))
    return torch.from_numpy(np.clip(shades, 0, 255).astype(np.uint8))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def moved(image, matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix)  # nearest neighbour and black, by default


def with_cutout(image, side, row, column):
    left, top = max(0, column - side / 2), max(0, row - side / 2)
    left, top = int(left), int(top)
    image = image.copy()
    box = (left, top, min(image.width, left + side), min(image.height, top + side))
    ImageDraw.Draw(image).rectangle(box, (125, 123, 114))
    return image


def with_addition(image, amount):
    raised = np.clip(np.asarray(image).astype(int) + amount, 0, 255).astype(np.uint8)
    return ImageOps.solarize(Image.fromarray(raised), 128)


PILLOW = {
    "autocontrast": lambda image, v: ImageOps.autocontrast(image),
    "equalise": lambda image, v: ImageOps.equalize(image),
    "invert": lambda image, v: ImageOps.invert(image),
    "rotate": lambda image, v: image.rotate(v),
    "posterise": lambda image, v: ImageOps.posterize(image, int(v)),
    "solarise": lambda image, v: ImageOps.solarize(image, v),
    "solarise_add": with_addition,
    "colour": lambda image, v: ImageEnhance.Color(image).enhance(v),
    "contrast": lambda image, v: ImageEnhance.Contrast(image).enhance(v),
    "brightness": lambda image, v: ImageEnhance.Brightness(image).enhance(v),
    "sharpness": lambda image, v: ImageEnhance.Sharpness(image).enhance(v),
    "shear_x": lambda image, v: moved(image, (1, v, 0, 0, 1, 0)),
    "shear_y": lambda image, v: moved(image, (1, 0, 0, v, 1, 0)),
    "translate_x": lambda image, v: moved(image, (1, 0, v, 0, 1, 0)),
    "translate_y": lambda image, v: moved(image, (1, 0, 0, 0, 1, v)),
}


def drawn(augment, chosen):
    """The name of a drawn operation and how much of it, with its sign."""
    name = augment.operations[chosen // 2]
    return name, strength(name, augment.level) * (-1 if name in MOVES and chosen % 2 == 0 else 1)


def with_pillow(augment, image, chosen, centre):
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    name, magnitude = drawn(augment, int(chosen))
    result = with_cutout(picture, magnitude, *centre.tolist()) if name == "cutout" else PILLOW[name](picture, magnitude)
    return torch.from_numpy(np.array(result)).permute(2, 0, 1)


STRENGTHS = {
    6: {
        "rotate": 6.0,
        "posterise": 1.0,
        "solarise": 51.2,
        "solarise_add": 22.0,
        **dict.fromkeys(BLENDS, 0.46),
        **dict.fromkeys(("shear_x", "shear_y"), 0.06),
        "cutout": 8.0,
        **dict.fromkeys(("translate_x", "translate_y"), 20.0),
    },
    18: {
        "posterise": 2.0,
        "solarise": 153.6,
        "solarise_add": 66.0,
        **dict.fromkeys(BLENDS, 1.18),
        **dict.fromkeys(("shear_x", "shear_y"), 0.18),
        "cutout": 24.0,
    },
}


@pytest.mark.parametrize("level", STRENGTHS)
def test_levels_mean_what_the_protocol_derives(level):
    for name, value in STRENGTHS[level].items():
        assert strength(name, level) == pytest.approx(value, rel=1e-12), name


def test_the_ends_of_the_ranges():
    assert (strength("brightness", 0), strength("brightness", 30)) == pytest.approx((0.1, 1.9))
    assert (strength("posterise", 0), strength("posterise", 30)) == (1, 4)
    assert (strength("cutout", 30), strength("translate_y", 30), strength("solarise", 30)) == (40, 100, 256)


def test_digits_are_not_turned_or_shifted():
    assert set(CIFAR.operations) == {*PILLOW, "cutout"}
    assert set(CIFAR.operations) - set(SVHN.operations) == {"rotate", "translate_x", "translate_y"}


@pytest.mark.parametrize(
    ("augment", "name"), [(augment, name) for augment in (CIFAR, SVHN, RandAugment(18)) for name in augment.operations]
)
def test_one_operation_is_pillows(augment, name):
    images = pictures()
    count = len(images)
    centres = torch.rand(1, 2, count, generator=generator(), dtype=torch.float64) * 32
    for sign in (0, 1):
        chosen = torch.full((1, count), 2 * augment.operations.index(name) + sign)
        result = augment.apply(images, RandDraw(chosen, centres))
        assert result.dtype == torch.uint8
        expected = [with_pillow(augment, *one) for one in zip(images, chosen[0], centres[0].T, strict=True)]
        assert torch.equal(result, torch.stack(expected)), sign


@pytest.mark.parametrize("augment", [CIFAR, SVHN, RandAugment(11, count=3)], ids=["cifar", "svhn", "three"])
def test_every_image_of_a_batch_has_its_own(augment):
    images = pictures(100)
    draw = augment.draw(images, generator(5))
    expected = images
    for chosen, centres in zip(draw.chosen, draw.centres, strict=True):
        expected = torch.stack([with_pillow(augment, *one) for one in zip(expected, chosen, centres.T, strict=True)])
    result = augment(images, generator(5))
    assert torch.equal(result, expected)
    assert not torch.equal(result, augment(images, generator(6)))


@pytest.mark.parametrize("augment", [CIFAR, SVHN], ids=["cifar", "svhn"])
def test_all_operations_are_equally_likely_and_moves_have_either_sign(augment):
    count = 40_000
    chosen = augment.draw(torch.zeros(count, 3, 32, 32, dtype=torch.uint8), generator(1)).chosen
    share = 1 / len(augment.operations)
    slack = 4 * (share * (1 - share) / count) ** 0.5
    counts = torch.bincount(chosen[0], minlength=2 * len(augment.operations)).view(-1, 2)
    assert counts.numel() == 2 * len(augment.operations)
    for name, (minus, plus) in zip(augment.operations, counts.tolist(), strict=True):
        assert (minus + plus) / count == pytest.approx(share, abs=slack), name
        assert plus / (minus + plus) == pytest.approx(0.5, abs=0.05), name
    place = 2 * augment.operations.index("shear_x")
    size = strength("shear_x", augment.level)
    assert [drawn(augment, place + sign) for sign in (0, 1)] == [("shear_x", -size), ("shear_x", size)]


def test_operations_are_drawn_with_replacement():
    first, second = (
        RandAugment(6, count=2).draw(torch.zeros(20_000, 3, 2, 2, dtype=torch.uint8), generator(2)).chosen // 2
    )
    assert (first == second).double().mean().item() == pytest.approx(1 / 16, abs=0.007)


def hole(augment, row, column):
    """Where the hole is, as (first row, last row, first column, last column)."""
    chosen = torch.tensor([[2 * augment.operations.index("cutout")]])
    draw = RandDraw(chosen, torch.tensor([[[row], [column]]], dtype=torch.float64))
    painted = augment.apply(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), draw)[0]
    inside = painted[0] == 125
    assert torch.equal(painted, inside * torch.tensor([125, 123, 114], dtype=torch.uint8).view(3, 1, 1))
    rows, columns = inside.any(1).nonzero().flatten(), inside.any(0).nonzero().flatten()
    assert inside.sum() == len(rows) * len(columns)
    return rows[0].item(), rows[-1].item(), columns[0].item(), columns[-1].item()


def test_a_hole_covers_both_of_its_edges():
    assert hole(CIFAR, 16.0, 20.9) == (12, 20, 16, 24)


def test_a_hole_at_the_first_edges_is_moved_inside_and_at_the_last_ones_cut_off():
    assert hole(CIFAR, 0.3, 1.2) == (0, 8, 0, 8)
    assert hole(CIFAR, 31.7, 30.1) == (27, 31, 26, 31)
    assert hole(SVHN, 2.0, 31.0) == (0, 24, 19, 31)


def test_centres_are_uniform_over_the_image():
    centres = CIFAR.draw(torch.zeros(20_000, 3, 16, 32, dtype=torch.uint8), generator(3)).centres[0]
    for values, side in zip(centres, (16, 32), strict=True):
        assert 0 <= values.min().item() < 0.02 < side - 0.02 < values.max().item() < side
        assert values.mean().item() == pytest.approx(side / 2, abs=4 * side / (12 * 20_000) ** 0.5)
        assert values.var().item() == pytest.approx(side**2 / 12, rel=0.03)


def test_grey_images_get_a_grey_hole():
    grey = pictures(64, channels=1)
    result = RandAugment(6)(grey, generator(4))
    cut = CIFAR.draw(grey, generator(4)).chosen[0] // 2 == CIFAR.operations.index("cutout")
    assert int(cut.sum()) > 0
    assert all(int((image == 123).sum()) >= 25 for image in result[cut])
    colour = Image.new("RGB", (1, 1), (125, 123, 114)).convert("L")
    assert colour.getpixel((0, 0)) == 123


@pytest.mark.parametrize(("name", "first"), [("rand_augment_m6", CIFAR), ("rand_augment_digits_m18", SVHN)])
def test_names_come_before_crop_and_flip(name, first):
    augment, batch, source = augmentation(name), pictures(), generator(8)
    assert augment.steps == (first, augmentation("crop_flip"))
    changed = first(batch, source)
    assert torch.equal(augment(batch, generator(8)), augmentation("crop_flip")(changed, source))


class NoWaiting(TorchDispatchMode):
    """Fails on operations that make the host wait for the device or whose result shape depends on values."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "lift_fresh"), name
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["rand_augment_m6", "rand_augment_digits_m18"])
def test_can_be_captured_after_the_first_call(name):
    augment, batch = augmentation(name), pictures()
    expected = augment(batch, generator())
    with NoWaiting():
        result = augment(batch, generator())
    assert torch.equal(result, expected)


def test_a_draw_brings_its_tables_along(monkeypatch):
    """A compiled program would work them out anew in every step, and a captured one could not."""
    batch = pictures()
    draw = CIFAR.draw(batch, generator())
    expected = CIFAR.apply(batch, RandDraw(draw.chosen, draw.centres))
    monkeypatch.setattr("maxsep.lab.data.rand_augment._tables", None)
    assert torch.equal(CIFAR.apply(batch, draw), expected)


def test_a_flip_before_the_crop_has_the_same_distribution():
    """Every shift has its mirror image among the shifts, so both orders give the same 2 x 9 x 9 pictures."""
    image, pad = pictures(1)[0], 4

    def crop(picture, top, left):
        return torch.nn.functional.pad(picture, (pad,) * 4)[:, top : top + 32, left : left + 32]

    places = [(top, left) for top in range(2 * pad + 1) for left in range(2 * pad + 1)]
    crop_first = {crop(image, *place).flip(2).numpy().tobytes() for place in places}
    flip_first = {crop(image.flip(2), *place).numpy().tobytes() for place in places}
    assert len(crop_first) == 81
    assert crop_first == flip_first


@pytest.mark.parametrize("name", ["rand_augment", "rand_augment_m06", "rand_augment_m-1", "rand_augment_digits"])
def test_other_names_are_refused(name):
    with pytest.raises(
        ValueError, match=r"unknown augmentation .*rand_augment_digits_mM \(M is a level from 0 to 30\)"
    ):
        augmentation(name)


def test_levels_and_channels_outside_the_ranges_are_refused():
    with pytest.raises(ValueError, match="level of RandAugment must be from 0 to 30, got 31"):
        augmentation("rand_augment_m31")
    with pytest.raises(ValueError, match=r"knows grey and colour images, got 4 channels. Use crop_flip"):
        CIFAR(pictures(channels=4), generator())
