import torch

from maxsep.lab.engine.model import build_model
from maxsep.lab.networks import ResNet32
from maxsep.lab.networks.resnet32 import _PaddedSubsample
from maxsep.lab.spec import RunSpec


def test_shortcuts_take_every_second_pixel_and_pad_channels_evenly():
    x = torch.randn(2, 16, 8, 8)
    y = _PaddedSubsample(16, 32, 2)(x)
    assert y.shape == (2, 32, 4, 4)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert not y[:, :8].any()
    assert not y[:, 24:].any()


def test_shortcuts_have_no_parameters():
    assert not any("shortcut" in name for name, _ in ResNet32(10).named_parameters())


def test_in_a_run_convolutions_start_kaiming_normal_and_the_head_as_a_linear_layer_does():
    network = build_model(RunSpec(network="resnet32", head="plain"), (3, 32, 32), 100)
    last = network.blocks[-1].conv2.weight
    assert abs(last.std().item() - (2 / (64 * 9)) ** 0.5) < 2e-3
    assert abs(network.head.weight.std().item() - 1 / (3 * 64) ** 0.5) < 2e-3  # uniform up to 1/8
    assert max(value.abs().max() for value in network.head.parameters()) <= 1 / 8
