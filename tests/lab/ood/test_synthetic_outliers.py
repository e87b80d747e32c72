import pytest
import torch

from maxsep.lab.ood.synthetic_outliers import synthetic_outliers

IMAGES = torch.randint(256, (6, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
HALF = torch.full((3,), 0.5), torch.full((3,), 0.25)


@pytest.fixture(scope="module")
def made():
    return synthetic_outliers(IMAGES, *HALF)


def test_images_have_the_same_form_and_depend_on_the_seed_alone(made):
    again, other = synthetic_outliers(IMAGES, *HALF), synthetic_outliers(IMAGES, *HALF, seed=1)
    for kind, images in made.items():
        assert (images.shape, images.dtype) == (IMAGES.shape, torch.uint8), kind
        assert torch.equal(images, again[kind]), kind
        assert not torch.equal(images, IMAGES), kind
    assert not torch.equal(made["jigsaw"], other["jigsaw"])


def test_a_jigsaw_keeps_the_pieces(made):
    def pieces(image):
        tiles = image.unfold(1, 8, 8).unfold(2, 8, 8).permute(1, 2, 0, 3, 4).reshape(16, -1)
        return sorted(map(tuple, tiles.tolist()))

    for before, after in zip(IMAGES, made["jigsaw"], strict=True):
        assert pieces(before) == pieces(after)


def test_means_mix_every_image_with_another(made):
    whole, means = IMAGES.float(), made["arithmetic_mean"].float()
    distance = ((2 * means - whole)[:, None] - whole[None]).abs().amax((2, 3, 4))
    assert distance.argmin(1).tolist() != list(range(6))
    assert sorted(distance.argmin(1).tolist()) == list(range(6))
    assert bool((made["geometric_mean"].float() <= means + 1).all())


def test_simple_kinds(made):
    assert torch.equal(made["invert"], 255 - IMAGES)
    assert made["pixelate"][0, 0, :4, :4].unique().numel() == 1
    assert torch.equal(made["rgb_shift"][:, 0], IMAGES[:, 0].roll((2, -3), (1, 2)))
    low, high = int(made["uniform_noise"].min()), int(made["uniform_noise"].max())
    assert (low, high) == (round(255 * 0.25), round(255 * 0.75)), "one standard deviation around the mean"
    black = synthetic_outliers(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), *HALF)["speckle"]
    assert int(black.max()) == 0
