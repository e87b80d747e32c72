"""Channel statistics."""

import pytest
import torch

from maxsep.lab.data import Data, ImageSet, load, normalisation


def data(name="mine", channels=3, values=None):
    pixels = torch.randint(0, 256, (6, channels, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    split = ImageSet(pixels if values is None else values, torch.arange(6) % 2, ("a", "b"))
    return Data(name, split, split)


@pytest.mark.parametrize(
    ("dataset", "name", "mean", "std"),
    [
        ("cifar10", "auto", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        ("cifar100", "auto", (0.5070752, 0.4865489, 0.4409178), (0.2673343, 0.2564385, 0.2761505)),
        ("cifar100", "cifar10", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        ("cifar100", "cifar10_255", (0.491373, 0.482353, 0.446667), (0.247059, 0.243529, 0.261569)),
        ("svhn", "cifar10", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        ("imagenet", "auto", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("imagenet_lt?size=64", "auto", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("svhn", "half", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    ],
)
def test_published_constants(dataset, name, mean, std):
    got = normalisation(name, data(dataset))
    torch.testing.assert_close(got[0], torch.tensor(mean), rtol=2e-6, atol=0)
    torch.testing.assert_close(got[1], torch.tensor(std), rtol=2e-6, atol=0)


@pytest.mark.parametrize("name", ["train", "auto"])
def test_measured_on_the_training_images(name):
    mine = data()
    mean, std = normalisation(name, mine)
    pixels = mine.train.images.double() / 255
    torch.testing.assert_close(mean, pixels.mean((0, 2, 3)).float())
    torch.testing.assert_close(std, pixels.std((0, 2, 3), correction=0).float())
    assert mean.dtype == std.dtype == torch.float32


def test_constants_told_in_bytes_are_exact():
    mean, std = normalisation("cifar10_255", data("cifar100"))
    assert torch.equal(mean, torch.tensor([125.3 / 255, 123.0 / 255, 113.9 / 255]))
    assert torch.equal(std, torch.tensor([63.0 / 255, 62.1 / 255, 66.7 / 255]))


def test_constant_channel_is_not_divided_by_zero():
    mean, std = normalisation("train", data(values=torch.full((6, 1, 2, 2), 51, dtype=torch.uint8)))
    torch.testing.assert_close(mean, torch.tensor([0.2]))
    assert std.tolist() == [1.0]


def test_digits_constants_are_those_of_the_digits():
    digits = load("digits")
    everything = torch.cat([digits.train.images, digits.test.images]).double() / 255
    mean, std = normalisation("auto", digits)
    assert abs(mean.item() - everything.mean().item()) < 1e-4
    assert abs(std.item() - everything.std().item()) < 1e-4


def test_errors():
    with pytest.raises(ValueError, match=r"unknown normalisation 'places'. Known: auto, cifar10, .*train"):
        normalisation("places", data())
    with pytest.raises(ValueError, match=r"'cifar10' is for images with 3 channels, mine has 1. Use 'train'"):
        normalisation("cifar10", data(channels=1))
