import pytest

from maxsep.lab.networks import ConvNet


def test_small_images_are_refused_with_advice():
    with pytest.raises(ValueError, match=r"at least 16 x 16 pixels, got 8 x 8.*mlp"):
        ConvNet(10, shape=(1, 8, 8))
