"""Outliers for every test of detection."""

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="module")
def noise_of(tmp_path_factory):
    """Makes a folder of some noisy images and gives its name as outliers."""

    def make(count):
        root = tmp_path_factory.mktemp("noise")
        rng = np.random.default_rng(0)
        for number in range(count):
            Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(root / f"{number:02}.png")
        return f"folder:{root}"

    return make
