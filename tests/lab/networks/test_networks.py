import pytest
import torch
from torch import nn

from maxsep.lab import networks

COUNTS = {
    # protocols of the paper's tables: with as many outputs as classes, and with one fewer
    ("resnet34", 10): 21_282_122,
    ("resnet34", 9): 21_281_609,
    ("resnet34", 100): 21_328_292,
    ("resnet34", 99): 21_327_779,
    ("convnet", 10): 23_272_266,
    ("convnet", 9): 23_268_169,
    ("convnet", 100): 23_640_996,
    ("convnet", 99): 23_636_899,
    ("resnet32", 100): 470_004,
    ("resnet32", 99): 469_939,
    ("wrn40_2", 100): 2_255_156,
    ("wrn40_2", 99): 2_255_027,
    ("vgg32", 6): 999_872,
    ("vgg32", 5): 999_744,
    ("vgg32", 4): 999_616,
    ("vgg32", 3): 999_488,
}


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(("name", "outputs"), COUNTS)
def test_parameter_counts_are_those_of_the_protocols(name, outputs):
    with torch.device("meta"):
        assert count(networks.build(name, outputs)) == COUNTS[name, outputs]


@pytest.mark.parametrize(("name", "backbone"), [("resnet34", 21_276_992), ("resnet32", 463_504)])
def test_backbones_have_the_published_size(name, backbone):
    with torch.device("meta"):
        network = networks.build(name, 10)
        network.head = nn.Identity()
    assert count(network) == backbone


SHAPES = dict.fromkeys(networks.names(), (3, 32, 32)) | {"mlp": (1, 8, 8)}


@pytest.mark.parametrize("name", networks.names())
def test_every_network_keeps_the_contract(name):
    network = networks.build(name, 7).eval()
    images = torch.randn(2, *SHAPES[name])
    features = network.features(images)
    assert isinstance(network.head, nn.Linear)
    assert features.shape == (2, network.num_features)
    assert network.head.in_features == network.num_features
    assert torch.equal(network(images), network.head(features))
    network.head = nn.Identity()
    assert torch.equal(network(images), features)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("convnet", (1, 17, 40)),
        ("mlp", (2, 5, 3)),
        ("resnet32", (1, 8, 8)),
        ("resnet34", (4, 9, 8)),
        ("vgg32", (1, 8, 8)),
        ("wrn40_2", (1, 8, 9)),
    ],
)
def test_networks_take_the_shape_of_the_images(name, shape):
    network = networks.build(name, 3, shape=shape).eval()
    assert network(torch.randn(2, *shape)).shape == (2, 3)


def test_aliases_are_the_papers_words():
    with torch.device("meta"):
        assert type(networks.build("resnet", 10)) is networks.ResNet34
        assert type(networks.build("alexnet", 10)) is networks.ConvNet


def test_an_unknown_network_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown network 'vgg'.*convnet.*resnet34.*timm/NAME"):
        networks.build("vgg", 10)


def test_options_that_a_network_does_not_take_are_named():
    with pytest.raises(
        ValueError, match=r"'vgg32' does not take the options depth, wide. It takes: feature_size, dropout"
    ):
        networks.build("vgg32", 10, shape=(3, 8, 8), depth=3, wide=True)
    with pytest.raises(ValueError, match=r"'resnet' does not take the options shape. It takes: none"):
        networks.check_name("resnet", shape=(3, 8, 8))
    networks.check_name("timm/anything", depth=3)


@pytest.mark.parametrize("name", ["vgg32", "wrn40_2"])
def test_channels_last_is_kept_to_the_end(name):
    network = networks.build(name, 3).to(memory_format=torch.channels_last).train()
    kinds = (nn.Conv2d, nn.BatchNorm2d, nn.Dropout, nn.Dropout2d)
    kept = []
    for module in network.modules():
        if isinstance(module, kinds):
            module.register_forward_hook(
                lambda _, __, y: kept.append(y.is_contiguous(memory_format=torch.channels_last))
            )
    network(torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last))
    assert len(kept) > 20
    assert all(kept)


def test_num_outputs_must_be_positive():
    with pytest.raises(ValueError, match="num_outputs must be at least 1, got 0"):
        networks.build("mlp", 0)


def test_a_network_without_features_is_told_so():
    class Headless(networks.Network):
        pass

    with pytest.raises(NotImplementedError, match=r"Headless must define features\(images\)"):
        Headless().features(torch.zeros(1, 3, 8, 8))
