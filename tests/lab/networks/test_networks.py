import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from maxsep.lab import networks
from maxsep.lab.engine.model import build_model
from maxsep.lab.spec import RunSpec

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
    ("vgg32", 3): 999_488,
    ("resnet50", 1000): 25_557_032,
    ("resnet152", 1000): 60_192_808,
    ("vit", 10): 2_693_194,
    ("vgg32", 5, 2): 853_710,  # features in the plane
    ("vgg32", 3, 2): 853_706,
}
SHAPES = dict.fromkeys(networks.names(), (3, 32, 32)) | {"mlp": (1, 8, 8)}


def kinds(network, kind):
    return [module for module in network.modules() if isinstance(module, kind)]


@pytest.mark.parametrize("key", COUNTS, ids=str)
def test_parameter_counts_are_those_of_the_protocols(key):
    name, outputs, *size = key
    with torch.device("meta"):
        network = networks.build(name, outputs, **({"feature_size": size[0]} if size else {}))
    assert sum(parameter.numel() for parameter in network.parameters()) == COUNTS[key]


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
        ("resnet50", (3, 32, 32)),
        ("vgg32", (1, 8, 8)),
        ("vit", (1, 8, 12)),
        ("wrn40_2", (1, 8, 9)),
    ],
)
def test_networks_take_the_shape_of_the_images(name, shape):
    network = networks.build(name, 3, shape=shape).eval()
    assert network(torch.randn(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize("name", ["mlp", "vit"])
def test_a_single_image_can_be_trained_on(name):
    network = networks.build(name, 10).train()
    network(torch.randn(1, *SHAPES[name])).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize(("alias", "name"), [("resnet", "resnet34"), ("alexnet", "convnet")])
def test_aliases_are_the_papers_words(alias, name):
    with torch.device("meta"):
        assert type(networks.build(alias, 10)) is type(networks.build(name, 10))


@pytest.mark.parametrize(
    ("name", "outputs", "options", "noun"),
    [
        ("vgg", 10, {}, "unknown network 'vgg'"),
        ("vgg32", 10, {"shape": (3, 8, 8), "depth": 3, "wide": True}, "depth, wide"),
        ("mlp", 0, {}, "num_outputs"),
        ("mlp", 3, {"hidden": ()}, "hidden"),
        ("mlp", 3, {"hidden": (8, 0)}, "hidden"),
        ("vgg32", 3, {"feature_size": 0}, "feature_size"),
        ("convnet", 3, {"shape": (1, 8, 8)}, "8 x 8"),
        ("vit", 3, {"shape": (3, 30, 32)}, "30 x 32"),
        ("vit", 3, {"width": 100}, "width"),
    ],
)
def test_bad_names_and_options_are_refused(name, outputs, options, noun):
    with pytest.raises(ValueError, match=noun):
        networks.build(name, outputs, **options)


def test_options_are_checked_without_building():
    networks.check_name("timm/anything", depth=3)
    with pytest.raises(ValueError, match="shape"):
        networks.check_name("resnet", shape=(3, 8, 8))


@pytest.mark.parametrize("name", ["vgg32", "wrn40_2"])
def test_channels_last_is_kept_to_the_end(name):
    network = networks.build(name, 3).to(memory_format=torch.channels_last).train()
    kept = []
    for module in kinds(network, (nn.Conv2d, nn.BatchNorm2d, nn.Dropout, nn.Dropout2d)):
        module.register_forward_hook(lambda _, __, y: kept.append(y.is_contiguous(memory_format=torch.channels_last)))
    network(torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last))
    assert len(kept) > 20
    assert all(kept)


@pytest.mark.parametrize(("name", "fan"), [("resnet32", 64 * 9), ("resnet50", 512 * 9)])
def test_in_a_run_convolutions_start_kaiming_normal_and_the_head_as_a_linear_layer(name, fan):
    network = build_model(RunSpec(network=name, head="plain"), (3, 32, 32), 100)
    assert network.blocks[-1].conv2.weight.std().item() == pytest.approx((2 / fan) ** 0.5, abs=2e-3)
    bound = 1 / math.sqrt(network.num_features)
    assert 0.98 * bound < network.head.weight.abs().max().item() <= bound


def test_shortcuts_of_resnet32_subsample_and_pad_channels_evenly():
    network = networks.build("resnet32", 10)
    assert not any("shortcut" in name for name, _ in network.named_parameters())
    x = torch.randn(2, 16, 8, 8)
    y = network.blocks[5].shortcut(x)
    assert torch.equal(y, F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 8, 8)))


def test_torchvision_computes_the_same_as_resnet50_from_the_same_weights():
    models = pytest.importorskip("torchvision.models")
    ours, theirs = networks.build("resnet50", 7).eval(), models.resnet50(num_classes=7).eval()
    values, keys = ours.state_dict().values(), theirs.state_dict()
    theirs.load_state_dict(dict(zip(keys, values, strict=True)))
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images))


def test_wrn_has_forty_convolutions_and_shortcuts_where_the_width_changes():
    network = networks.build("wrn40_2", 100).eval()
    assert len(kinds(network, nn.Conv2d)) == 40
    assert [n for n, block in enumerate(network.blocks) if block.shortcut is not None] == [0, 6, 12]
    for block in (network.blocks[6], network.blocks[7]):
        x = torch.randn(2, block.conv1.in_channels, 8, 8)
        active = F.relu(block.norm1(x))
        change = block.conv2(F.relu(block.norm2(block.conv1(active))))
        assert torch.equal(block(x), change + (x if block.shortcut is None else block.shortcut(active)))
    images = torch.randn(2, 3, 32, 32)
    maps = F.relu(network.norm(network.blocks(network.stem(images))))
    torch.testing.assert_close(network.features(images), maps.mean((2, 3)))


def test_wrn_starts_normal_by_fan_out_with_biases_of_a_head_at_zero():
    torch.manual_seed(0)
    network = networks.build("wrn40_2", 100)
    for module in kinds(network, nn.Conv2d):
        expected = math.sqrt(2 / (module.kernel_size[0] ** 2 * module.out_channels))
        assert module.weight.std().item() == pytest.approx(expected, rel=4 / math.sqrt(2 * module.weight.numel()))
    assert not network.head.bias.any()
    head = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    network.start_head(head)
    assert not head[0].bias.any()
    assert not head[1].bias.any()
    assert head[0].weight.any()


def test_vgg_drops_whole_channels_and_starts_as_the_protocol_says():
    torch.manual_seed(0)
    network = networks.build("vgg32", 6).train()
    x = torch.randn(256, 3, 32, 32)
    zeros = (network.groups[0][0](x) == 0).flatten(2)
    assert torch.equal(zeros.any(2), zeros.all(2))
    assert zeros.all(2).double().mean().item() == pytest.approx(0.2, abs=0.06)
    for convolution in kinds(network, nn.Conv2d):
        assert convolution.bias is None
        assert convolution.weight.std().item() == pytest.approx(0.05, rel=4 / math.sqrt(2 * convolution.weight.numel()))
    scales = torch.cat([norm.weight for norm in kinds(network, nn.BatchNorm2d)])
    assert scales.std().item() == pytest.approx(0.02, rel=4 / math.sqrt(2 * len(scales)))
    assert network.head.bias is None


def test_vit_attends_over_patches_and_starts_small():
    torch.manual_seed(0)
    network = networks.build("vit", 10, depth=1).eval()
    block, x = network.blocks[0], torch.randn(2, 5, 192)
    attention = nn.MultiheadAttention(192, 3, batch_first=True)
    attention.in_proj_weight, attention.in_proj_bias = block.qkv.weight, block.qkv.bias
    attention.out_proj.load_state_dict(block.project.state_dict())
    normed = block.norm1(x)
    y = x + attention(normed, normed, normed, need_weights=False)[0]
    torch.testing.assert_close(block(x), y + block.mlp(block.norm2(y)))
    assert network.positions.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not block.qkv.bias.any()
