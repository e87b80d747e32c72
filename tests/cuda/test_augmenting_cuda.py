"""On a GPU: the compiled augmentation draws and computes what the ordinary one does, byte for byte."""

import pytest
import torch
from torch.utils._pytree import tree_map

from maxsep.lab.data import augmentation
from maxsep.lab.engine.step import CompiledAugmentation

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


NAMES = [
    *("crop_flip", "crop_flip_auto_cutout", "rand_augment_m6", "rand_augment_digits_m18"),
    *("resized_crop_flip", "resized_crop_flip_jitter"),
]


@pytest.mark.parametrize("name", NAMES)
def test_it_gives_the_same_pictures(name):
    images = torch.randint(256, (128, 3, 32, 32), device="cuda").to(torch.uint8)
    ordinary, compiled = augmentation(name), CompiledAugmentation(augmentation(name), 128)
    first, second = (torch.Generator("cuda").manual_seed(3) for _ in range(2))
    for _ in range(20):
        assert compiled(images, second).equal(ordinary(images, first))


@pytest.mark.parametrize("name", ["resized_crop_flip", "resized_crop_flip_jitter"])
def test_a_graph_captures_crops_and_colours(name):
    """Two replays draw on, as two calls do, and from the same numbers both devices compute the same bytes."""
    augment, images = augmentation(name), torch.randint(256, (64, 3, 56, 40), device="cuda").to(torch.uint8)
    augment(images, torch.Generator("cuda"))  # a capture may not be the first to load kernels
    source, graph = torch.Generator("cuda").manual_seed(3), torch.cuda.CUDAGraph()
    graph.register_generator_state(source)
    with torch.cuda.graph(graph):
        draws = augment.draw(images, source)
        result = augment.apply(images, draws)
    seen = []
    for _ in range(2):
        graph.replay()
        on_host = tree_map(lambda x: None if x is None else x.cpu(), draws)
        assert augment.apply(images.cpu(), on_host).equal(result.cpu())
        seen.append(result.clone())
    assert not seen[0].equal(seen[1])
