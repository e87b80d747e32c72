import math

import pytest
import torch
from torch import nn

from maxsep.lab import networks
from maxsep.lab.networks import VGG32


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return VGG32(6)


def kinds(network, kind):
    return [module for module in network.modules() if isinstance(module, kind)]


def test_nine_convolutions_of_the_planned_widths_and_strides(network):
    convolutions = kinds(network, nn.Conv2d)
    assert [(c.in_channels, c.out_channels, c.stride[0]) for c in convolutions] == [
        *[(3, 64, 1), (64, 64, 1), (64, 128, 2)],
        *[(128, 128, 1), (128, 128, 1), (128, 128, 2)],
        *[(128, 128, 1), (128, 128, 1), (128, 128, 2)],
    ]
    assert all(c.bias is None and c.kernel_size == (3, 3) and c.padding == (1, 1) for c in convolutions)
    assert len(kinds(network, nn.BatchNorm2d)) == 9
    assert {layer.negative_slope for layer in kinds(network, nn.LeakyReLU)} == {0.2}
    sides, x = [], torch.randn(2, 3, 32, 32)
    for group in network.groups:
        x = group(x)
        sides.append(x.shape[-1])
    assert sides == [16, 8, 4]
    assert network.head.bias is None


def test_a_network_in_the_plane_has_the_protocols_size():
    for outputs, size in ((5, 853_710), (3, 853_706)):
        with torch.device("meta"):
            network = networks.build("vgg32", outputs, feature_size=2)
        assert network.num_features == 2
        assert sum(parameter.numel() for parameter in network.parameters()) == size


def test_features_of_the_plane_are_averages_of_leaky_maps():
    network = VGG32(3, feature_size=2).eval()
    images = torch.randn(5, 3, 32, 32)
    torch.testing.assert_close(network.features(images), network.groups(images).mean((2, 3)))


def test_whole_channels_are_dropped_before_convolutions_one_four_and_seven(network):
    network.train()
    x = torch.randn(256, 3, 32, 32)
    for group, place in zip(network.groups, (0, 3, 6), strict=True):
        assert [type(layer) for layer in group[:2]] == [nn.Dropout2d, nn.Conv2d]
        assert group[1] is kinds(network, nn.Conv2d)[place]
        dropped = group[0](x)
        gone = (dropped == 0).flatten(2)
        assert bool((gone.any(2) == gone.all(2)).all())  # all of a channel or nothing
        assert gone.all(2).double().mean().item() == pytest.approx(0.2, abs=0.06)
        kept = ~gone.all(2)
        torch.testing.assert_close(dropped[kept], x[kept] / 0.8)
        x = torch.randn(256, 128, 4, 4)
    assert len(kinds(network, nn.Dropout2d)) == 3


def test_weights_start_as_the_protocol_says(network):
    for convolution in kinds(network, nn.Conv2d):
        weight = convolution.weight
        assert weight.std().item() == pytest.approx(0.05, rel=4 / math.sqrt(2 * weight.numel()))
        assert abs(weight.mean().item()) < 4 * 0.05 / math.sqrt(weight.numel())
    scales = torch.cat([norm.weight for norm in kinds(network, nn.BatchNorm2d)])
    assert scales.mean().item() == pytest.approx(1, abs=4 * 0.02 / math.sqrt(len(scales)))
    assert scales.std().item() == pytest.approx(0.02, rel=4 / math.sqrt(2 * len(scales)))
    assert not any(norm.bias.any() for norm in kinds(network, nn.BatchNorm2d))
    bound = 1 / math.sqrt(128)
    assert 0.98 * bound < network.head.weight.abs().max().item() <= bound


def test_features_must_be_some():
    with pytest.raises(ValueError, match=r"feature_size must be at least 1, got 0. The protocol's is 128"):
        VGG32(6, feature_size=0)
