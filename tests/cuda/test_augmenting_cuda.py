"""On a GPU: the compiled augmentation draws and computes what the ordinary one does, byte for byte."""

import pytest
import torch

from maxsep.lab.data import augmentation
from maxsep.lab.engine.augmenting import CompiledAugmentation

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("name", ["crop_flip", "crop_flip_auto_cutout", "rand_augment_m6", "rand_augment_digits_m18"])
def test_it_gives_the_same_pictures(name):
    images = torch.randint(256, (128, 3, 32, 32), device="cuda").to(torch.uint8)
    ordinary, compiled = augmentation(name), CompiledAugmentation(augmentation(name), 128)
    first, second = (torch.Generator("cuda").manual_seed(3) for _ in range(2))
    for _ in range(20):
        assert compiled(images, second).equal(ordinary(images, first))
