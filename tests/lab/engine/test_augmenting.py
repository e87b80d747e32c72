"""The compiled augmentation: the same pictures from the same random numbers."""

import pytest
import torch

from maxsep.lab.data import augmentation
from maxsep.lab.engine.step import CompiledAugmentation

NAMES = [
    *("none", "crop_flip", "crop_flip_rotate", "crop_flip_auto_cutout", "rand_augment_m6", "rand_augment_digits_m18"),
    *("resized_crop_flip", "resized_crop_flip_jitter"),
]


@pytest.fixture(autouse=True)
def no_earlier_programs():
    torch._dynamo.reset()  # all names share one method, and a method has a limited number of programs


def images(count=16):
    return torch.randint(256, (count, 3, 32, 32), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def both(name, batch, backend="aot_eager"):
    """Two batches in a row, so that the generators must stay in step too."""
    ordinary, compiled = augmentation(name), CompiledAugmentation(augmentation(name), 16, backend)
    first, second = (torch.Generator().manual_seed(3) for _ in range(2))
    return zip(*[(ordinary(batch, first), compiled(batch, second)) for _ in range(2)], strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_it_gives_the_same_pictures(name):
    expected, found = both(name, images())
    assert torch.stack(found).equal(torch.stack(expected))
    assert name == "none" or not found[0].equal(images())


def test_a_short_batch_is_not_compiled(monkeypatch):
    compiled = CompiledAugmentation(augmentation("crop_flip"), 16, "aot_eager")
    monkeypatch.setattr(compiled, "_apply", None)
    short = images(5)
    expected = augmentation("crop_flip")(short, torch.Generator().manual_seed(0))
    assert compiled(short, torch.Generator().manual_seed(0)).equal(expected)


@pytest.mark.parametrize("name", ["crop_flip_auto_cutout", "resized_crop_flip_jitter"])
def test_the_real_compiler_keeps_every_byte(name):
    expected, found = both(name, images(), "inductor")
    assert torch.stack(found).equal(torch.stack(expected))
