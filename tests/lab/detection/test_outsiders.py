import pytest
import torch

from maxsep.lab.detection.outsiders import outsiders

IMAGES = torch.randint(256, (6, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
HALF = torch.full((3,), 0.5), torch.full((3,), 0.25)


@pytest.fixture(scope="module")
def made():
    return outsiders(IMAGES, *HALF)


def test_images_like_the_given_ones_and_the_same_for_a_seed(made):
    again, other = outsiders(IMAGES, *HALF), outsiders(IMAGES, *HALF, seed=1)
    for kind, images in made.items():
        assert (images.shape, images.dtype) == (IMAGES.shape, torch.uint8), kind
        assert torch.equal(images, again[kind]), kind
        assert not torch.equal(images, IMAGES), kind
    assert not torch.equal(made["jigsaw"], other["jigsaw"])


def test_noise_fills_one_std_around_the_mean(made):
    low, high = int(made["uniform_noise"].min()), int(made["uniform_noise"].max())
    assert (low, high) == (round(255 * 0.25), round(255 * 0.75))


def test_a_jigsaw_keeps_the_pieces(made):
    def pieces(image):
        tiles = image.unfold(1, 8, 8).unfold(2, 8, 8).permute(1, 2, 0, 3, 4).reshape(16, -1)
        return sorted(map(tuple, tiles.tolist()))

    for before, after in zip(IMAGES, made["jigsaw"], strict=True):
        assert pieces(before) == pieces(after)


def test_means_mix_every_image_with_another(made):
    whole, means = IMAGES.float(), made["arithmetic_mean"].float()
    partners = 2 * means - whole
    distance = (partners[:, None] - whole[None]).abs().amax((2, 3, 4))
    assert distance.argmin(1).tolist() != list(range(6))
    assert sorted(distance.argmin(1).tolist()) == list(range(6))
    assert bool((made["geometric_mean"].float() <= means + 1).all())


def test_the_simple_ones(made):
    assert torch.equal(made["invert"], 255 - IMAGES)
    assert made["pixelate"][0, 0, :4, :4].unique().numel() == 1
    assert torch.equal(made["rgb_shift"][:, 0], IMAGES[:, 0].roll((2, -3), (1, 2)))
    black = outsiders(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), *HALF)["speckle"]
    assert int(black.max()) == 0
